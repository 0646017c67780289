"""Scores ride with prompts: no call of their own while prompts come, and nobody's last bits change."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, write_state
from marlaas.engine.base.model import BaseModel, load_base
from marlaas.engine.errors import AdapterError, CallFailed
from marlaas.engine.rollout.batching.requests import score
from marlaas.engine.rollout.batching.sampler import LONGEST, PATIENCE, Rider, RidingContext
from marlaas.engine.rollout.protocol import SampleRequest
from marlaas.engine.rollout.torch_sampler.context import TorchContext
from marlaas.engine.rollout.torch_sampler.sampler import TorchSampler
from marlaas.engine.training.memory import Layout, fresh
from marlaas.engine.training.protocol import PolicyConfig

SEQUENCES, FIRST = 9, 6
TOKENS = np.array([5, 6, 7, 8, 9, 10, 11], np.int32)


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return load_base("tiny")


def adapter(base: BaseModel, seed: int) -> dict[str, Any]:
    """Random matrices, B included."""
    config, random = base.config, np.random.default_rng(seed)
    sizes = config.intermediate_size, config.hidden_size
    layout = Layout.of({f"model.layers.{number}.mlp.down_proj": sizes for number in range(config.layers)}, 4)
    weights = fresh(PolicyConfig(rank=4), layout).weights.numpy()
    weights[:] = random.normal(0.0, 0.1, weights.shape)
    return layout.views(weights)


class Counting(TorchContext):
    """Counts its calls, and fails those that hold more rows than it may."""

    calls = 0
    most = 10**6

    def decode(self, tokens: Any, positions: Any, sequences: Any, outputs: Any) -> Any:
        self.calls += 1
        if len(tokens) > self.most:
            raise CallFailed("Too many rows.")
        return super().decode(tokens, positions, sequences, outputs).copy()


@dataclass
class Said:
    """Stands for a caller."""

    given: list[Any] = field(default_factory=list)

    tellings: int = 0

    def give(self, value: Any) -> None:
        self.given.append(value)

    fail = give

    def told(self) -> None:
        """Called once for each."""
        self.tellings += 1
        assert self.tellings == len(self.given)


class Ride:
    """A context with two adapters, and the same once more without scores."""

    def __init__(self, base: BaseModel, length: int = 64) -> None:
        self.context, self.plain = Counting(base, SEQUENCES, length), Counting(base, SEQUENCES, length)
        self.riding = RidingContext(self.context, FIRST)
        for one in (self.context, self.plain):
            self.first, self.second = (one.load_adapter(adapter(base, seed), 8.0) for seed in (1, 2))
        self.over: list[int] = []

    def wants(self, handle: int, start: int = 3, tokens: Any = TOKENS) -> Said:
        said: Any = Said()
        self.riding.add(Rider(handle, tokens, start, 0.7, said, lambda: self.over.append(handle), said.told))
        return said  # type: ignore[no-any-return]

    def prompt(self, *sequences: int) -> None:
        """Prompts of four tokens under the first adapter; their logits must be those of the plain context."""
        rows = np.repeat(np.array(sequences, np.int32), 4)
        positions = np.tile(np.arange(4, dtype=np.int32), len(sequences))
        outputs = np.array([0, 0, 1, 1] * len(sequences), np.int8)
        self.same(rows + positions, positions, rows, outputs)

    def token(self, position: int, *sequences: int) -> None:
        """One token of each."""
        rows = np.array(sequences, np.int32)
        self.same(rows, np.full_like(rows, position), rows, np.ones(len(rows), np.int8))

    def same(self, *call: Any) -> None:
        for one in (self.riding, self.plain):
            one.use(np.array([self.first]))
        assert self.riding.decode(*call).tobytes() == self.plain.decode(*call).tobytes()
        assert (self.context.held == self.plain.held).all()

    def alone(self, handle: int, start: int = 3) -> Any:
        return score(self.plain, handle, FIRST, TOKENS, start, 0.7)


def test_scores_of_other_adapters_join_a_prompts_call(base: BaseModel) -> None:
    ride = Ride(base)
    waiting = [ride.wants(ride.first), ride.wants(ride.second, 1), ride.wants(ride.second)]
    ride.prompt(0, 1)
    assert ride.context.calls == 1 and ride.over == [ride.first, ride.second], "as many as there are spare sequences"
    ride.prompt(2)
    assert ride.context.calls == 2 and len(ride.over) == 3
    for said, (handle, start) in zip(waiting, ((ride.first, 3), (ride.second, 1), (ride.second, 3)), strict=True):
        np.testing.assert_allclose(said.given[0], ride.alone(handle, start), atol=1e-5)  # float32, other sums


def test_a_score_without_prompts_waits_for_some_calls(base: BaseModel) -> None:
    ride = Ride(base)
    ride.prompt(0, 1)
    said = ride.wants(ride.second)
    for position in range(4, 4 + PATIENCE):
        ride.token(position, 0, 1)
    assert not said.given and ride.context.calls == 1 + PATIENCE
    ride.token(4 + PATIENCE, 0, 1)
    assert ride.context.calls == PATIENCE + 3
    assert said.given[0].tobytes() == ride.alone(ride.second).tobytes()


def test_no_score_waits_long_for_a_seat(base: BaseModel) -> None:
    """More come than have room beside the prompts: what is left over has calls of its own soon."""
    ride = Ride(base)
    waiting = [ride.wants(ride.second) for _ in range(5)]
    ride.prompt(0, 1)
    ride.prompt(2)
    assert [len(said.given) for said in waiting] == [1, 1, 1, 1, 0]
    for position in range(4, 4 + PATIENCE):
        ride.token(position, 0, 1)
    assert all(said.given and said.tellings for said in waiting)


def test_a_long_score_has_a_call_of_its_own(base: BaseModel) -> None:
    ride, tokens = Ride(base, LONGEST + 2), np.arange(LONGEST + 2, dtype=np.int32) % 100
    long, short = ride.wants(ride.first, 1, tokens), ride.wants(ride.second)
    ride.prompt(0, 1)
    assert not long.given and not short.given
    ride.riding.flush()
    assert len(long.given[0]) == len(tokens) - 1 and len(short.given[0]) == 4


def test_a_call_that_fails_takes_no_score_along(base: BaseModel) -> None:
    ride = Ride(base)
    said, ride.context.most = ride.wants(ride.second), 8
    ride.riding.use(np.array([ride.first]))
    with pytest.raises(CallFailed, match="Too many"):
        ride.prompt(0)
    ride.riding.flush()
    np.testing.assert_allclose(said.given[0], ride.alone(ride.second), atol=1e-5)
    ride.context.most = 1
    said = ride.wants(ride.second)
    ride.riding.flush()
    assert isinstance(said.given[0], CallFailed) and len(ride.over) == 2


def test_what_does_not_fit_is_refused_at_once(base: BaseModel) -> None:
    ride = Ride(base)
    for start, tokens in ((0, TOKENS), (1, np.array([-1, 2], np.int32)), (1, np.zeros(300, np.int32))):
        with pytest.raises(ValueError, match=r"start is|do not fit"):
            ride.wants(ride.first, start, tokens)


async def test_a_sampler_answers_scores_beside_turns_and_alone(base: BaseModel, tmp_path: Path) -> None:
    """And frees a version that is retired while a score of it waits only afterwards."""
    sampler = TorchSampler(str(base.path), sequences=4, context=64)
    try:
        for name, seed in (("a", 1), ("b", 2)):
            write_state(tmp_path / name, PolicyState(StateHeader(4, 8.0, 0, ""), adapter(base, seed)), sync=False)
            await sampler.load(name, str(tmp_path / name))
        alone = await asyncio.wait_for(sampler.score("b", TOKENS, 2, 1.0), 60)
        turns: list[Any] = [
            sampler.generate(SampleRequest(f"c{number}", "a", TOKENS + number, 20, 1.0, (), number))
            for number in range(4)
        ]
        scores: list[Any] = [sampler.score("b", TOKENS, 2, 1.0) for _ in range(3)]
        found: list[Any] = await asyncio.wait_for(asyncio.gather(*turns, *scores, sampler.retire("b")), 60)
        assert all(len(turn.tokens) == 20 for turn in found[:4])
        for said in found[4:7]:
            np.testing.assert_allclose(said, alone, atol=1e-5)
        with pytest.raises(AdapterError, match="retired"):
            await sampler.score("b", TOKENS, 2, 1.0)
    finally:
        await sampler.close()
