"""How far sampler and trainer may lie apart before something is wrong, by how exactly each of them computes. Pure.

Gaps are absolute differences of log-probabilities, in nats, on the same tokens under the same adapter. A wrong adapter,
or a wrong base, is recognised by a gap that rounding does not explain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..base import GGUF, SAMPLERS
from ..home import RolloutSettings


@dataclass(frozen=True)
class Tolerance:
    """What counts as rounding: the largest gap of a token where rounding is small; the mean where matrices are
    quantised, since an unlikely token's log-probability may then be off by whole nats."""

    largest: float = math.inf
    mean: float = math.inf
    rounding: float = 1e-2
    """By how much rounding changes a log-probability at least (root mean square), however close those seen are."""

    def holds(self, largest: float, mean: float) -> bool:
        """Whether such gaps are rounding; one that is not a number never is."""
        return largest <= self.largest and mean <= self.mean


EXACT = Tolerance(largest=0.002, rounding=1e-5)
"""Float32 throughout."""
FAST = Tolerance(largest=0.15, rounding=1e-3)
"""llama.cpp's half-precision attention."""
ROUNDED = {
    "f32": FAST,
    "f16": FAST,
    "bf16": Tolerance(mean=0.1),
    "q8_0": Tolerance(mean=0.2),
    "q6_k": Tolerance(mean=0.5),
    "q5_k_m": Tolerance(mean=0.8),
    "q4_k_m": Tolerance(mean=1.5),
}
"""By the type that matrices are stored in: two or three times the mean gap on random weights, which exaggerate it;
trained bases stay far below. Another base has several nats. With bf16 the torch sampler rounds what it multiplies
with matrices, too, and keys and values. A random base of Qwen2.5-0.5B's shape then has a gap of 0.02 on average and of
0.10 at most, with q8_0 0.09 and 0.36; the shipped base 0.008 and 0.033, with q8_0 0.039 and 0.15."""

HALF = Tolerance(mean=0.1)
"""Sixteen bits throughout, on either side or both, as on cards: four times the mean gap on random weights. A trainer in
bfloat16 on a processor differs from a sampler in float32 by 0.025 on average and by 0.09 at most (random base of
Qwen2.5-0.5B's shape) and by 0.011 and 0.06 (shipped base); from one in bfloat16 by 0.026 and 0.09, and by 0.014 and
0.09; from one in q8_0, for which ``ROUNDED`` holds, by 0.10 and 0.30, and by 0.035 and 0.15. Not measured on a card."""


def tolerance_of(rollout: RolloutSettings, stored: str, exact: bool = True) -> Tolerance:
    """The tolerance for a sampler of these settings that keeps matrices as ``stored``, one of ``precision.PRECISIONS``
    or ``HALF``.

    ``exact`` is False for a sampler on a card, and where the trainer's base is not in float32.
    """
    if not exact:
        return HALF if stored in ("f32", "f16", "bf16") else ROUNDED[stored]
    if not SAMPLERS[rollout.sampler].gguf and stored == "f32":  # it computes in float32 on a processor then
        return EXACT
    foreign = rollout.gguf or rollout.weights == GGUF  # what others convert, they may round
    return EXACT if rollout.exact and stored == "f32" and not foreign else ROUNDED[stored]
