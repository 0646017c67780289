"""What the engine and a node's process host tell each other about plugins' processes; pickled between our own
processes."""

from __future__ import annotations

from dataclasses import dataclass

from ..files.source import Source

WINDOW = 1 << 20
"""Bytes of a process that are on the way at most: what nobody takes, the process waits with, as it would here."""


@dataclass(frozen=True)
class Version:
    """A plugin version that is to run on a node."""

    source: Source
    confined: bool
    """Whether its processes must be confined there, because they are here."""
    allow: str
    """``never`` where the settings forbid libraries; else their consent was given, for it is served here."""
    wheels: str
    offline: bool


@dataclass(frozen=True)
class Prepared:
    """What became of a version on a node."""

    refused: str = ""
    """Why its processes cannot run there, as a clause; empty where they can."""


@dataclass(frozen=True)
class Began:
    """A process runs."""

    pid: int


@dataclass(frozen=True)
class Said:
    """Bytes of a process, on its connection or on that of its pulse."""

    data: bytes
    pulse: bool = False


@dataclass(frozen=True)
class Used:
    """What a process has used so far, in seconds, and what it has printed since the last time."""

    computed: float
    delayed: float
    printed: bytes = b""


@dataclass(frozen=True)
class Passed:
    """Bytes of a connection to the gateway, which has a number; None: it was opened; empty: this end is closed."""

    number: int
    data: bytes | None


ProcessEvent = Began | Said | Used | Passed
