"""The chat: one message to all sides, answers as they come, and a thread with a real sampler."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psutil
import pytest
from textual.widgets import Input

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
from marlaas.app.tui.screens import chat
from marlaas.app.tui.screens.chat import ChatScreen
from marlaas.app.tui.screens.dialogs import Ask
from marlaas.engine.home.paths import Home
from marlaas.engine.rollout.talk import Manner, Speech
from marlaas.engine.samplers.sampling import Truncation
from tests.app.driving import Driver, assert_snapshot, driving
from tests.app.filling import HOSTILE, Filling, fill_hostile
from tests.app.filling_adapters import with_silent_adapter

SAID = "Add them up."


class Scripted:
    """Stands in for the thread and its sampler: remembers what it was told, and says what a test lets it say."""

    made: list[Scripted]

    def __init__(
        self, home: Home, sides: Sequence[Side], place: str, tell: Callable[[Event], None], idle: float
    ) -> None:
        self.sides, self.place, self.tell = sides, place, tell
        self.said: list[Message] = []
        self.cancelled = self.closed = 0
        self.made.append(self)

    def run(self) -> None:
        self.tell(
            SamplerNotice(
                "A sampler of its own takes about 0.4 GB of the 9 GB that are free. Your first message starts it."
            )
        )

    def say(self, message: Message) -> None:
        self.said.append(message)

    def cancel(self) -> None:
        self.cancelled += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[Scripted]:
    Scripted.made = []
    monkeypatch.setattr(chat, "ChatThread", Scripted)
    return Scripted.made


async def open_chat(driver: Driver, beside: bool = True) -> ChatScreen:
    with opened(driver.app.home) as reader:
        newest = reader.versions(1)[0]
    screen = ChatScreen([Side(newest), Side()] if beside else [Side(newest)])
    driver.app.push_screen(screen)
    await driver.settle()
    return screen


async def type_and_send(driver: Driver, words: str = SAID) -> None:
    driver.app.screen.query_one("#say", Input).value = words
    await driver.press("enter")


@pytest.mark.parametrize("kind", ["full", "hostile"])
async def test_a_talk(filling: Filling, home: Home, scripted: list[Scripted], kind: str) -> None:
    if kind == "hostile":
        fill_hostile(home.database)
    else:
        filling.engine()
        filling.task("lab", "sums", state="done", made=8)
    async with driving(home, (80, 24)) as driver:
        await open_chat(driver)
        thinking, text = (HOSTILE, f"{HOSTILE}\n" * 40) if kind == "hostile" else ("17 + 4 = 21", "It is 21.")
        await type_and_send(driver, HOSTILE.replace("\x00", "") if kind == "hostile" else SAID)
        scripted[0].tell(PartialReply(0, Speech(text, thinking, 12, "length")))
        scripted[0].tell(PartialReply(1, Speech(), HOSTILE if kind == "hostile" else "The conversation has no room."))
        scripted[0].tell(TurnOver(True))
        scripted[0].tell(SamplerNotice(""))
        await driver.settle()
        assert_snapshot(f"chat-{kind}-80x24", driver.text())


@pytest.fixture
def one(filling: Filling, home: Home) -> Home:
    filling.engine()
    filling.task("lab", "sums", state="done", made=8)
    return home


async def test_one_turn_at_a_time_and_esc_ends_it(one: Home, scripted: list[Scripted]) -> None:
    async with driving(one) as driver:
        screen = await open_chat(driver)
        await type_and_send(driver)
        assert [message.words for message in scripted[0].said] == [SAID]
        await type_and_send(driver, "And now?")
        assert len(scripted[0].said) == 1 and "esc ends it" in driver.notices()
        screen.query_one("#say", Input).value = ""
        await driver.press("escape")
        assert scripted[0].cancelled == 1 and driver.app.screen is screen
        scripted[0].tell(TurnOver(False))
        await driver.settle()
        assert screen.query_one("#say", Input).value == SAID and "(not sent" in driver.text()
        await driver.press("escape")
        assert driver.app.screen is not screen and scripted[0].closed


async def test_settings_count_from_the_next_message(one: Home, scripted: list[Scripted]) -> None:
    async with driving(one) as driver:
        await open_chat(driver, beside=False)
        await driver.press("ctrl+o")
        dialog = driver.app.screen
        assert isinstance(dialog, Ask)
        dialog.query_one("#temperature", Input).value = "hot"
        await driver.press("enter")
        assert driver.app.screen is dialog and "'hot' is no temperature" in driver.text()
        dialog.query_one("#temperature", Input).value = "0.5"
        dialog.query_one("#min-p", Input).value = "2"
        await driver.press("enter")
        assert driver.app.screen is dialog and "'2' is no probability" in driver.text()
        for field, value in (("min-p", "0.1"), ("top-p", "0.9"), ("top-k", "20")):
            dialog.query_one(f"#{field}", Input).value = value
        dialog.query_one("#system", Input).value = "Be kind."
        await driver.press("enter")
        await type_and_send(driver)
        scripted[1].tell(PartialReply(0, Speech("21", "", 2, "stop")))
        scripted[1].tell(TurnOver(True))
        await driver.settle()
        await driver.press("ctrl+y")
        assert driver.app.clipboard == f"# 1@8 · version 8 of task 1 (sums, last)\nyou> {SAID}\n21"
        assert scripted[0].closed and not scripted[0].said
        (message,) = scripted[1].said
        assert (message.manner.temperature, message.system) == (0.5, "Be kind.")
        assert message.manner.truncation == Truncation(20, 0.9, 0.1)


async def test_what_its_task_asked_stands_there_until_it_is_asked(one: Home, scripted: list[Scripted]) -> None:
    async with driving(one) as driver:
        await open_chat(driver, beside=False)
        text = driver.text()
        assert "newest rollout" in text and text.count("17 + 25 = ?") == 2, "once in the line to type in"
        await type_and_send(driver)
        assert "newest rollout" not in driver.text()
        scripted[-1].tell(TurnOver(True))
        await driver.press("ctrl+n")
        assert "newest rollout" in driver.text()
        for sides in (["1@8", "base"], ["1@8"]):
            await driver.press("ctrl+b")
            assert driver.text().count("newest rollout") == 1
            assert [side.label for side in scripted[-1].sides] == sides, "the base comes and goes"
        assert len({made.place for made in scripted}) == len(scripted), "each conversation has noise of its own"


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


@pytest.mark.slow
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
