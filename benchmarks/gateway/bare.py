"""The bare sampler, in a process of its own with all cores: prompts in tokens flow in, seconds and tokens flow out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from marlaas.engine.base.model import load_base
from marlaas.engine.fleet.lone_sampler import write_bare
from marlaas.engine.rollout.protocol import SampleRequest
from marlaas.engine.rollout.torch_sampler.sampler import TorchSampler

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Measured:
    """Some prompts that were answered."""

    seconds: float
    """From the first ask to the last answer."""
    tokens: int
    spent: float
    """Seconds of a processor, of all that took part."""


class Bare:
    """The sampler with the base under one version."""

    def __init__(self, folder: Path, weights: str, sequences: int, context: int) -> None:
        self._runner = asyncio.Runner()
        threads = len(os.sched_getaffinity(0))
        self._sampler = TorchSampler(str(folder), sequences, context, threads, weights)  # type: ignore[arg-type]
        path = folder.parent / "bare.safetensors"
        write_bare(load_base(str(folder)), path)
        self._runner.run(self._sampler.load("base", str(path)))

    def answer(self, prompts: Prompts, tokens: int) -> Measured:
        """Answer all at once with so many tokens each."""
        return self._runner.run(self._answer(prompts, tokens))

    async def _answer(self, prompts: Prompts, tokens: int) -> Measured:
        began, spent = perf_counter(), process_time()
        found = await asyncio.gather(*(self._one(number, prompt, tokens) for number, prompt in enumerate(prompts)))
        return Measured(perf_counter() - began, sum(found), process_time() - spent)

    async def _one(self, number: int, prompt: Sequence[int], tokens: int) -> int:
        name = str(number)
        request = SampleRequest(name, "base", np.array(prompt, np.int32), tokens, 1.0, (), number, alike=False)
        result = await self._sampler.generate(request)
        await self._sampler.release(name)
        return len(result.tokens)


_bare: Bare | None = None


def start(folder: Path, weights: str, sequences: int, context: int) -> None:
    """Open the sampler in this process, for ``answer``."""
    global _bare
    _bare = Bare(folder, weights, sequences, context)


def answer(prompts: Prompts, tokens: int) -> Measured:
    """See ``Bare.answer``."""
    assert _bare is not None
    return _bare.answer(prompts, tokens)
