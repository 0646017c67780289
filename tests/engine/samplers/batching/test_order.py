"""The scheduler's order, on a context that computes nothing: shares by weight, first come first served within them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, cast

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from marlaas.engine.fairness.line import rollout_cost
from marlaas.engine.samplers.batching.context import SPARE, Context, Handles, Ints, Logits
from marlaas.engine.samplers.batching.requests import Answer, Answers, Version, Versions
from marlaas.engine.samplers.batching.scheduler import BatchScheduler
from marlaas.engine.samplers.protocol import SampleRequest

from ....examples import examples

SEQUENCES, LENGTH = 16, 64
Kind = Literal["alone", "mixes", "joins"]
"""How a context takes rows: of one adapter, of several in a call of one token each, or any."""
KINDS: tuple[Kind, ...] = ("alone", "mixes", "joins")


class Flat(Context):
    """Without a model: all tokens are equally likely. It notes the adapter of each row of its calls."""

    vocabulary = 4
    sequences, length, weights = SEQUENCES + SPARE, LENGTH, 0

    def __init__(self, kind: Kind, rows: int = 4, steps: int = 4) -> None:
        self.rows, self._steps = rows, steps
        self.mixes = kind != "alone"
        self.joins = kind == "joins"
        self.held: Ints = np.zeros(SEQUENCES + SPARE, np.int32)
        self.calls: list[list[int]] = []
        self._adapters: Handles = np.empty(0, np.int64)

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        assert self.mixes or len(set(self._adapters.tolist())) == 1
        self.held[sequences] = positions + 1
        self.calls.append(np.broadcast_to(self._adapters, len(tokens)).tolist())
        return np.zeros((int(outputs.sum()), self.vocabulary), np.float32)

    @property
    def steps(self) -> int:
        return self._steps

    def copy(self, source: int, targets: list[int], length: int) -> None:
        self.held[targets] = length

    def use(self, adapters: Handles, alike: bool = True) -> None:
        self._adapters = adapters


class Known:
    """``Versions`` that are all there: v0, v1 and so on, whose handles are their numbers."""

    def __init__(self) -> None:
        self._versions: dict[str, Version] = {}

    def serving(self, name: str) -> Version:
        return self._versions.setdefault(name, Version(name, "", int(name[1:])))

    def leave(self, version: Version) -> None:
        version.users -= 1


class Game:
    """A scheduler, and who has had what: tokens by account, and the turns that have ended, in order."""

    def __init__(self, kind: Kind, rows: int = 4, tokens: int = 4) -> None:
        self.context = Flat(kind, rows, tokens)
        self.scheduler = BatchScheduler(self.context, cast(Versions, Known()), LENGTH)
        self.ended: list[str] = []
        self.cost: Counter[str] = Counter()
        self._answers = Answers()
        self._asked: list[tuple[str, str, Answer[Any]]] = []

    def ask(self, name: str, account: str, version: int, prompt: int = 5, tokens: int = 9, weight: float = 1.0) -> None:
        context = np.arange(prompt, dtype=np.int32) % 4
        answer: Answer[Any] = Answer(self._answers)
        self.scheduler.submit(
            SampleRequest(name, f"v{version}", context, tokens, 1.0, (), 7, account=account, weight=weight), answer
        )
        self._asked.append((name, account, answer))

    async def step(self) -> list[str]:
        """Returns the accounts of the turns that have ended."""
        self.scheduler.step()
        self._answers.flush()
        await asyncio.sleep(0)
        accounts = []
        for asked in list(self._asked):
            name, account, answer = asked
            if answer.future.done():
                result = answer.future.result()
                self.cost[account] += rollout_cost(result.prefilled, len(result.tokens))
                self.ended.append(name)
                accounts.append(account)
                self._asked.remove(asked)
                self.scheduler.release(name)
        return accounts

    async def until_idle(self) -> None:
        for _ in range(10_000):
            if not self.scheduler.busy:
                return
            await self.step()
        raise AssertionError("The scheduler does not come to an end.")


turns = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 12), st.integers(1, 20)),
    min_size=1,
    max_size=40,
)


def run(play: Callable[[], Any]) -> None:
    asyncio.run(play())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(15), deadline=None)
@given(asked=turns)
def test_every_turn_ends_whoever_else_is_there(kind: Kind, asked: list[tuple[str, int, int, int]]) -> None:
    async def play() -> None:
        game = Game(kind)
        for number, (account, version, prompt, tokens) in enumerate(asked):
            game.ask(f"{number}", account, version, prompt, tokens)
        await game.until_idle()
        assert sorted(game.ended, key=int) == [f"{number}" for number in range(len(asked))]
        assert game.scheduler.stats().waiting == game.scheduler.stats().active == 0

    run(play)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", [1.0, 3.0])
@pytest.mark.parametrize("prompts", [(5, 5), (2, 40)])
async def test_accounts_that_always_ask_have_shares_by_weight(
    kind: Kind, weight: float, prompts: tuple[int, int]
) -> None:
    """More turns wait than sequences hold, and more run than a call takes."""
    game, number = Game(kind), 0
    asking = {"many": (weight, 30, prompts[0]), "few": (1.0, 20, prompts[1])}

    def ask(account: str) -> None:
        nonlocal number
        number += 1
        share, _, prompt = asking[account]
        game.ask(f"{number}", account, version=number % 3, prompt=prompt, tokens=8, weight=share)

    for account, (_, count, _) in asking.items():
        for _ in range(count):
            ask(account)
    for step in range(300):
        for account in await game.step():
            ask(account)
        if step == 100:
            game.cost.clear()
    assert game.cost["many"] / game.cost["few"] == pytest.approx(weight, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_small_account_does_not_wait_for_a_large_one(kind: Kind) -> None:
    game = Game(kind)
    for number in range(100):
        game.ask(f"large {number}", "large", version=0, tokens=30)
    for _ in range(20):
        await game.step()
    game.ask("small", "small", version=1, tokens=30)
    while "small" not in game.ended:
        await game.step()
    assert len(game.ended) <= SEQUENCES + 10


@pytest.mark.parametrize("kind", KINDS)
async def test_an_account_that_was_away_has_saved_nothing_up(kind: Kind) -> None:
    game, number = Game(kind), 0

    def ask(account: str) -> None:
        nonlocal number
        number += 1
        game.ask(f"{number}", account, version=number % 3, tokens=8)

    for _ in range(30):
        ask("busy")
    for step in range(600):
        if step == 300:
            game.cost.clear()
            for _ in range(30):
                ask("late")
        for account in await game.step():
            ask(account)
    assert game.cost["late"] / game.cost["busy"] == pytest.approx(1, rel=0.15)


@pytest.mark.parametrize("kind", KINDS)
async def test_turns_of_an_account_end_in_the_order_of_arrival(kind: Kind) -> None:
    game = Game(kind, rows=2)
    for number in range(20):
        game.ask(f"{number}", "a", version=0, prompt=4 + number % 5)
    await game.until_idle()
    places = [game.ended.index(f"{number}") for number in range(20)]
    assert max(abs(place - number) for number, place in enumerate(places)) < SEQUENCES


async def test_where_calls_join_all_go_together() -> None:
    game = Game("joins", rows=8)
    for number in range(8):
        game.ask(f"{number}", "abcd"[number % 4], version=number)
    await game.step()
    assert [sorted(set(call)) for call in game.context.calls] == [list(range(8))] * len(game.context.calls)


async def test_where_versions_mix_they_are_decoded_together() -> None:
    """Prompts are calls of their own."""
    game = Game("mixes", rows=8)
    for number in range(5):
        game.ask(f"{number}", "abcd"[number % 4], version=number)
    await game.step()
    prompts, decoded = game.context.calls[:5], game.context.calls[5:]
    assert prompts == [[number] * 5 for number in range(5)]
    assert decoded == [[0, 1, 2, 3, 4]] * 4


async def test_unmixed_calls_serve_the_account_that_is_behind() -> None:
    game = Game("alone", rows=8, tokens=1)
    for number in range(8):
        game.ask(f"a{number}", "a", version=0, tokens=30)
    for _ in range(10):
        await game.step()
    game.ask("b", "b", version=1, tokens=30)
    await game.step()
    game.context.calls.clear()
    for _ in range(4):
        await game.step()
    assert {adapter for call in game.context.calls for adapter in call} == {1}  # until it has had as much as a call


async def test_what_turns_share_is_counted_once() -> None:
    game = Game("alone")
    for number in range(3):
        game.ask(f"{number}", "a", version=0, prompt=10, tokens=2)
    await game.until_idle()
    assert game.scheduler.stats().prefilled_tokens == 10
    assert sum(game.cost.values()) == rollout_cost(10, 6)
