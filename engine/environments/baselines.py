"""Constant-answer baselines: the best score that one text, given to every ask, gets on the held-out prompts.

To try seventeen texts on every prompt would cost seventeen times what the evaluation does: hours, if a grader takes
seconds. So all are tried on a few prompts, the better half of them on twice as many, and so on: successive halving
(Jamieson and Talwalkar, AISTATS 2016, arXiv 1502.07943). What is left has a score on all prompts. Of 64 prompts that
takes 328 episodes in place of 1,088, of 1,000 prompts 1,264 in place of 17,000.

Tasks on the same prompts share what was measured: with a thousand prompts a score is a thousand episodes, and twenty
seeds of one task ask for the same ones. A task waits where another one measures the same text, and nowhere else.
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
"""Of one text, by prompt; None if the episode has no reward."""
Measure = Callable[[str, int, int], Awaitable[Scores]]
"""Plays the prompts of a range, from the first number to before the second, with a text."""
Mean = Callable[[Scores], float | None]
"""The score of a text on all prompts; None if too few have a reward."""


@dataclass
class _Text:
    """What is known of one text."""

    scores: list[float | None] = field(default_factory=list)
    """Of the first prompts, as far as they were played."""
    measuring: asyncio.Lock = field(default_factory=asyncio.Lock)


class KnownScores:
    """The scores of texts on one set of prompts: what one caller has measured, all others have."""

    def __init__(self) -> None:
        self._texts: dict[str, _Text] = {}

    async def of(self, text: str, count: int, measure: Measure) -> Scores:
        """The scores of a text on the first ``count`` prompts, measured if they are not known.

        Waits where another caller measures the text. Raises what ``measure`` raises; the next call tries again.
        """
        known = self._texts.setdefault(text, _Text())
        if len(known.scores) < count:
            async with known.measuring:
                if len(known.scores) < count:
                    known.scores += await measure(text, len(known.scores), count)
        return known.scores[:count]


async def best_constant(
    texts: Iterable[str], prompts: int, known: KnownScores, measure: Measure, mean: Mean
) -> float | None:
    """The best score, on all of that many ``prompts``, of the texts that are left; None if none of these has one.

    Of equal ones the first go on. ``known`` is added to. Raises what ``measure`` raises.
    """
    left, count = list(dict.fromkeys(texts)), min(FIRST, prompts)
    while True:
        scores = {text: await known.of(text, count, measure) for text in left}
        if count == prompts:
            return max((score for one in scores.values() if (score := mean(one)) is not None), default=None)
        left = _better(scores)
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


class ConstantBaselines:
    """The scores of constant answers that are known."""

    def __init__(self) -> None:
        self._known: OrderedDict[HeldOut, KnownScores] = OrderedDict()

    async def of(self, held_out: HeldOut, answers: Iterable[str], measure: Measure, mean: Mean) -> float | None:
        """The best score of ``answers``, as ``best_constant`` finds it; None if none has one.

        Raises what ``measure`` does; the next call tries again. Callers with the same prompts share what each measures.
        """
        known = self._known.setdefault(held_out, KnownScores())
        self._known.move_to_end(held_out)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return await best_constant(answers, held_out.prompts, known, measure, mean)
