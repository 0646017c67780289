"""Of wishes that come while a thread works, only the newest is worked on."""

from __future__ import annotations

import asyncio
import threading

from textual.app import App, ComposeResult
from textual.screen import Screen
from textual.widgets import Static

from marlaas.app.tui.context.feed import Latest


async def test_the_newest_wish_counts() -> None:
    app: App[None] = App()
    gate, worked, answers = threading.Event(), list[int](), list[int]()

    def work(wish: int) -> int:
        worked.append(wish)
        if wish == 1:
            gate.wait(20)
        return 10 * wish

    async with app.run_test() as pilot:
        latest = Latest(app.screen, work, answers.append)
        latest.ask(1)
        await pilot.pause()
        for wish in (2, 3, 4):
            latest.ask(wish)
        gate.set()
        await app.workers.wait_for_complete()
        assert worked == [1, 4] and answers == [10, 40]
        latest.ask(5)
        await app.workers.wait_for_complete()
        assert answers == [10, 40, 50], "and it can be asked again"


async def test_an_answer_for_nobody_is_dropped() -> None:
    app: App[None] = App()
    begun, gate, answers = threading.Event(), threading.Event(), list[int]()

    def work(wish: int) -> int:
        begun.set()
        gate.wait(20)
        return wish

    async with app.run_test() as pilot:
        Latest(app.screen, work, answers.append).ask(1)
        await pilot.pause()
        begun.wait(20)
    gate.set()
    assert answers == []


class Lingering(Static):
    """Takes its time to go."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = asyncio.Event()

    async def on_unmount(self) -> None:
        await self.may_go.wait()


class Left(Screen[None]):
    """Has lost one of its two widgets for a while before it is gone itself."""

    def compose(self) -> ComposeResult:
        yield Static(id="quick")
        yield Lingering()


async def test_an_answer_for_a_screen_that_is_left_is_dropped() -> None:
    app: App[None] = App()
    gate, told = threading.Event(), list[int]()

    def work(wish: int) -> int:
        gate.wait(20)
        return wish

    async with app.run_test() as pilot:
        screen = Left()
        await app.push_screen(screen)
        lingering = screen.query_one(Lingering)
        Latest(screen, work, told.append).ask(1)
        await pilot.pause()
        app.pop_screen()
        while screen.query("#quick"):
            await asyncio.sleep(0)
        assert screen.is_attached, "it is still being removed"
        gate.set()
        await app.workers.wait_for_complete()
        lingering.may_go.set()
        assert told == []
