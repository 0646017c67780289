"""The list of any length: what it draws, what it reads, where its cursor goes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.content import Content
from textual.pilot import Pilot

from marlaas.app.lists.filters import Listing
from marlaas.app.tui.widgets import tables
from marlaas.app.tui.widgets.tables import PAGE, VirtualList
from marlaas.engine.errors import StoreError
from marlaas.engine.store.queries.reader import Reader

from ...resting import known_threads, pilots_know_rest, rest


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


async def test_a_cursor_at_the_edge_follows_what_is_new() -> None:
    async with listed([2, 1], follow="first") as driver:
        await driver.show([3, 2, 1])
        assert driver.list.current == 3 and driver.app.said[-1] == "moved 3"
        await driver.press("j")
        await driver.show([4, 3, 2, 1])
        assert driver.list.current == 2
    async with listed([1, 2], follow="last", height=2) as driver:
        assert driver.list.current == 2
        await driver.show([1, 2, 3, 4])
        assert driver.list.current == 4 and driver.lines() == ["  row [/3]", "▸ row [/4]"]


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


async def test_what_is_gone_and_what_cannot_be_read_is_said() -> None:
    async with listed([1, -5]) as driver:
        assert driver.lines()[1] == "  gone"
        driver.disk.broken = True
        await driver.show([1, 2, -5])
        assert "cannot be read" in driver.lines()[1] and driver.lines()[0] == "▸ row [/1]"
        driver.disk.broken = False
        driver.list.show(Listing([1, 2, -5], lambda reader, ids: {key: str(1 // 0) for key in ids}))
        await driver.settle()
        assert "ZeroDivis" in driver.lines()[1]
        await driver.show([1, 2, -5])
        assert driver.lines()[1] == "  row [/2]"


async def test_another_stamp_reads_anew() -> None:
    async with listed([1, 2]) as driver:
        await driver.show([1, 2])
        assert len(driver.disk.reads) == 1
        await driver.show([1, 2], stamp=1)
        assert len(driver.disk.reads) == 2


async def test_a_click_moves_and_two_open() -> None:
    async with listed([1, 2, 3]) as driver:
        await driver.pilot.click(Words, offset=(4, 2), times=2)
        await driver.settle()
        assert driver.app.said[-2:] == ["moved 3", "opened 3"]


async def test_rows_looked_at_last_are_kept_and_marked_ones_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "KEPT", 3 * PAGE)
    async with listed(range(100_000)) as driver:

        async def pages_read(page: int) -> int:
            """How many pages are read to go into the middle of this one."""
            before = len(driver.disk.reads)
            driver.list.go(page * PAGE + PAGE // 2)
            await driver.settle()
            assert "  …" not in driver.lines()
            return len(driver.disk.reads) - before

        await driver.press("space")
        assert [await pages_read(page) for page in (10, 20, 10, 30, 40, 10, 50, 10, 20)] == [1, 1, 0, 1, 1, 0, 1, 0, 1]
        rows = driver.list.rows()
        assert rows[0] == "row [/0]" and len(rows) == 3 * PAGE + 1
