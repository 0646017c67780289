"""Check: rows of data are different from each other, and those to evaluate with are not trained on.

``judge`` needs nothing but what ``EnvironmentService.facts`` found with ``survey=True``.
"""

from __future__ import annotations

from ...errors import EnvironmentFailure
from ..lease import Lease
from ..protocol import DataFacts
from .finding import Finding

CHECK = "rows"


async def look(lease: Lease) -> DataFacts:
    """What is in the rows that a lease draws from; nothing where they cannot be had, which the episodes say."""
    try:
        return await lease.serving.facts(lease.declared.name, lease.data, survey=True)
    except EnvironmentFailure:
        return DataFacts()


def judge(facts: DataFacts) -> list[Finding]:
    """Warnings for evaluation rows that are copies or are trained on; notes on how many rows there are and how they
    lie."""
    survey = facts.survey
    if survey is None:
        return []
    said = [f"{facts.train:,} rows to train on, {facts.held_out:,} to evaluate with."]
    for column, values in survey.blocks.items():
        said.append(f"They lie sorted by {column!r} ({values:,} values); each epoch shuffles them.")
    found = [Finding(CHECK, "note", " ".join(said))]
    if survey.shared:
        text = f"{survey.shared:,} evaluation rows are train rows, too: a score measures what was learned by heart."
        found.append(Finding(CHECK, "warning", f"{text} Take them out of one of the two."))
    if survey.repeated:
        text = f"{survey.repeated:,} evaluation rows are copies of another one, so a score says less than its number."
        found.append(Finding(CHECK, "warning", text))
    return found
