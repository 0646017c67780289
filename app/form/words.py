"""What the form says of itself: of a field, and of how it stands. Pure."""

from __future__ import annotations

from ..words.format import line
from ..words.policies import names
from .checking import Checked
from .fields import FormField
from .form import Form


def about(field: FormField, chosen: bool = False) -> str:
    """A field in words, for whoever has the cursor on it; ``chosen``: whether there are values to choose from."""
    default = f" Default: {line(field.default, 60)}." if field.default else ""
    listed = " ↑ ↓ and enter choose, ctrl+space lists all." if chosen else ""
    several = " Several values with commas: a task for each." if field.swept else ""
    return f"{line(field.key, 80)}: {field.about}{default}{several}{listed}"


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


def beyond_fields(form: Form) -> str:
    """A sentence on what the form has no fields for, or that its task could have several policies."""
    if form.more:
        return f"also in the task file: {names([*form.more])}; ctrl+e changes it"
    if len(form.declared) > 1 and not form.policies:
        return f"agents {names(form.declared)}: one policy acts as all; “policies” below can have several"
    return ""


def missing(checked: Checked) -> str:
    """What must be given and is not."""
    return ", ".join(line(key.rpartition(".")[2], 30) for key in sorted(checked.missing))
