"""What a loss that is not finite looks like, in words short enough for a task's reason.

A lesson, its log-probabilities and the gradient that the loss asks for flow in; a sentence flows out, or nothing.
"""

from __future__ import annotations

from torch import Tensor

from .tokens import Lesson


def fault_of(lesson: Lesson, logp: Tensor, gradient: Tensor) -> str:
    """Name the first trained token at which ``logp`` or ``gradient``, (N,) each, is not finite; empty where all are."""
    broken = ~(logp.isfinite() & gradient.isfinite())
    count = int(broken.sum())
    if not count:
        return ""
    first, trained = int(broken.nonzero()[0]), lesson.trained
    group = lesson.groups[int(trained.sequence[first])]
    return (
        f"{count} of {len(trained.targets)} tokens, the first of them in group {group}: token {trained.targets[first]} "
        f"has log-probability {float(logp[first]):.4g} (the sampler's: {trained.behaviour[first]:.4g}), advantage "
        f"{trained.advantage[first]:.4g} and gradient {float(gradient[first]):.4g}"
    )
