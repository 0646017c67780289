"""Room for further episodes: while few turns wait, and for each task whatever the others ask for."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.fairness.line import Payer
from marlaas.engine.rollout import slots as module
from marlaas.engine.rollout.slots import LOOKS, Backpressure

from .test_sampler_slots import ANN, BOB, Holder, Stage, settle


@pytest.fixture(autouse=True)
def _never(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has begun is on its way until a test says that it has arrived."""
    monkeypatch.setattr(module, "COMING", 1e6)


async def found(backpressure: Backpressure, payer: Payer, stage: Stage, least: int) -> asyncio.Task[None]:
    task = asyncio.ensure_future(backpressure.room(payer, [stage.slots], least))
    await settle()
    return task


async def test_there_is_room_while_fewer_wait_than_there_are_slots() -> None:
    stage, backpressure = Stage(2), Backpressure()
    await stage.queue(*(Holder(ANN) for _ in range(3)))
    assert (await found(backpressure, BOB, stage, 0)).done()
    await stage.queue(Holder(ANN))
    asked = ((BOB, 0), (BOB, 1), (ANN, 2), (ANN, 3))
    rooms = [await found(backpressure, payer, stage, least) for payer, least in asked]
    assert [room.done() for room in rooms] == [False, True, False, True], "of each task some may wait"
    for room in rooms:
        room.cancel()


async def test_what_has_just_begun_counts_as_waiting() -> None:
    stage, backpressure = Stage(4), Backpressure()
    backpressure.begin(ANN, 4)
    bob, ann = await found(backpressure, BOB, stage, 1), await found(backpressure, ANN, stage, 4)
    assert bob.done() and not ann.done()
    backpressure.asked(ANN)
    backpressure.look(ANN)
    await settle()
    assert ann.done()


async def test_who_has_asked_counts_only_where_its_turn_waits() -> None:
    stage, backpressure = Stage(4), Backpressure()
    backpressure.begin(ANN, 4)
    for _ in range(4):
        backpressure.asked(ANN)
    await stage.queue(*(Holder(ANN) for _ in range(7)))
    assert (await found(backpressure, BOB, stage, 0)).done(), "three wait for four slots"


async def test_who_does_not_ask_is_expected_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMING", 0.0)
    stage, backpressure = Stage(1), Backpressure()
    backpressure.begin(ANN, 1)
    bob = asyncio.ensure_future(backpressure.room(BOB, [stage.slots], 0))
    for _ in range(LOOKS - 2):
        await asyncio.sleep(0)
    assert not bob.done(), "the loop has not turned often enough for it to ask"
    await bob
    assert not backpressure._begun


async def test_whoever_waits_for_room_hears_of_it() -> None:
    stage, backpressure = Stage(1), Backpressure()
    holders = [Holder(ANN), Holder(BOB), Holder(ANN), Holder(ANN), Holder(BOB)]
    turns = await stage.queue(*holders)
    ann, bob = await found(backpressure, ANN, stage, 2), await found(backpressure, BOB, stage, 1)
    stage.slots.rest(holders[0], 1)
    stage.slots.leave(holders[0])
    await settle()
    assert not ann.done() and not bob.done(), "bob's turn has begun, and another of his waits"
    turns[4].cancel()
    await settle()
    assert bob.done() and not ann.done(), "a turn that is given up makes room, too"
    for holder in holders[1:4]:
        stage.slots.rest(holder, 1)
        stage.slots.leave(holder)
    await settle()
    assert ann.done()


async def test_room_is_handed_on_to_who_has_waited_longest() -> None:
    stage, backpressure, carol = Stage(2), Backpressure(), Payer("carol", 3)
    holders = [Holder(ANN) for _ in range(4)]
    await stage.queue(*holders)
    bob, other = await found(backpressure, BOB, stage, 0), await found(backpressure, carol, stage, 0)
    stage.slots.rest(holders[0], 1)
    stage.slots.leave(holders[0])
    backpressure.begin(BOB, 1)
    await settle()
    assert not bob.done() and not other.done(), "there was room, but somebody has begun meanwhile"
    backpressure.asked(BOB)
    backpressure.look(BOB)
    await settle()
    assert bob.done() and other.done() and not backpressure._rooms, "both, though it is told only once"


async def test_who_gives_up_waiting_leaves_nothing() -> None:
    stage, backpressure = Stage(1), Backpressure()
    backpressure.begin(ANN, 1)
    ann = await found(backpressure, ANN, stage, 0)
    ann.cancel()
    await settle()
    assert ann.cancelled() and not backpressure._rooms
