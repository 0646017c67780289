"""Every loss by its name in a task file. A further loss is one more function here and one more row in ``PUBLISHED``."""

from __future__ import annotations

from .cispo import cispo
from .clipped import clipped_ratio
from .gspo import gspo
from .ppo import decoupled_ppo
from .terms import Loss
from .weighted import weighted_gradient

LOSSES: dict[str, Loss] = {
    "dr_grpo": weighted_gradient,
    "grpo": clipped_ratio,
    "dapo": clipped_ratio,
    "cispo": cispo,
    "gspo": gspo,
    "reinforce": weighted_gradient,
    "ppo": decoupled_ppo,
}
