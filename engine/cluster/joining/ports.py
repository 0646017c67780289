"""Which ports Ray takes on a machine, and what for: a fixed range, so that a firewall can name it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...home import PORTS


@dataclass(frozen=True)
class Port:
    """A port, or several, of the range of a machine."""

    flags: tuple[str, ...]
    """Options of ``ray start`` that set it: the first and, where there are two, the last port."""
    first: int
    """Counted from the first of the range."""
    last: int
    what: str
    """What it is for."""


FIGURES = 6
"""The place of a port that no option sets."""
RANGE = (
    Port(("--node-manager-port",), 0, 0, "Ray's node manager: starts the node host, tells which machines live"),
    Port(("--object-manager-port",), 1, 1, "Ray's object manager: versions' files between machines"),
    Port(("--runtime-env-agent-port",), 2, 2, "an agent of Ray, asked by its own machine"),
    Port(("--dashboard-agent-grpc-port",), 3, 3, "another, likewise"),
    Port(("--dashboard-agent-listen-port",), 4, 4, "the same one, over HTTP"),
    Port(("--metrics-export-port",), 5, 5, "Ray's figures, which nobody here reads"),
    Port((), FIGURES, FIGURES, "further figures of the head's"),
    Port(("--min-worker-port", "--max-worker-port"), 10, PORTS - 1, "the bridge and the node hosts: all calls"),
)
HEAD = "the head alone: where machines join, and Ray's own records"
"""What the head's own port is for."""


def port_flags(first: int) -> list[str]:
    """The options of ``ray start`` for a range that begins at ``first``."""
    flags = []
    for port in RANGE:
        for flag, place in zip(port.flags, (port.first, port.last), strict=False):
            flags.append(f"{flag}={first + place}")
    return flags


def port_variables(first: int) -> dict[str, str]:
    """The variables of the environment that set the others of a range that begins at ``first``."""
    return {"DASHBOARD_METRIC_PORT": str(first + FIGURES)}


def listed_ports(head: int, first: int) -> list[tuple[str, str]]:
    """All ports and what they are for, for people."""
    rows = [(str(head), HEAD)]
    for port in RANGE:
        last = f"-{first + port.last}" if port.last > port.first else ""
        rows.append((f"{first + port.first}{last}", port.what))
    return rows


def in_the_way(listening: Iterable[int], first: int, head: int | None) -> list[int]:
    """Ports at which somebody listens, and that Ray needs: those of the range that it takes by themselves.

    ``head`` is the head's own port, None on other machines.
    """
    needed = {first + port.first for port in RANGE if port.flags and port.last == port.first}
    return sorted((needed | ({head} if head else set())) & set(listening))
