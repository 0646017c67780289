"""The chat pane: one message to all sides, answers as they come, and one turn at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from textual.widgets import Input

from marlaas.app.reading import opened
from marlaas.app.tui.chat.talking import Event, Message, PartialReply, SamplerNotice, Side, TurnOver
from marlaas.app.tui.screens import chat
from marlaas.app.tui.screens.chat import ChatScreen
from marlaas.app.tui.screens.dialogs import Ask
from marlaas.engine.home.paths import Home
from marlaas.engine.rollout.talk import Speech
from marlaas.engine.samplers.sampling import Truncation

from ...driving import Driver, assert_snapshot, driving, looks
from ...filling import HOSTILE, Filling, fill_hostile

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


@pytest.mark.parametrize(("kind", "size"), looks(["empty", "full", "hostile"]))
async def test_a_talk(filling: Filling, home: Home, scripted: list[Scripted], kind: str, size: tuple[int, int]) -> None:
    if kind == "hostile":
        fill_hostile(home.database)
    else:
        filling.engine()
        filling.task("lab", "sums", state="done", made=8)
    async with driving(home, size) as driver:
        await open_chat(driver)
        if kind != "empty":
            thinking, text = (HOSTILE, f"{HOSTILE}\n" * 40) if kind == "hostile" else ("17 + 4 = 21", "It is 21.")
            await type_and_send(driver, HOSTILE.replace("\x00", "") if kind == "hostile" else SAID)
            scripted[0].tell(PartialReply(0, Speech(text, thinking, 12, "length")))
            scripted[0].tell(
                PartialReply(1, Speech(), HOSTILE if kind == "hostile" else "The conversation has no room.")
            )
            scripted[0].tell(TurnOver(True))
            scripted[0].tell(SamplerNotice(""))
            await driver.settle()
        assert_snapshot(f"chat-{kind}-{size[0]}x{size[1]}", driver.text())


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


@pytest.mark.parametrize("beside", [True, False])
async def test_what_its_task_asked_stands_there_until_it_is_asked(
    one: Home, scripted: list[Scripted], beside: bool
) -> None:
    async with driving(one) as driver:
        await open_chat(driver, beside)
        assert "newest rollout" in driver.text() and driver.text().count("17 + 25 = ?") == 2, (
            "once in the line to type in"
        )
        await type_and_send(driver)
        assert "newest rollout" not in driver.text()
        scripted[-1].tell(TurnOver(True))
        await driver.press("ctrl+n")
        assert "newest rollout" in driver.text()
        await driver.press("ctrl+b")
        assert driver.text().count("newest rollout") == 1


async def test_the_base_comes_and_goes(one: Home, scripted: list[Scripted]) -> None:
    async with driving(one) as driver:
        await open_chat(driver, beside=False)
        await driver.press("ctrl+b")
        assert [side.label for side in scripted[-1].sides] == ["1@8", "base"]
        await driver.press("ctrl+b")
        assert [side.label for side in scripted[-1].sides] == ["1@8"]
        assert len({made.place for made in scripted}) == 3, "each conversation has noise of its own"
