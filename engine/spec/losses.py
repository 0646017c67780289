"""What the authors of each loss set. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mean = Literal["constant", "episode", "sequence", "token", "pair"]
"""How a step's tokens become one number:

- ``constant``: sum / (episodes · an episode's most tokens) (Dr.GRPO);
- ``episode``: sum / episodes (the plain policy gradient);
- ``sequence``: mean over episodes of their means over tokens (GRPO);
- ``token``: mean over trained tokens (DAPO, equation 8), known only with the step's last group;
- ``pair``: sum / groups, each of which compares two replies (DPO).
"""

AdvantageKind = Literal["mean", "standard", "leave_one_out"]
SFT, DPO, DISTILL = "sft", "dpo", "distill"
SHOWN = (SFT, DPO)
"""Of demonstrations; as many kinds of tasks."""
IN_THE_RATIO = ("truncate", "mask", "sequence_mask", "geometric_mask", "none")
"""For losses with their own ratio to the sampling policy."""
DUAL = 3.0
"""c of Ye et al. (arXiv 1912.09729, "Dual-clip PPO") and verl (``clip_ratio_c``)."""


@dataclass(frozen=True)
class Published:
    """A loss as its authors use it."""

    words: str
    """For people; docs/guides/losses.md has the formulas."""
    mean: Mean
    advantage: AdvantageKind
    clip_low: float | None = None
    """Ratios are clipped below 1 - clip_low."""
    clip_high: float | None = None
    """Ratios are clipped above 1 + clip_high."""
    clip_dual: float | None = None
    """Bounds ratios with a negative advantage."""
    importance: tuple[str, ...] = (*IN_THE_RATIO, "sequence_truncate")
    """Of ``train.importance``. Weights times a ratio to the sampling policy would correct twice; masks still leave out
    tokens and sequences."""
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
    # the negative log-likelihood: TRL's SFTTrainer with the mean over all tokens of a step
    SFT: Published("of demonstrations: how unlikely their tokens are; mean over tokens", "token", "mean"),
    # arXiv 2305.18290, equation 7
    DPO: Published("of pairs: the chosen reply against the rejected one, relative to the reference", "pair", "mean"),
    # arXiv 2306.13649 (on-policy distillation) with the reverse KL of each sampled token as its reward
    DISTILL: Published("of a teacher: each token's log-ratio to it is its reward; mean over tokens", "token", "mean"),
    # arXiv 2505.24298, equation 5
    "ppo": Published(
        "decoupled: for several updates on the same episodes (epochs above 1)", "token", "standard", 0.2, 0.2, DUAL
    ),
}
"""By its name in a task file."""


def published(name: str) -> Published:
    """Raises ``ValueError`` for an unknown loss."""
    if name not in PUBLISHED:
        raise ValueError(f"There is no loss named {name!r}; there are: {', '.join(sorted(PUBLISHED))}.")
    return PUBLISHED[name]


def constant_denominator(name: str, episodes: int, tokens: int) -> float:
    """Of ``PolicyConfig``, for ``episodes`` of at most ``tokens`` each."""
    return {
        "constant": float(episodes * tokens),
        "episode": float(episodes),
        "sequence": float(episodes),
        "pair": episodes / 2,
    }.get(published(name).mean, 1.0)
