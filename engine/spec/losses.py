"""What the authors of each loss set: how it is averaged, if ratios are clipped, which advantage it is used with.

The trainer, the task file's rules and the advantages read this. Imports no torch, because the engine and the command
line read it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mean = Literal["constant", "episode", "sequence", "token"]
"""How the values of a step's tokens become one number:

- ``constant``: their sum, divided by the step's episodes times the tokens that an episode may have (Dr.GRPO);
- ``episode``: their sum, divided by the step's episodes (the plain policy gradient);
- ``sequence``: the mean over each episode's own tokens, of these the mean over the step's episodes (GRPO);
- ``token``: the mean over all trained tokens of the step (DAPO, equation 8). The only one whose divisor is not known
  before the step's last group."""

AdvantageKind = Literal["mean", "standard", "leave_one_out"]
IN_THE_RATIO = ("truncate", "mask", "sequence_mask", "geometric_mask", "none")
"""Values of ``train.importance`` for a loss whose own ratio is that to the sampling policy."""
DUAL = 3.0
"""The dual clip c of Ye et al. (arXiv 1912.09729, "Dual-clip PPO"), as they and verl (``clip_ratio_c``) set it."""


@dataclass(frozen=True)
class Published:
    """A loss as its authors use it."""

    words: str
    """For people who choose; docs/guides/losses.md has the formulas."""
    mean: Mean
    advantage: AdvantageKind
    clip_low: float | None = None
    """Ratios are clipped below 1 - clip_low; None: no lower bound."""
    clip_high: float | None = None
    """Ratios are clipped above 1 + clip_high; None: no upper bound."""
    clip_dual: float | None = None
    """With a negative advantage a ratio counts as this much at most (dual clip); None: no such bound."""
    importance: tuple[str, ...] = (*IN_THE_RATIO, "sequence_truncate")
    """Allowed values of ``train.importance``. A loss whose ratio is already that to the sampling policy is not
    multiplied by the weights, since that would correct twice; masks still leave out tokens and sequences."""
    dynamic_sampling: bool = False


PUBLISHED: dict[str, Published] = {
    # arXiv 2503.20783, section 3.2; importance weights as in verl's rollout correction
    "dr_grpo": Published("the usual one: advantage without deviation, one divisor for all lengths", "constant", "mean"),
    # arXiv 2402.03300, equation 3; the clip range is PPO's (arXiv 1707.06347)
    "grpo": Published(
        "clipped ratios, mean over each reply first; advantage in deviations",
        "sequence",
        "standard",
        0.2,
        0.2,
        DUAL,
        IN_THE_RATIO,
    ),
    # arXiv 2503.14476, equation 8 and section 4.1
    "dapo": Published(
        "as grpo, clipped higher above, mean over tokens, equal groups replaced",
        "token",
        "standard",
        0.2,
        0.28,
        DUAL,
        IN_THE_RATIO,
        dynamic_sampling=True,
    ),
    # arXiv 2506.13585, equation 4; the bound, which it leaves open, is that of arXiv 2510.13786 (a weight of at most 5)
    "cispo": Published(
        "clips the weight of a token and drops none; mean over tokens",
        "token",
        "standard",
        None,
        4.0,
        importance=IN_THE_RATIO,
    ),
    # arXiv 2507.18071, equation 5 and section 5.1
    "gspo": Published(
        "one ratio for the whole reply",
        "sequence",
        "standard",
        3e-4,
        4e-4,
        DUAL,
        ("truncate", "geometric_mask", "none"),
    ),
    # arXiv 2402.14740, section 3.2 (RLOO)
    "reinforce": Published("nothing is clipped; compared with the mean of the others", "episode", "leave_one_out"),
    # arXiv 2505.24298, equation 5
    "ppo": Published(
        "decoupled: for several updates on the same episodes (epochs above 1)", "token", "standard", 0.2, 0.2, DUAL
    ),
}
"""Every loss by its name in a task file."""


def published(name: str) -> Published:
    """What its authors set for the loss ``name``; raises ``ValueError`` naming those that exist."""
    if name not in PUBLISHED:
        raise ValueError(f"There is no loss named {name!r}; there are: {', '.join(sorted(PUBLISHED))}.")
    return PUBLISHED[name]


def constant_denominator(name: str, episodes: int, tokens: int) -> float:
    """The ``PolicyConfig.denominator`` of a step of ``episodes`` episodes of at most ``tokens`` tokens each."""
    return {"constant": float(episodes * tokens), "episode": float(episodes), "sequence": float(episodes)}.get(
        published(name).mean, 1.0
    )
