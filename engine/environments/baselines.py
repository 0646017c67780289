"""Constant-answer baselines: the best score that one text, given to every ask, gets on the held-out prompts.

To try seventeen texts on every prompt would cost seventeen times what the evaluation does: hours, where a grader takes
seconds. So all are tried on a few prompts, the better half of them on twice as many, and so on: successive halving
(Jamieson and Talwalkar, AISTATS 2016, arXiv 1502.07943). What is left has a score on all prompts. Of 64 prompts that
takes 328 episodes in place of 1,088, of 1,000 prompts 1,264 in place of 17,000.

Tasks on the same prompts share what was measured: with a thousand prompts a score is a thousand episodes, and twenty
seeds of one task ask for the same ones.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

REMEMBERED = 64
"""How many sets of prompts have their scores kept, the last used ones."""
FIRST = 8
"""Prompts of the first round: a text that is right on every second one fails on all of them once in 256 times, and one
that is right on one in ten, which is hardly worth an answer, in every second go."""

Scores = Sequence[float | None]
"""Of one text, by prompt; None where the episode has no reward."""
Known = dict[str, list[float | None]]
"""Scores by text, of the first prompts, as far as they were played."""
Measure = Callable[[str, int, int], Awaitable[Scores]]
"""Plays the prompts of a range, from the first number to before the second, with a text."""
Mean = Callable[[Scores], float | None]
"""The score of a text on all prompts; None where too few have a reward."""


async def best_constant(texts: Iterable[str], prompts: int, known: Known, measure: Measure, mean: Mean) -> float | None:
    """The best score, on all of so many ``prompts``, of the texts that are left; None where none of these has one.

    Of equal ones the first go on. ``known`` is added to. Raises what ``measure`` raises.
    """
    left, count = list(dict.fromkeys(texts)), min(FIRST, prompts)
    while True:
        for text in left:
            have = known.setdefault(text, [])
            if len(have) < count:
                have += await measure(text, len(have), count)
        if count == prompts:
            return max((score for text in left if (score := mean(known[text])) is not None), default=None)
        left = _better({text: known[text][:count] for text in left})
        count = min(2 * count, prompts)


def _better(scores: Mapping[str, Scores]) -> list[str]:
    """The better half of some texts, at least one.

    A failure counts as the least that any of them was paid: a text is no better for having broken the environment.
    """
    paid = [score for of_one in scores.values() for score in of_one if score is not None]
    least = min(paid, default=0.0)
    sums = {text: math.fsum(least if s is None else s for s in of_one) for text, of_one in scores.items()}
    ranked = sorted(sums, key=lambda text: -sums[text])  # keeps the order of equal ones
    return ranked[: max(1, len(ranked) // 2)]


@dataclass(frozen=True)
class HeldOut:
    """What a set of held-out prompts follows from."""

    environment: str
    version: str
    config: str
    """The split, the environment's parameters and the rows that the task names, as JSON with sorted keys."""
    prompts: int


@dataclass
class _Shared:
    """What is known of a set of prompts."""

    scores: Known = field(default_factory=dict)
    measuring: asyncio.Lock = field(default_factory=asyncio.Lock)


class ConstantBaselines:
    """The scores of constant answers that are known."""

    def __init__(self) -> None:
        self._known: OrderedDict[HeldOut, _Shared] = OrderedDict()

    async def of(self, held_out: HeldOut, answers: Iterable[str], measure: Measure, mean: Mean) -> float | None:
        """The best score of ``answers``, as ``best_constant`` finds it; None where none has one.

        Raises what ``measure`` does; the next call tries again. A caller waits while another one measures on the same
        prompts, and shares the result.
        """
        known = self._known.setdefault(held_out, _Shared())
        self._known.move_to_end(held_out)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        async with known.measuring:
            return await best_constant(answers, held_out.prompts, known.scores, measure, mean)
