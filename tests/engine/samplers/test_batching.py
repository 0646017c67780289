"""The sampler's thread: who hears of what before it computes on, and prompts that are scored in pieces."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.errors import AdapterError, CallFailed
from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.batching.context import SPARE
from marlaas.engine.samplers.batching.sampler import BatchingSampler
from marlaas.engine.samplers.options import Wishes
from marlaas.engine.samplers.protocol import NewTokens, SampleResult
from marlaas.engine.samplers.torch.context import TorchContext

from ..rollout.contract.asking import State, alone, request

LONG = [1 + n * n % 41 for n in range(700)]


class Watched(TorchContext):
    """Reads prompts, and decodes what follows, once it may; counts logits; fails on demand while it scores."""

    most = 0
    broken = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.begun, self.may_read, self.may_decode = (threading.Event() for _ in range(3))
        self.may_read.set()
        self.may_decode.set()

    def decode(self, tokens: Any, positions: Any, sequences: Any, outputs: Any) -> Any:
        self.begun.set()
        assert (self.may_read if len(tokens) > 4 else self.may_decode).wait(60)
        self.most = max(self.most, int(outputs.sum()))
        if self.broken and (sequences == 0).any():
            raise CallFailed("It does not compute.")
        return super().decode(tokens, positions, sequences, outputs)


@pytest.fixture
def context(base: BaseModel) -> Watched:
    return Watched(base, 8 + SPARE, 1024)


@pytest.fixture
async def sampler(base: BaseModel, context: Watched, state: State) -> AsyncIterator[BatchingSampler]:
    sampler = BatchingSampler(base, context, 1024)
    await sampler.load("v0", str(state(0)))
    yield sampler
    context.may_read.set()
    context.may_decode.set()
    await sampler.close()


async def until_it_reads(sampler: BatchingSampler, context: Watched) -> asyncio.Task[SampleResult]:
    """A turn of one token, which begins to be read and cannot; nor can anything be decoded."""
    context.may_read.clear()
    context.may_decode.clear()
    turn = asyncio.create_task(sampler.generate(request("first of all", max_tokens=1)))
    await asyncio.to_thread(context.begun.wait, 60)
    return turn


@pytest.mark.parametrize("most", [1, 2])
async def test_the_first_token_waits_for_no_others(sampler: BatchingSampler, context: Watched, most: int) -> None:
    """Whether the turn continues or not, while another one is being decoded."""
    heard: dict[str, asyncio.Future[NewTokens]] = {}

    def turn(name: str, tokens: int) -> asyncio.Task[SampleResult]:
        heard[name] = first = asyncio.get_running_loop().create_future()
        asked = request(name, max_tokens=tokens)
        return asyncio.create_task(
            sampler.generate(asked, stream_to=lambda new: None if first.done() else first.set_result(new))
        )

    begun, turns = await until_it_reads(sampler, context), [turn("a", 2), turn("b", most)]
    await asyncio.sleep(0)  # they have been asked for
    context.may_read.set()
    for first in heard.values():
        assert len((await asyncio.wait_for(first, 60)).tokens) == 1
    assert not turns[0].done()
    context.may_decode.set()
    assert [len(result.tokens) for result in await asyncio.gather(begun, *turns)] == [1, 2, most]


async def test_a_loaded_version_is_heard_of_before_the_next_step(
    sampler: BatchingSampler, context: Watched, state: State, tmp_path: Path
) -> None:
    paths = {"v1": str(state(1)), "broken": str(tmp_path / "nothing")}
    begun = await until_it_reads(sampler, context)
    loading = [asyncio.create_task(sampler.load(name, path)) for name, path in paths.items()]
    turn = asyncio.create_task(sampler.generate(request("a", max_tokens=2)))
    await asyncio.sleep(0)  # all have been asked for
    context.may_read.set()
    loaded, refused = await asyncio.wait_for(asyncio.gather(*loading, return_exceptions=True), 60)
    assert isinstance(loaded, str) and isinstance(refused, AdapterError) and not turn.done()
    context.may_decode.set()
    await asyncio.gather(begun, turn)


async def test_one_token_more_costs_no_second_reading(sampler: BatchingSampler) -> None:
    plain = await alone(sampler, request("a", LONG, max_tokens=1))
    result = await alone(sampler, request("b", LONG, max_tokens=1).wishing(Wishes(prompt=True)))
    assert result.tokens.tolist() == plain.tokens.tolist() and result.prefilled == len(LONG)
    assert result.logprobs[0] == pytest.approx(plain.logprobs[0], abs=1e-4)  # float32, other sums
