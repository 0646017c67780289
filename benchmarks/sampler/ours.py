"""Our side: the sampler's worker class with its thread and its event loop, asked as the engine asks it."""

from __future__ import annotations

import asyncio
import itertools
import time

from marlaas.engine.rollout.batching.sampler import BatchingSampler
from marlaas.engine.rollout.llama.model import LlamaSampler
from marlaas.engine.rollout.protocol import SampleRequest
from marlaas.engine.rollout.torch_sampler.sampler import TorchSampler

from .cases import EQUAL, LENGTH, UNEQUAL, Case
from .files import Files


class Ours:
    """``Side`` on marlaas, at temperature 1."""

    def __init__(self, files: Files, sampler: BatchingSampler) -> None:
        self._loop = asyncio.new_event_loop()
        self._names = itertools.count()
        self._sampler = sampler
        for number in range(EQUAL + UNEQUAL):
            self._loop.run_until_complete(self._sampler.load(f"v{number}", str(files.state(number))))

    @classmethod
    def on_llama(cls, files: Files, exact: bool) -> Ours:
        """The default sampler."""
        base, cache = str(files.base.path), str(files.folder)
        return cls(files, LlamaSampler(base, cache, sequences=256, context=LENGTH, exact=exact))

    @classmethod
    def on_torch(cls, files: Files) -> Ours:
        """The other one."""
        return cls(files, TorchSampler(str(files.base.path), sequences=256, context=LENGTH, cache=str(files.folder)))

    def run(self, case: Case, repetition: int) -> float:
        """All sequences at once; each is released as soon as it has ended."""
        requests = [
            SampleRequest(
                conversation=f"{next(self._names)}",
                version=f"v{case.adapter(sequence)}",
                tokens=prompt,
                max_tokens=case.tokens,
                temperature=1.0,
                stop=(),
                seed=sequence,
            )
            for sequence, prompt in enumerate(case.prompts(repetition))
        ]
        began = time.perf_counter()
        self._loop.run_until_complete(self._sample(requests))
        return time.perf_counter() - began

    def close(self) -> None:
        """See ``Side``."""
        self._loop.run_until_complete(self._sampler.close())
        self._loop.close()

    async def _sample(self, requests: list[SampleRequest]) -> None:
        await asyncio.gather(*map(self._one, requests))

    async def _one(self, request: SampleRequest) -> None:
        await self._sampler.generate(request)
        await self._sampler.release(request.conversation)
