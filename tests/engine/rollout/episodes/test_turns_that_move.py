"""Conversations over two samplers: a turn may move, one sampler at a time remembers it, and nothing is left behind."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from marlaas.engine.errors import WorkerDied
from marlaas.engine.fairness.line import Ledger, Payer
from marlaas.engine.rollout.sampler_client import SamplerClient
from marlaas.engine.rollout.slots import Replicas
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.engine.trajectories import Tokens

from ..endpoints import endpoint
from ..fake import FakeSampler, FakeVersion


class Mortal(FakeSampler):
    """Dies when it is told to, in the middle of a turn."""

    dies = False

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        result = await super().generate(request, stream_to=stream_to)
        if self.dies:
            raise WorkerDied("The sampler died.")
        return result


class Pair:
    """Two samplers that serve one version; prompts and replies cost a second a token."""

    def __init__(self, anew: bool = False) -> None:
        self.samplers = [Mortal(versions={"v1": FakeVersion("sum")}) for _ in range(2)]
        self.endpoints = [endpoint(one, 2, 2048, f"s{n}") for n, one in enumerate(self.samplers)]
        for one in self.endpoints:
            one.backlog.read = one.backlog.written = 1.0
        self.ledger = Ledger()
        self.client = SamplerClient(Replicas(self.endpoints), self.ledger, Payer("lab", 1), anew)
        self.tokens: Tokens = np.arange(10, dtype=np.int32)

    async def turn(self) -> None:
        """The next turn: two more tokens are given, and four sampled."""
        self.tokens = np.concatenate([self.tokens, np.array([1, 2], np.int32)])
        request = SampleRequest("c", "v1", self.tokens, 4, 1.0, (), 7)
        result = await self.client.generate(request)
        self.tokens = np.concatenate([self.tokens, result.tokens])
        await asyncio.sleep(0)  # what is to be forgotten goes with the next turn of the event loop
        await asyncio.sleep(0)

    @property
    def held(self) -> list[int]:
        return [len(one.conversations) for one in self.samplers]


async def test_a_turn_moves_to_an_idle_sampler_and_says_the_same() -> None:
    alone, moved = Pair(), Pair()
    for waiting in (0, 0, 1000, 1000, 0):
        await alone.turn()
        with moved.endpoints[0].backlog.turn(waiting, 0):
            await moved.turn()
    assert [len(one.ledger) for one in alone.samplers] == [5, 0]
    assert [len(one.ledger) for one in moved.samplers] == [2, 3], "it does not come back without need"
    assert alone.tokens.tolist() == moved.tokens.tolist()
    assert (alone.held, moved.held) == ([1, 0], [0, 1])
    assert [one.slots.active for one in moved.endpoints] == [0, 0]


async def test_a_turn_whose_sampler_dies_is_said_at_the_other() -> None:
    alone, moved = Pair(), Pair()
    for turn in range(4):
        moved.samplers[0].dies = turn == 2
        await alone.turn()
        await moved.turn()
    assert alone.tokens.tolist() == moved.tokens.tolist()
    assert [len(one.ledger) for one in moved.samplers] == [3, 2] and moved.endpoints[0].lost
    assert moved.held[1] == 1 and [one.slots.active for one in moved.endpoints] == [0, 0]
    assert [one.backlog.seconds for one in moved.endpoints] == [0.0, 0.0]
    moved.samplers[1].dies = True
    with pytest.raises(WorkerDied):
        await moved.turn()


async def test_who_heard_a_part_is_told_of_the_death() -> None:
    """Another sampler may go on in other words."""
    pair = Pair()
    pair.samplers[0].dies = True
    request = SampleRequest("c", "v1", pair.tokens, 4, 1.0, (), 7)
    with pytest.raises(WorkerDied):
        await pair.client.generate(request, stream_to=lambda new: None)
    assert pair.endpoints[0].lost and not pair.endpoints[1].lost
    assert (await pair.client.generate(request)).tokens.size == 4


async def test_what_must_repeat_itself_dies_with_its_sampler() -> None:
    pair = Pair(anew=True)
    await pair.turn()
    pair.samplers[0].dies = True
    with pytest.raises(WorkerDied):
        await pair.turn()
    assert not pair.samplers[1].ledger


async def test_where_it_was_its_slot_is_free_again() -> None:
    pair = Pair()
    await pair.turn()
    with pair.endpoints[0].backlog.turn(1000, 0):
        await pair.turn()
    others = [SamplerClient(Replicas(pair.endpoints[:1]), pair.ledger, Payer("lab", 2), False) for _ in range(2)]
    requests = [SampleRequest(name, "v1", np.arange(3, dtype=np.int32), 2, 1.0, (), 1) for name in "ab"]
    turns = (other.generate(request) for other, request in zip(others, requests, strict=True))
    await asyncio.wait_for(asyncio.gather(*turns), 50)
    pair.client.leave()
    await asyncio.sleep(0)
    assert pair.held == [2, 0]


async def test_what_must_repeat_itself_stays_whatever_waits() -> None:
    pair = Pair(anew=True)
    for _ in range(3):
        with pair.endpoints[0].backlog.turn(10_000, 0):
            await pair.turn()
    assert [len(one.ledger) for one in pair.samplers] == [3, 0]


async def test_a_turn_that_is_cut_off_is_no_work_any_more() -> None:
    pair = Pair()
    turn = asyncio.ensure_future(pair.turn())
    await asyncio.sleep(0)
    assert pair.endpoints[0].backlog.seconds == 12 + 4, "as long as nothing was heard, a reply is as long as it may be"
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)
    pair.client.leave()
    assert pair.endpoints[0].backlog.seconds == 0
    assert Replicas(pair.endpoints).choose(pair.tokens, 4)[0] is pair.endpoints[0]


async def test_replies_are_expected_to_be_as_long_as_before() -> None:
    ledger = Ledger()
    assert ledger.reply(1, "solver", 64) == 64
    for sampled in (4, 8):
        ledger.rollout(1, 10, sampled, policy="solver")
    assert (ledger.reply(1, "solver", 64), ledger.reply(1, "solver", 5)) == (6, 5)
    assert ledger.reply(1, "critic", 64) == 64
