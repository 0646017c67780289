"""What a held-out score rests on, as rows of tasks, policies and versions have it beside the score."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class ScoreBasis:
    """What a held-out score rests on."""

    stderr: float
    """Standard error of the score, from distinct prompts."""
    n: int
    """Episodes that have a reward."""
    failures: int = 0
    """Episodes that have none after all tries."""
    prompts: int = 0
    """Distinct prompts among the episodes that have a reward."""
    samples: int = 1
    """Episodes of each prompt, k."""
    best_of: float | None = None
    """best@k; None where k is 1."""
    pass_at: float | None = None
    """pass@k; None where k is 1."""


BASIS = (
    "json_object('stderr', coalesce(stderr, 0.0), 'n', n, 'failures', failures, 'prompts', prompts, 'samples', samples,"
    " 'best_of', best_of, 'pass_at', pass_at)"
)
"""SQL for the basis of a row of ``evals``, as JSON."""


def basis_of(text: str | None) -> ScoreBasis | None:
    """The basis that ``BASIS`` gave; None where nothing was measured."""
    return ScoreBasis(**json.loads(text)) if text else None
