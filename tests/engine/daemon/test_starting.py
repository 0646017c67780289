"""A long start keeps the engine's heart beating, and can be broken off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.engine.daemon import main as engine
from marlaas.engine.daemon.main import start_up
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import command


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path).create()


@pytest.fixture
def store(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(engine, "START_INTERVAL", 0.01)
    opened = Store(home.database, "tiny", "f" * 16)
    yield opened
    opened.close()


async def test_it_says_that_it_is_starting_for_as_long_as_it_does(store: Store, home: Home) -> None:
    with Reader(home.database) as reader:
        before = reader.engine()

        async def work() -> None:
            while (now := reader.engine()) is None or before is None or now.heartbeat == before.heartbeat:
                await asyncio.sleep(0)

        assert await asyncio.wait_for(start_up(work(), store, lambda: False, lambda: "It waits."), 30)
        after = reader.engine()
    assert after is not None and (after.state, after.note) == ("starting", "It waits.")


@pytest.mark.parametrize("kind", ["stop", "drain"])
async def test_a_command_to_end_ends_the_work(store: Store, home: Home, kind: str) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    command(home.database, kind)
    assert not await start_up(work(), store, lambda: False)
    assert ended.is_set()
    assert not await start_up(asyncio.sleep(3600), store, lambda: True)


async def test_what_the_work_raises_is_raised(store: Store) -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await start_up(work(), store, lambda: False)
