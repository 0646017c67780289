"""How busy a plugin's process is, by its last beat."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """What a process said of itself at its last beat; all zero while nothing is played in it."""

    late: float = 0.0
    """The most seconds by which the loop that runs its episodes was late since the beat before."""
    busy: float = 0.0
    """Processor seconds that the process used per second since the beat before: above 1 with several threads."""
    asleep: float = 0.0
    """Seconds per second since then in which one of its episodes kept the loop and nothing computed: it waits for an
    answer from elsewhere, or sleeps, without an await."""
