"""A conversation in a thread of its own, with a real sampler: heard, cancelled, idle, ended; nothing is left behind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from marlaas.app.reading import opened
from marlaas.app.tui.chat.talking import (
    ChatThread,
    Event,
    Message,
    PartialReply,
    SamplerNotice,
    Side,
    TurnOver,
    side_of,
)
from marlaas.engine.home.paths import Home
from marlaas.engine.rollout.talk import Manner

from ...filling import Filling
from ...filling_adapters import with_silent_adapter

LONG = Manner(temperature=1.0, max_tokens=64)


class Listener:
    """What the screen would hear."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.hear = self._events.put

    def until(self, kind: type[Event], words: str = "") -> list[Event]:
        """All events up to the first of a kind, with some words in it."""
        events: list[Event] = []
        while not events or not isinstance(events[-1], kind) or words not in str(events[-1]):
            events.append(self._events.get(timeout=40))
        return events


@contextmanager
def talking(home: Home, sides: list[Side], idle: float = 60.0) -> Iterator[tuple[ChatThread, Listener]]:
    listener, others = Listener(), workers()
    chat = ChatThread(home, sides, "test", listener.hear, idle)
    thread = threading.Thread(target=chat.run)
    thread.start()
    try:
        yield chat, listener
    finally:
        chat.close()
        thread.join(20)
        assert not thread.is_alive() and workers() <= others


def workers() -> set[psutil.Process]:
    """Samplers and trainers below this process; other tests may have left an engine to those after them."""
    return {child for child in psutil.Process().children(recursive=True) if "workers.host" in command_of(child)}


def command_of(process: psutil.Process) -> str:
    """Its command line; nothing for one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.processes
@pytest.mark.torch
def test_version_and_base_answer_alike_after_a_rest(filling: Filling, home: Home) -> None:
    task, others = with_silent_adapter(filling, home), workers()
    with opened(home) as reader:
        sides = [side_of(reader.versions(), f"{task}@last"), Side()]
    with talking(home, sides, idle=0.5) as (chat, listener):
        begun, look = listener.until(SamplerNotice, "are free. Your first message starts it.")
        assert begun == SamplerNotice("Looking at the base …", under_way=True) and workers() <= others
        assert isinstance(look, SamplerNotice) and not look.under_way
        chat.say(Message("17+4=", LONG, "Be kind."))
        events = listener.until(TurnOver)
        assert events[-1] == TurnOver(True)
        heard = [each for each in events if isinstance(each, PartialReply)]
        pieces = [[each.speech for each in heard if each.side == side] for side in (0, 1)]
        assert pieces[0][-1].ended and not pieces[0][0].ended and pieces[0][-1] == pieces[1][-1]
        chat.say(Message("and 5", LONG))
        chat.cancel()
        events = listener.until(TurnOver)
        listener.until(SamplerNotice, "idle minutes; a message starts it again")
        assert workers() <= others
        chat.say(Message("and 6", LONG))
        assert listener.until(TurnOver)[-1] == TurnOver(True)


def test_what_cannot_be_loaded_is_told_every_time(
    filling: Filling, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlaas.engine.machine.lone_sampler.available_memory", lambda limit: 1_000_000)
    with talking(home, [Side()]) as (chat, listener):
        look = listener.until(SamplerNotice, "The base needs")[-1]
        assert isinstance(look, SamplerNotice) and look.bad
        for _ in range(2):
            chat.say(Message("hello", LONG))
            *_, told, over = listener.until(TurnOver)
            assert isinstance(told, SamplerNotice) and told.bad and over == TurnOver(False)


def test_a_thread_that_is_closed_before_it_begins_ends_at_once(home: Home) -> None:
    chat = ChatThread(home, [Side()], "test", lambda event: None)
    chat.close()
    chat.run()
    chat.say(Message("hello", LONG))
