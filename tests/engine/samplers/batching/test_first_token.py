"""Who listens to a turn hears its first token before anything else is decoded."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlaas.engine.machine.lone_sampler import write_bare
from marlaas.engine.models.find import load_base
from marlaas.engine.samplers.batching.sampler import BatchingSampler
from marlaas.engine.samplers.protocol import NewTokens, SampleRequest
from marlaas.engine.samplers.torch.context import TorchContext

PROMPT = [5, 6, 7]


class Held(TorchContext):
    """Reads prompts, and decodes what comes after them, once it may."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.may_read, self.may_decode = threading.Event(), threading.Event()
        self.rows = 4

    def decode(self, tokens: Any, positions: Any, sequences: Any, outputs: Any) -> Any:
        assert (self.may_decode if len(tokens) < len(PROMPT) else self.may_read).wait(60)
        return super().decode(tokens, positions, sequences, outputs)


@pytest.mark.parametrize("most", [1, 2])
async def test_the_first_token_waits_for_no_others(tmp_path: Path, most: int) -> None:
    """Whether the turn goes on or not, while another one is being decoded."""
    base = load_base("tiny")
    context = Held(base, sequences=6, length=32)
    sampler = BatchingSampler(base, context, 32)
    write_bare(base, tmp_path / "v")
    await sampler.load("v", str(tmp_path / "v"))

    def turn(name: str, tokens: int) -> tuple[asyncio.Task[Any], asyncio.Future[NewTokens]]:
        first: asyncio.Future[NewTokens] = asyncio.get_running_loop().create_future()
        request = SampleRequest(name, "v", np.array(PROMPT, np.int32), tokens, 1.0, (), 0)
        return asyncio.create_task(sampler.generate(request, stream_to=lambda new: note(first, new))), first

    def note(first: asyncio.Future[NewTokens], new: NewTokens) -> None:
        if not first.done():
            first.set_result(new)

    begun, turns = turn("first of all", 1), [turn("a", 2), turn("b", most)]
    try:
        await asyncio.sleep(0)  # all have been asked for: those after the first are read together
        context.may_read.set()
        for _, first in (begun, *turns):
            assert len((await asyncio.wait_for(first, 60)).tokens) == 1
        assert not turns[0][0].done()
    finally:
        context.may_read.set()
        context.may_decode.set()
        results = await asyncio.gather(*(task for task, _ in turns))
        await sampler.close()
    assert [len(result.tokens) for result in results] == [2, most]
