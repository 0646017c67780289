"""What a benchmark leaves out of a run, to see what it is worth. Nobody else leaves anything out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Without:
    """Mechanisms that are off."""

    pipeline: bool = False
    """A step's groups are trained on once all of them are there, not as they arrive."""
    early_groups: bool = False
    """All groups of a play close when the play is over (``early_groups``)."""
    going_alone: bool = False
    """A policy waits for the others however long that takes (``next_play``)."""


NOTHING = Without()
