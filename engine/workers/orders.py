"""Messages between the engine and a template: an order for a worker, its birth, its end."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST = 1 << 20
"""Most bytes of a frame: an order holds an environment."""


@dataclass(frozen=True)
class Order:
    """A worker to be; its socket and its log come as descriptors with the frame."""

    name: str
    cores: str
    nice: int
    environment: dict[str, str]


@dataclass(frozen=True)
class Born:
    """The answer to an order."""

    pid: int


@dataclass(frozen=True)
class Ended:
    """A worker's end: its exit code, or the number of the signal that ended it, negative."""

    pid: int
    code: int
