"""The demo's tasks: three tenants, the three shapes of environment, the shipped default hyper-parameters.

Standard library only. It sets nothing that a task file could not.
"""

from __future__ import annotations

from ..spec import SamplingSpec, TaskSpec
from ..store import Submission
from .taskfile import submission

TASKS = (
    TaskSpec("physics-lab", "two-digit sums", "arithmetic", sampling=SamplingSpec(max_tokens=8)),
    TaskSpec("game-theory", "find it in four", "guess", sampling=SamplingSpec(max_tokens=8)),
    TaskSpec("economics", "word problems", "calculator", sampling=SamplingSpec(max_tokens=96)),
)


def tasks() -> list[Submission]:
    """The demo's three tasks."""
    return [submission(spec) for spec in TASKS]
