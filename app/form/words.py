"""What the form says of itself: of a field, and of how it stands. Pure."""

from __future__ import annotations

from ..words.format import line
from .checking import Checked
from .fields import FormField


def about(field: FormField) -> str:
    """What a field is, for whoever has the cursor on it."""
    default = f" Default: {line(field.default, 60)}." if field.default else ""
    completed = " → completes." if field.choices or field.key in ("tenant", "environment") else ""
    several = " Several values with commas: a task for each." if field.swept else ""
    return f"{line(field.key, 80)}: {field.about}{default}{completed}{several}"


def standing(checked: Checked) -> str:
    """Whether the form can be submitted, and as how many tasks."""
    if checked.problems:
        wrong = len(checked.problems)
        general = line(checked.problems.get("", ""), 60)
        return general or f"{wrong} {'field is' if wrong == 1 else 'fields are'} wrong"
    if checked.missing:
        return f"missing: {missing(checked)}"
    count = len(checked.submissions)
    return f"{count} task{'' if count == 1 else 's'}; ctrl+s submits"


def missing(checked: Checked) -> str:
    """What must be given and is not."""
    return ", ".join(line(key.rpartition(".")[2], 30) for key in sorted(checked.missing))
