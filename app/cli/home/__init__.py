"""``home backup | restore | check``: a copy of all that a home holds, and whether it is sound."""

from __future__ import annotations

from ..verbs import Verbs, add_family
from . import backup, check, restore


def register(verbs: Verbs) -> None:
    """Add the family."""
    family = add_family(verbs, "home", "back up, restore and check a home: all tasks, adapters and environments")
    backup.register(family)
    restore.register(family)
    check.register(family)
