"""A node: one machine of the cluster, as the engine knows it."""

from __future__ import annotations

from dataclasses import dataclass

from ..devices import Cpu, Link, Machine, Software
from .versions import Versions

NOTHING = Machine(Cpu((), 0, 0))
"""The machine of a node that was not looked at."""


@dataclass(frozen=True)
class Node:
    """One machine of the cluster."""

    id: str
    """Ray's id, hexadecimal: another each time that the machine joins."""
    name: str
    """What people call it."""
    address: str
    """Its address in the cluster."""
    alive: bool = True
    draining: bool = False
    """Whether it gets nothing new."""
    versions: Versions = Versions()  # noqa: RUF009  # it is frozen
    machine: Machine = NOTHING
    """What of it may be used, by the rules that hold there."""
    software: Software = Software()  # noqa: RUF009  # that, too
    free_bytes: int = 0
    """Main memory that may still be taken there."""
    refused: str = ""
    """Why it is not used, in a sentence; empty where it is."""
    here: bool = False
    """Whether it is the engine's own machine."""
    left_out: tuple[str, ...] = ()
    """Why cards of it are left alone, in a sentence each."""
    base: str = ""
    """Fingerprint of its own base; empty where it has none."""
    link: Link = Link()  # noqa: RUF009  # likewise
    """The way from the engine's machine, as it was measured when the node was first looked at."""
    clock: float | None = None
    """Seconds by which its clock is ahead of the engine's; None where that is not known."""
