"""What the form says of itself: of a field, and of how it stands. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ..words.format import line
from ..words.policies import LONGEST, names
from .checking import Checked
from .fields import FormField
from .form import Form


def about(field: FormField) -> str:
    """A field in words, for whoever has the cursor on it."""
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


def beyond_fields(form: Form) -> str:
    """A sentence on what the form has no fields for: the policies of its task, or that it could have several."""
    policies, agents = form.more.get("policies"), form.more.get("agents")
    if isinstance(policies, Mapping) and isinstance(agents, Mapping):
        spoken = (f"{names([agent])} is {line(str(policy), LONGEST)}" for agent, policy in agents.items())
        return f"policies {names([*policies])} ({', '.join(spoken)}) stay as they are; ctrl+e changes them"
    if form.more:
        return f"also in the task file: {names([*form.more])}; ctrl+e changes it"
    if len(form.agents) > 1:
        return f"agents {names(form.agents)}: one policy speaks for all; ctrl+e can add [policies.NAME] and [agents]"
    return ""


def missing(checked: Checked) -> str:
    """What must be given and is not."""
    return ", ".join(line(key.rpartition(".")[2], 30) for key in sorted(checked.missing))
