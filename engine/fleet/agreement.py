"""Checks that sampler and trainer hold the same base, within a tolerance."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from marlaas.plugins.messages import Message

from ..adapters import PolicyState, read_state, write_state
from ..base import GGUF, SAMPLERS
from ..errors import BaseModelError
from ..home import RolloutSettings
from ..rollout import Renderer, Sampler
from ..training import PolicyConfig, Trainer
from ..trajectories import Logprobs, Tokens

# Gaps are absolute differences of log-probabilities, in nats. A gap beyond rounding shows a wrong adapter or base.


@dataclass(frozen=True)
class Tolerance:
    """The gaps that count as rounding.

    The largest gap of a token bounds exact computation. The mean bounds quantised matrices, since an unlikely token may
    then be off by whole nats.
    """

    largest: float = math.inf
    mean: float = math.inf
    rounding: float = 1e-2
    """The least change of a log-probability by rounding (root mean square)."""

    def holds(self, largest: float, mean: float) -> bool:
        """True if such gaps are rounding; NaN never is."""
        return largest <= self.largest and mean <= self.mean


EXACT = Tolerance(largest=0.002, rounding=1e-5)
"""Float32 throughout."""
FAST = Tolerance(largest=0.15, rounding=1e-3)
ROUNDED = {
    "f32": FAST,
    "f16": FAST,
    "bf16": Tolerance(mean=0.1),
    "q8_0": Tolerance(mean=0.2),
    "q6_k": Tolerance(mean=0.5),
    "q5_k_m": Tolerance(mean=0.8),
    "q4_k_m": Tolerance(mean=1.5),
}
"""By the type of stored matrices: two or three times the mean gap on random weights; trained bases stay far below,
and another base has several nats. A random base of Qwen2.5-0.5B's shape has a gap with bf16 of 0.02 on average and
of 0.10 at most, with q8_0 0.09 and 0.36; the shipped base 0.008 and 0.033, with q8_0 0.039 and 0.15."""

HALF = Tolerance(mean=0.1)
"""Sixteen bits on either side: four times the mean gap on random weights. A trainer in bfloat16 on a processor
differs from a sampler in float32 by 0.025 on average and 0.09 at most (random base of Qwen2.5-0.5B's shape), 0.011
and 0.06 (shipped base); in bfloat16 by 0.026 and 0.09, 0.014 and 0.09; in q8_0 by 0.10 and 0.30, 0.035 and 0.15. Not
measured on a card."""


def tolerance_of(rollout: RolloutSettings, stored: str, exact: bool = True) -> Tolerance:
    """The tolerance for a sampler with matrices ``stored`` as one of ``precision.PRECISIONS`` or ``HALF``.

    ``exact`` is False for a sampler on a card or a trainer's base not in float32.
    """
    if not exact:
        return HALF if stored in ("f32", "f16", "bf16") else ROUNDED[stored]
    if not SAMPLERS[rollout.sampler].gguf and stored == "f32":
        return EXACT
    foreign = rollout.gguf or rollout.weights == GGUF
    return EXACT if rollout.exact and stored == "f32" and not foreign else ROUNDED[stored]


# A GGUF of other weights shows under the bare base, rows in another order show under a random adapter.

POLICY = "agreement"
CONFIG = PolicyConfig(rank=4, alpha=4.0)
STRENGTH = 0.1
"""Standard deviation of the random B: it changes the layers' outputs by tens of per cent."""
TALK = (
    "A lighthouse keeper counts ships: 3 in the morning, 14 at noon and 159 by night. He writes each number into a"
    " book, beside the weather, the tide and a remark such as 'fog' or 'clear'. How many ships did he see?"
)
SHARE = 0.3
"""Largest difference, as a share of the adapter's change, if rounding is large."""


@dataclass(frozen=True)
class Agreement:
    """Differences in nats, over the tokens compared."""

    gap_mean: float
    gap_max: float
    moved: float
    moved_gap: float

    def check(self, tolerance: Tolerance, what: str) -> None:
        """Raise ``BaseModelError`` beginning with ``what``, unless the differences are rounding."""
        if not tolerance.holds(self.gap_max, self.gap_mean):
            raise BaseModelError(
                f"{what} does not hold the weights of the base model: its log-probabilities are {self.gap_mean:.2g}"
                f" nats away from the trainer's on average, {self.gap_max:.2g} at most.",
                "Make it anew from the very folder that `base` names, in a higher precision if it is quantised.",
            )
        if not self.moved_gap <= max(SHARE * self.moved, 2 * self.gap_mean):
            raise BaseModelError(
                f"{what} takes adapters in another order than the trainer: what a random one changes differs by"
                f" {self.moved_gap:.2g} nats, of {self.moved:.2g}.",
                "This architecture cannot be sampled with llama.cpp by marlaas.",
            )


def comparison_tokens(renderer: Renderer, most: int) -> Tokens:
    """A conversation of at most ``most`` tokens, int32 (T,), to compare two workers on."""
    return np.array(renderer.open([Message("user", TALK)])[:most], np.int32)


async def compare(sampler: Sampler, trainer: Trainer, tokens: Tokens, scratch: Path) -> Agreement:
    """Score ``tokens`` (T,), T > 1, four times; leaves nothing behind. Raises what the workers raise."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        plain, adapted = Path(folder, "plain.safetensors"), Path(folder, "adapted.safetensors")
        try:
            await trainer.open(POLICY, CONFIG, str(plain), False)
            write_state(adapted, _with_random_b(read_state(plain)), sync=False)
            base = await _both(sampler, trainer, plain, tokens)
            await trainer.open(POLICY, CONFIG, str(adapted), True)
            changed = await _both(sampler, trainer, adapted, tokens)
        finally:
            await trainer.close(POLICY)
    gaps = np.abs(base[0] - base[1])
    moved = changed[1] - base[1]
    moved_gap = np.abs((changed[0] - base[0]) - moved)
    return Agreement(float(gaps.mean()), float(gaps.max()), float(np.abs(moved).mean()), float(moved_gap.mean()))


async def _both(sampler: Sampler, trainer: Trainer, state: Path, tokens: Tokens) -> tuple[Logprobs, Logprobs]:
    name = f"{POLICY}/{state.parent.name}/{state.stem}"
    await sampler.load(name, str(state))
    try:
        return (
            await sampler.score(name, tokens, 1, CONFIG.temperature),
            await trainer.score(POLICY, tokens, 1, CONFIG.temperature),
        )
    finally:
        await sampler.retire(name)


def _with_random_b(state: PolicyState) -> PolicyState:
    random = np.random.default_rng(0)
    adapter = {
        name: random.normal(0.0, STRENGTH, array.shape).astype(np.float32) if name.endswith(".lora_B") else array
        for name, array in state.adapter.items()
    }
    return replace(state, adapter=adapter)
