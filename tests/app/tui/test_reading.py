"""What the application reads: the feed, the newest wish, and lists of any length."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.content import Content
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Static

from marlaas.app.lists.filters import Listing
from marlaas.app.tui.context.feed import Feed, Latest
from marlaas.app.tui.widgets.tables import PAGE, VirtualList
from marlaas.engine.errors import StoreError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from tests.app.filling import NOW, Filling
from tests.app.resting import known_threads, pilots_know_rest, rest


@pytest.fixture
def feed(home: Home) -> Iterator[Feed]:
    feed = Feed(home, clock=lambda: NOW)
    yield feed
    feed.close()


def test_nothing_is_read_twice(feed: Feed, filling: Filling) -> None:
    filling.task(made=3)
    first, second = feed.poll(), feed.poll()
    assert second.tasks is first.tasks
    filling.execute("UPDATE tasks SET state = 'paused'")
    third = feed.poll()
    assert third.tasks[0].state == "paused" and third.courses[1] is first.courses[1]


def test_a_damaged_database_is_a_problem_that_passes(feed: Feed, filling: Filling, home: Home) -> None:
    filling.task(made=3)
    good = feed.poll()
    whole = home.database.read_bytes()
    replace(home.database, b"this is no database" * 1000)
    bad = feed.poll()
    assert "cannot be read" in bad.problem and bad.tasks == good.tasks
    replace(home.database, whole)
    assert feed.poll().problem == ""


def test_a_database_that_has_gone_is_missed(feed: Feed, filling: Filling, home: Home) -> None:
    filling.task(made=3)
    feed.poll()
    home.database.unlink()
    gone = feed.poll()
    assert "has gone" in gone.problem and gone.tasks == ()
    Filling(home.database)
    assert feed.poll().problem == ""


def replace(path: Path, content: bytes) -> None:
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    path.write_bytes(content)


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


class Disk:
    """A store that counts what is read of it."""

    def __init__(self) -> None:
        self.reads: list[Sequence[int]] = []
        self.broken = False
        self.slow = Event()
        self.slow.set()

    def __call__(self) -> Any:
        return self

    def __enter__(self) -> Disk:
        if self.broken:
            raise StoreError("The database cannot be read: disk I/O error.")
        return self

    def __exit__(self, *unused: object) -> None:
        pass

    def read(self, reader: Reader, ids: Sequence[int]) -> Mapping[int, str]:
        self.slow.wait(10)
        self.reads.append(ids)
        return {key: f"row [/{key}]" for key in ids if key >= 0}


class Words(VirtualList[str]):
    def row_text(self, row: str, width: int, below: bool = False) -> Content:
        return Content(row)


class Listed(App[None]):
    def __init__(self, disk: Disk, follow: str) -> None:
        super().__init__()
        self.list = Words(disk, follow=follow)
        self.said: list[str] = []

    def compose(self) -> ComposeResult:
        yield self.list

    def on_virtual_list_moved(self, message: VirtualList.Moved) -> None:
        self.said.append(f"moved {message.id}")

    def on_virtual_list_opened(self, message: VirtualList.Opened) -> None:
        self.said.append(f"opened {message.id}")


class Driver:
    def __init__(self, app: Listed, pilot: Pilot[None], disk: Disk) -> None:
        self.app, self.pilot, self.disk, self.list = app, pilot, disk, app.list

    async def show(self, ids: Sequence[int], stamp: int = 0, anew: bool = False) -> None:
        self.list.show(Listing(ids, self.disk.read, stamp), anew=anew)
        await self.settle()

    async def settle(self) -> None:
        await self.pilot.pause()
        await rest(self.app)

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
        await self.settle()

    def lines(self) -> list[str]:
        return [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]


@asynccontextmanager
async def listed(ids: Sequence[int], follow: str = "", height: int = 10) -> AsyncIterator[Driver]:
    disk = Disk()
    app = Listed(disk, follow)
    known_threads()
    with pilots_know_rest(app):
        async with app.run_test(size=(40, height)) as pilot:
            driver = Driver(app, pilot, disk)
            await driver.show(ids)
            yield driver


async def test_reads_the_page_in_sight_and_no_other() -> None:
    async with listed(range(100_000)) as driver:
        assert driver.lines()[:2] == ["▸ row [/0]", "  row [/1]"]
        assert [list(ids) for ids in driver.disk.reads] == [list(range(PAGE))]
        await driver.press("G")
        assert driver.lines()[-1] == "▸ row [/99999]" and driver.app.said[-1] == "moved 99999"
        assert len(driver.disk.reads) <= 3 and sum(map(len, driver.disk.reads)) <= 3 * PAGE
        await driver.press("pageup", "k", "g")
        assert driver.list.cursor == 0 and len(driver.disk.reads) <= 4


async def test_a_slow_disk_holds_up_no_key() -> None:
    async with listed([]) as driver:
        driver.disk.slow = Event()
        driver.list.show(Listing(range(100_000), driver.disk.read))
        await driver.pilot.press("G", "k")
        assert driver.lines()[-2:] == ["▸ …", "  …"] and driver.app.said[-1] == "moved 99998"
        driver.disk.slow.set()
        await driver.settle()
        assert driver.lines()[-2:] == ["▸ row [/99998]", "  row [/99999]"]
        assert len(driver.disk.reads) == 2  # what was in sight when it was asked, and what is in sight


async def test_the_cursor_stays_on_its_row_when_others_come() -> None:
    async with listed([30, 20, 10]) as driver:
        await driver.press("j")
        await driver.show([50, 40, 30, 20, 10])
        assert driver.list.current == 20 and driver.list.cursor == 3
        await driver.show([50, 40, 10])
        assert driver.list.current == 10
        await driver.show([7, 8], anew=True)
        assert driver.list.current == 7
        await driver.show([])
        assert driver.list.current is None and driver.list.chosen == []


async def test_marks_belong_to_rows_and_go_with_them() -> None:
    async with listed([3, 2, 1]) as driver:
        assert driver.list.chosen == [3]
        await driver.press("space", "space")
        await driver.show([9, 3, 2, 1])
        assert driver.list.chosen == [3, 2] and driver.lines()[1] == " •row [/3]"
        await driver.show([2, 1])
        assert driver.list.chosen == [2]
        await driver.press("enter")
        assert driver.app.said[-1] == "opened 1"
