"""Do sampler and trainer hold the same base, and do adapters arrive in it as they were trained?

Both score a few tokens under the bare base and under a random adapter. A GGUF of other weights shows in the first
comparison, one whose rows lie in another order in the second.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from marlaas.plugins.messages import Message

from ..adapters import PolicyState, read_state, write_state
from ..errors import BaseModelError
from ..rollout import Renderer, Sampler
from ..training import PolicyConfig, Trainer
from ..trajectories import Logprobs, Tokens
from .tolerance import Tolerance

POLICY = "agreement"
CONFIG = PolicyConfig(rank=4, alpha=4.0)
STRENGTH = 0.1
"""Standard deviation of the random B: adapted layers then differ from the base's own by tens of per cent."""
TALK = (
    "A lighthouse keeper counts ships: 3 in the morning, 14 at noon and 159 by night. He writes each number into a"
    " book, beside the weather, the tide and a remark such as 'fog' or 'clear'. How many ships did he see?"
)
"""Text for comparisons, with ordinary words and numbers."""
SHARE = 0.3
"""Share of the adapter's change by which the two may differ where rounding is large."""


@dataclass(frozen=True)
class Agreement:
    """Differences in nats, over the tokens compared."""

    gap_mean: float
    """Mean difference between sampler and trainer under the bare base."""
    gap_max: float
    moved: float
    """Mean change by the random adapter, as the trainer computes it."""
    moved_gap: float
    """Mean difference between what the adapter changes in the sampler and in the trainer."""

    def check(self, tolerance: Tolerance, what: str) -> None:
        """Raise ``BaseModelError``, whose message begins with ``what``, unless the differences are rounding."""
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
    """The sampler's and the trainer's log-probabilities of all tokens but the first, (T - 1,)."""
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
