"""What TRL's own loss code makes of a few written-down tokens; run with the Python of TRL's environment.

Log-probabilities, masks and rewards from a seed flow in, losses and their gradients flow out as JSON, which lies in
``tests/engine/trainer/trl_losses.json``: the tests compare ours with it without TRL. No model is needed: the
trainers' ``_compute_loss`` is called with a stand-in that has log-probabilities to give. Made again with

    .bench/trl/bin/python tests/engine/trainer/trl_losses.py tests/engine/trainer/trl_losses.json
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import trl
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from trl.trainer.utils import nanstd

LONGEST = 8
LENGTHS = (8, 3, 5, 1, 6, 4)
GROUP = 3
DISTANCES = (0.3, 1e-4, 3e-4, 0.6, 0.15, 2.0)
"""How far each sequence's behaviour policy is from the policy: from next to nothing to far beyond every clip."""
REWARDS = (1.0, 0.0, 0.25, 0.0, 2.0, 1.5)
CASES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", "low": 0.2, "high": 0.2},
    "dapo": {"loss_type": "dapo", "low": 0.2, "high": 0.28},
    "cispo": {"loss_type": "cispo", "low": 0.2, "high": 5.0},
    "gspo": {"loss_type": "grpo", "low": 3e-4, "high": 4e-4, "level": "sequence"},
    "dr_grpo": {"loss_type": "dr_grpo", "low": 0.2, "high": 0.2},
    "reinforce": {"loss_type": "rloo", "low": 0.2, "high": 0.2},
}
"""The settings with which TRL is to compute what we call by that name."""


def inputs() -> dict[str, Tensor]:
    """Six sequences in two groups of three, padded to eight tokens; float64."""
    draw = torch.Generator().manual_seed(5)
    shape = (len(LENGTHS), LONGEST)
    logp = -4.0 * torch.rand(shape, generator=draw, dtype=torch.float64) - 0.05
    noise = torch.randn(shape, generator=draw, dtype=torch.float64) * torch.tensor(DISTANCES)[:, None]
    rewards = torch.tensor(REWARDS, dtype=torch.float64)
    grouped = rewards.view(-1, GROUP)
    # the lines of TRL's _generate_and_score_completions, which cannot be called apart from generating
    centred = rewards - grouped.mean(1).repeat_interleave(GROUP)
    others = (grouped.sum(1, keepdim=True) - grouped) / (GROUP - 1)
    return {
        "logp": logp,
        "behaviour": logp - noise,
        "base": logp + 0.3 * torch.randn(shape, generator=draw, dtype=torch.float64),
        "mask": (torch.arange(LONGEST)[None] < torch.tensor(LENGTHS)[:, None]).double(),
        "rewards": rewards,
        "mean": centred,
        "standard": centred / (nanstd(grouped, dim=1).repeat_interleave(GROUP) + 1e-4),
        "leave_one_out": rewards - others.view(-1),
    }


def trainer(leaf: Tensor, case: dict[str, Any], beta: float) -> SimpleNamespace:
    """What ``_compute_loss`` reads of a trainer."""
    accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x)
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (leaf, torch.zeros_like(leaf), None),
        accelerator=accelerator,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        aux_loss_enabled=False,
        beta=beta,
        current_gradient_accumulation_steps=1,
        epsilon_high=case["high"],
        epsilon_low=case["low"],
        importance_sampling_level=case.get("level", "token"),
        loss_type=case["loss_type"],
        max_completion_length=LONGEST,
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )


def computed(name: str, given: dict[str, Tensor], stale: bool, beta: float) -> dict[str, Any]:
    """One loss with its gradient by the log-probabilities."""
    case, leaf, mask = CASES[name], given["logp"].clone().requires_grad_(), given["mask"]
    old = given["behaviour"] if stale else given["logp"]
    ids = mask.long()
    tokens = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "old_per_token_logps": old,
        "old_logps": (old * mask).sum(1),
        "ref_per_token_logps": given["base"],
        "num_items_in_batch": mask.sum(),
        "advantages": given["leave_one_out" if name == "reinforce" else "mean" if name == "dr_grpo" else "standard"],
    }
    owner = RLOOTrainer if name == "reinforce" else GRPOTrainer
    loss = owner._compute_loss(trainer(leaf, case, beta), None, tokens)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return {"name": name, "stale": stale, "kl": beta, "loss": loss.item(), "gradient": gradient.tolist()}


def reference() -> dict[str, Any]:
    """All cases, with what they were made from."""
    given = inputs()
    cases = [computed(name, given, stale, 0.0) for name in CASES for stale in (False, True)]
    cases += [computed(name, given, True, 0.1) for name in ("grpo", "dapo", "gspo")]
    return {
        "script": "tests/engine/trainer/trl_losses.py",
        "trl": trl.__version__,
        "longest": LONGEST,
        "group": GROUP,
        "inputs": {name: value.tolist() for name, value in given.items()},
        "cases": cases,
    }


if __name__ == "__main__":
    made = reference()
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in made.items() if key != "cases"]
    cases = ",\n".join(json.dumps(case) for case in made["cases"])
    text = "{\n" + ",\n".join([*lines, f'"cases": [\n{cases}\n]']) + "\n}\n"
    Path(sys.argv[1]).write_text(text, encoding="utf-8")
