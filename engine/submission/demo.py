"""The demo's tasks: three tenants, the three forms of environment, default hyper-parameters.

Standard library only. It sets nothing that a task file could not.
"""

from __future__ import annotations

from ..spec import EvalSpec, SamplingSpec, TaskSpec
from ..store import Submission
from .taskfile import submission

TASKS = (
    TaskSpec("physics-lab", "two-digit sums", "arithmetic", sampling=SamplingSpec(max_tokens=8)),
    TaskSpec("game-theory", "find it in four", "guess", sampling=SamplingSpec(max_tokens=8)),
    TaskSpec("economics", "word problems", "calculator", sampling=SamplingSpec(max_tokens=96)),
)
REAL_BASE = "smollm2"
_MEASURED = EvalSpec(every=5, prompts=20, temperature=1.0)
"""As the model samples: its likeliest replies are often right before any training."""
REAL = (
    TaskSpec("geography", "capitals", "instruct/capitals", 15, sampling=SamplingSpec(max_tokens=16), eval=_MEASURED),
    TaskSpec(
        "physics-lab", "sums in numbers", "instruct/sums", 15, sampling=SamplingSpec(max_tokens=16), eval=_MEASURED
    ),
    TaskSpec("registry", "people as JSON", "instruct/people", 15, sampling=SamplingSpec(max_tokens=40), eval=_MEASURED),
)
"""For an instruct model of 135 million parameters, with short replies: a step of all three takes about a minute on two
cores.
"""


def tasks(real: bool = False) -> list[Submission]:
    """The demo's three tasks; ``real``: those for ``REAL_BASE``."""
    return [submission(spec) for spec in (REAL if real else TASKS)]
