"""A sampler with several adapters: conversations are begun once, then go on for some tokens as often as is asked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from marlaas.engine.base.model import BaseModel
from marlaas.engine.rollout.llama.model import LlamaSampler
from marlaas.engine.rollout.protocol import SampleRequest
from marlaas.engine.trajectories import Tokens

PROMPT = 8
LENGTH = 256
"""Tokens that a conversation may have: more than all repetitions sample."""


@dataclass(frozen=True)
class Case:
    """So many conversations under each of so many adapters."""

    adapters: int
    each: int

    @property
    def conversations(self) -> int:
        """Of all adapters."""
        return self.adapters * self.each

    def __str__(self) -> str:
        adapters = f"{self.adapters} adapter{'s' if self.adapters > 1 else ''}"
        return f"{adapters}, {self.each} conversation{'s' if self.each > 1 else ''} each"


class Side:
    """One sampler, with all adapters loaded."""

    def __init__(
        self,
        base: BaseModel,
        folder: Path,
        state: Path,
        weights: str,
        exact: bool,
        conversations: int,
        adapters: int,
        together: bool,
    ) -> None:
        """``together`` says whether adapters share passes; files are kept in ``folder``."""
        self._loop = asyncio.new_event_loop()
        self._vocabulary = base.config.vocab_size
        self._sampler = LlamaSampler(
            str(base.path), str(folder), conversations, LENGTH, weights=weights, exact=exact, mixes=together
        )
        self._contexts: list[Tokens] = []
        for number in range(adapters):
            self._loop.run_until_complete(self._sampler.load(f"v{number}", str(state)))

    def begin(self, case: Case) -> None:
        """Compute the prompts, and a token of each conversation."""
        random = np.random.default_rng(0)
        prompts = random.integers(0, self._vocabulary, (case.adapters, PROMPT)).astype(np.int32)
        self._contexts = [prompts[number // case.each] for number in range(case.conversations)]
        self._loop.run_until_complete(self._go_on(case, 1))

    def rate(self, case: Case, tokens: int) -> float:
        """Tokens a second of all conversations, which go on for ``tokens`` each."""
        started = perf_counter()
        self._loop.run_until_complete(self._go_on(case, tokens))
        return case.conversations * tokens / (perf_counter() - started)

    def end(self) -> None:
        """Forget the conversations."""
        for number in range(len(self._contexts)):
            self._loop.run_until_complete(self._sampler.release(f"{number}"))

    def close(self) -> None:
        """Give the memory back."""
        self._loop.run_until_complete(self._sampler.close())
        self._loop.close()

    async def _go_on(self, case: Case, tokens: int) -> None:
        async def turn(number: int, context: Tokens) -> Tokens:
            request = SampleRequest(f"{number}", f"v{number // case.each}", context, tokens, 1.0, (), number)
            return np.concatenate([context, (await self._sampler.generate(request)).tokens])

        self._contexts = await asyncio.gather(*(turn(number, each) for number, each in enumerate(self._contexts)))
