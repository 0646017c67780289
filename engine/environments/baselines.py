"""Constant-answer baselines: the best score that one text, given to every ask, gets on the held-out prompts.

Tasks on the same prompts share what was measured: with a thousand prompts a score is a thousand episodes, and twenty
seeds of one task ask for the same ones.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

REMEMBERED = 64
"""How many sets of prompts have their scores kept, the last used ones."""


@dataclass(frozen=True)
class HeldOut:
    """What a set of held-out prompts follows from."""

    environment: str
    version: str
    config: str
    """The split, the environment's parameters and the rows that the task names, as JSON with sorted keys."""
    prompts: int


@dataclass
class _Known:
    """Scores by text; None where no episode had one."""

    scores: dict[str, float | None] = field(default_factory=dict)
    measuring: asyncio.Lock = field(default_factory=asyncio.Lock)


class ConstantBaselines:
    """The scores of constant answers that are known."""

    def __init__(self) -> None:
        self._known: OrderedDict[HeldOut, _Known] = OrderedDict()

    async def of(
        self, held_out: HeldOut, answers: Iterable[str], measure: Callable[[str], Awaitable[float | None]]
    ) -> float | None:
        """The best score of ``answers``; None where none has one.

        Raises what ``measure`` does; the next call tries again. A caller waits while another one measures on the same
        prompts, and shares the result.
        """
        known = self._known.setdefault(held_out, _Known())
        self._known.move_to_end(held_out)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        answers = tuple(answers)
        async with known.measuring:
            for answer in answers:
                if answer not in known.scores:
                    known.scores[answer] = await measure(answer)
        scores = (known.scores[answer] for answer in answers)
        return max((score for score in scores if score is not None), default=None)
