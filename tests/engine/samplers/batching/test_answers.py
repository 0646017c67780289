"""Answers cross from a thread to the event loop, together and in order."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from marlaas.engine.samplers.batching.requests import Answer, Answers


def on_a_thread(*work: Callable[[], None]) -> None:
    for each in work:
        thread = threading.Thread(target=each)
        thread.start()
        thread.join()


async def test_nothing_is_delivered_before_the_flush() -> None:
    answers = Answers()
    one, other = Answer[int](answers), Answer[int](answers)
    on_a_thread(partial(one.give, 1), partial(other.fail, ValueError("no")))
    await asyncio.sleep(0)
    assert not one.future.done() and not other.future.done()
    on_a_thread(answers.flush)
    assert await one.future == 1
    with pytest.raises(ValueError, match="no"):
        await other.future


async def test_a_caller_who_was_cancelled_keeps_nobody_from_an_answer() -> None:
    answers = Answers()
    gone, there = Answer[int](answers), Answer[int](answers)
    gone.future.cancel()
    on_a_thread(partial(gone.give, 1), partial(there.give, 2), answers.flush)
    assert await there.future == 2


def test_a_loop_that_is_closed_is_left_alone() -> None:
    answers = Answers()

    async def ask() -> Answer[int]:
        return Answer(answers)

    asyncio.run(ask()).give(1)
    answers.flush()


async def test_what_is_streamed_comes_before_the_answer() -> None:
    answers, told = Answers(), list[int]()
    one, gone = Answer[int](answers), Answer[int](answers)
    gone.future.cancel()
    on_a_thread(
        partial(one.stream, told.append, 1), partial(gone.stream, told.append, 2), partial(one.stream, told.append, 3)
    )
    await asyncio.sleep(0)
    assert told == []
    on_a_thread(partial(one.give, 4), answers.flush)
    assert await one.future == 4 and told == [1, 3]


def test_nothing_is_streamed_to_a_closed_loop() -> None:
    answers, told = Answers(), list[int]()

    async def ask() -> Answer[int]:
        return Answer(answers)

    asyncio.run(ask()).stream(told.append, 1)
    answers.flush()
    assert told == []
