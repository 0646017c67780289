"""``home backup | restore | check``: a copy of all that a home holds, and whether it is sound."""

from __future__ import annotations

from . import home_backup, home_check, home_restore
from .verbs import Verbs, add_family


def register(verbs: Verbs) -> None:
    """Add the family."""
    family = add_family(verbs, "home", "back up, restore and check a home: all tasks, adapters and environments")
    home_backup.register(family)
    home_restore.register(family)
    home_check.register(family)
