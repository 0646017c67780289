"""``home new | backup | restore | check``: a new home, a copy of all that one holds, and whether it is sound."""

from __future__ import annotations

from ..verbs import Verbs, add_family
from . import backup, check, new, restore


def register(verbs: Verbs) -> None:
    """Add the family."""
    family = add_family(verbs, "home", "make, back up, restore and check a home: all tasks, adapters and environments")
    new.register(family)
    backup.register(family)
    restore.register(family)
    check.register(family)
