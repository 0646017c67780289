"""Prompts that are told of: in pieces, in a sequence of their own, beside turns and scores that notice nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlaas.engine.errors import CallFailed
from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.memory import scored_rows
from marlaas.engine.samplers.batching.context import SPARE
from marlaas.engine.samplers.batching.sampler import BatchingSampler
from marlaas.engine.samplers.options import Wishes
from marlaas.engine.samplers.torch.context import TorchContext

from ...rollout.contract.asking import VOCABULARY, State, alone, extras_of, request, same

LONG = [1 + n * n % 41 for n in range(700)]


class Watched(TorchContext):
    """Counts the logits of each call, and can be made to fail where one sequence is computed."""

    most = 0
    broken = False

    def decode(self, tokens: Any, positions: Any, sequences: Any, outputs: Any) -> Any:
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
    for number in (0, 1):
        await sampler.load(f"v{number}", str(state(number)))
    yield sampler
    await sampler.close()


async def test_a_long_prompt_never_has_many_logits(sampler: BatchingSampler, context: Watched) -> None:
    result = await sampler.generate(request("a", LONG, max_tokens=0).wishing(Wishes(prompt=True, likeliest=20)))
    assert context.most == scored_rows(VOCABULARY) < len(LONG)
    assert result.prefilled == (await sampler.stats()).prefilled_tokens == len(LONG)
    assert not context.held.any(), "it takes no conversation's memory"


async def test_one_token_more_costs_no_second_reading(sampler: BatchingSampler) -> None:
    plain = await alone(sampler, request("a", LONG, max_tokens=1))
    result = await alone(sampler, request("b", LONG, max_tokens=1).wishing(Wishes(prompt=True)))
    assert result.tokens.tolist() == plain.tokens.tolist() and result.prefilled == len(LONG)
    assert result.logprobs[0] == pytest.approx(plain.logprobs[0], abs=1e-4)  # float32, other sums


async def test_turns_and_scores_beside_notice_nothing(sampler: BatchingSampler) -> None:
    plain = [request(f"{n}", LONG[: 5 + 40 * n], seed=n, version=f"v{n % 2}", max_tokens=40) for n in range(5)]
    expected = [await alone(sampler, each) for each in plain]
    told = [request(f"told {n}", LONG[n:], max_tokens=n, version=f"v{n % 2}") for n in range(3)]
    wished = [each.wishing(Wishes(prompt=True, likeliest=2)) for each in told]
    apart = [extras_of(await alone(sampler, each)) for each in wished]
    tokens = np.array(LONG[:9], np.int32)
    score = await sampler.score("v1", tokens, 3, 0.7)
    scores, turns, again = await asyncio.gather(
        asyncio.gather(*(sampler.score("v1", tokens, 3, 0.7) for _ in range(6))),
        asyncio.gather(*(alone(sampler, each) for each in plain)),
        asyncio.gather(*(alone(sampler, each) for each in wished)),
    )
    assert all(map(same, turns, expected))
    for each in scores:
        np.testing.assert_allclose(each, score, atol=1e-4)  # float32, other sums
    for one, other in zip(apart, map(extras_of, again), strict=True):
        assert one.prompt_logprobs is not None and other.prompt_logprobs is not None
        np.testing.assert_allclose(one.prompt_logprobs, other.prompt_logprobs, atol=1e-4)


async def test_a_call_that_fails_ends_its_turn_alone(sampler: BatchingSampler, context: Watched) -> None:
    context.broken = True
    with pytest.raises(CallFailed, match="does not compute"):
        await sampler.generate(request("a", LONG, max_tokens=3).wishing(Wishes(prompt=True)))
    assert len((await sampler.generate(request("a"))).tokens) == 20
    context.broken = False
    result = await alone(sampler, request("b", LONG[:400], max_tokens=0).wishing(Wishes(prompt=True)))
    scored = await sampler.score("v0", np.array(LONG[:400], np.int32), 1, 1.0)
    told = extras_of(result).prompt_logprobs
    assert told is not None
    np.testing.assert_allclose(told, scored, atol=1e-4)


async def test_a_turn_that_is_given_up_leaves_room_for_the_next(sampler: BatchingSampler, tmp_path: Path) -> None:
    running = [
        asyncio.create_task(sampler.generate(request(f"{n}", LONG, max_tokens=n).wishing(Wishes(prompt=True))))
        for n in range(4)
    ]
    await asyncio.sleep(0)
    while (await sampler.stats()).prefilled_tokens == 0:
        pass
    for n in range(4):
        await sampler.release(f"{n}")
    assert {(await each).finish for each in running} <= {"abort", "length"}
    stats = await sampler.stats()
    assert (stats.active, stats.waiting) == (0, 0)
    await sampler.retire("v0")
    result = await alone(sampler, request("a", LONG, max_tokens=0, version="v1").wishing(Wishes(prompt=True)))
    assert extras_of(result).prompt_logprobs is not None
