"""Who opens the API: settings, people, the engine before; and why it stays closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from marlaas.engine.gateway import processes as module
from marlaas.engine.gateway.api import Api
from marlaas.engine.gateway.limits import Limits
from marlaas.engine.gateway.link import Desk
from marlaas.engine.gateway.processes import Gateways
from marlaas.engine.home.settings import ApiSettings
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import command

pytestmark = pytest.mark.processes
OFF, ON = ApiSettings(port=0), ApiSettings(enabled=True, port=0)


class Bench:
    """An engine's switch without the engine; each ``look`` is one turn of its loop."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.database = folder / "marlaas.db"
        self.log: list[str] = []
        self.desk: Desk = Desk(store.api.key, store.api.add_use, lambda kind, text, level: self.log.append(text))
        self.gateways = Gateways(self.desk, Limits(), folder / "gateway.log")

    async def look(self, settings: ApiSettings, *asked: str, **arguments: int) -> Api:
        """An engine with these settings starts, and then hears these commands."""
        switch = Api(self.store, settings, self.gateways)
        await switch._look()
        for kind in asked:
            await self.ask(switch, kind, **arguments)
        return switch

    async def ask(self, switch: Api, kind: str, **arguments: int) -> str:
        """The outcome of a command."""
        number = command(self.database, kind, **arguments)
        await switch._look()
        with Reader(self.database) as reader:
            return reader.command_outcomes([number])[number]

    @property
    def open(self) -> bool:
        """Whether clients are answered, as everybody sees it."""
        assert self.store.api.state().open is self.desk.open
        return self.desk.open


@pytest.fixture
async def bench(store: Store, tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(store, tmp_path)
    yield bench
    await bench.gateways.stop()


async def test_it_opens_as_the_settings_say(bench: Bench) -> None:
    await bench.look(OFF)
    assert not bench.open and "clients" not in bench.gateways.running
    switch = await bench.look(ON)
    assert bench.open and bench.log == [f"The API is open to clients at {bench.store.api.state().url}."]
    await switch.stop()
    assert not bench.open and bench.store.api.state().switched is None


async def test_what_people_ask_goes_before_the_settings(bench: Bench) -> None:
    switch = await bench.look(OFF, "api_start")
    assert bench.open
    url = bench.store.api.state().url
    assert await bench.ask(switch, "api_start") == "" and bench.store.api.state().url == url
    await switch.stop()
    switch = await bench.look(OFF)
    assert bench.open, "it was open when the engine before ended"
    await bench.ask(switch, "api_stop")
    assert not bench.open and "clients" not in bench.gateways.running
    await bench.look(ON)
    assert not bench.open


async def test_a_command_from_before_the_engine_is_heard(bench: Bench) -> None:
    command(bench.database, "api_start", port=0)
    switch = await bench.look(OFF)
    assert bench.open and await bench.ask(switch, "api_stop") == ""
    bench.store.api.tell(True, "http://127.0.0.1:1")  # an engine that was killed has said so
    await bench.look(OFF)
    assert not bench.open


async def test_it_moves_to_another_port(bench: Bench, unused_port: int) -> None:
    switch = await bench.look(ON)
    before = bench.store.api.state().url
    assert await bench.ask(switch, "api_start", port=unused_port) == ""
    assert bench.store.api.state().url.endswith(f":{unused_port}") != before.endswith(f":{unused_port}")
    assert await bench.ask(switch, "api_start") == "" and bench.store.api.state().port == unused_port


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


async def test_why_it_stays_closed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEEDS", ("no_such_library",))
    switch = await bench.look(ON)
    assert not bench.open and "pip install 'marlaas[api]'" in bench.store.api.state().note and len(bench.log) == 1
    assert "no_such_library" in await bench.ask(switch, "api_start") and bench.store.api.state().switched is None


async def test_other_machines_need_a_key(bench: Bench, request: pytest.FixtureRequest) -> None:
    everywhere = ApiSettings(enabled=True, listen="0.0.0.0", port=0)
    switch = await bench.look(everywhere)
    assert not bench.open and "there is no key yet" in bench.store.api.state().note
    request.getfixturevalue("key")
    assert await bench.ask(switch, "api_start") == "" and bench.open
    assert bench.store.api.state().note == ""


async def test_the_loop_goes_on_until_cancelled(bench: Bench) -> None:
    running = asyncio.create_task(Api(bench.store, ON, bench.gateways).run())
    while not bench.desk.open:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
