"""One entry of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["metric", "score", "machine", "word"]
"""Of a step, of an evaluation, of the machine, or no figure at all."""
KINDS: dict[Kind, str] = {
    "metric": "metric of a step",
    "score": "figure of an evaluation",
    "machine": "figure of the machine",
    "word": "word",
}
"""What a kind is called."""


@dataclass(frozen=True)
class Term:
    """A word or a metric: what it means, what is healthy, and what to do if it is not."""

    name: str
    """What it is called on every screen and in every table."""
    line: str
    """What it is, without a capital and a full stop."""
    names: tuple[str, ...] = ()
    """Other words by which people look for it."""
    kind: Kind = "word"
    key: str = ""
    """Its name in JSON, CSV and TensorBoard; empty if it is not printed there."""
    old: tuple[str, ...] = ()
    """Names that an older JSON had for it, which it still has next to ``key``; deprecated. Steps are recorded under the
    first."""
    unit: str = ""
    """In what it is measured, which shows how it is printed (``app/text/metrics.py``): share (0 to 1, as a percentage),
    score or reward (two decimals; a score is 0 to 1), seconds, count, tokens, versions, epochs, nats, or empty."""
    healthy: str = ""
    """What it is like if all is well."""
    otherwise: str = ""
    """What to do if it is not."""
    formula: str = ""
    source: str = ""
    """A paper, or the file of the program that computes it."""
    important: bool = False
    """Whether it says first how a task is doing; the others help to find out why."""

    @property
    def recorded(self) -> str:
        """The name under which the database has a metric of steps."""
        return self.old[0] if self.old else self.key
