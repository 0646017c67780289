"""The API as processes on real ports: who opens it, how gateways are shared and started again, and its figures."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.gateway import api as module
from marlaas.engine.gateway.api import Api, Gateways
from marlaas.engine.gateway.figures import NAMES, Counted, FigureReader, counted, figures as figure_rows
from marlaas.engine.gateway.limits import Limits
from marlaas.engine.gateway.link import Desk
from marlaas.engine.home.settings import ApiSettings
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import command

from ...app.filling import Filling
from ...app.filling_api import fill_api
from .answering import Echo

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


@pytest.mark.processes
async def test_what_people_ask_goes_before_the_settings(bench: Bench) -> None:
    command(bench.database, "api_start", port=0)
    switch = await bench.look(OFF)
    assert bench.open, "a command from before the engine is heard"
    url = bench.store.api.state().url
    assert await bench.ask(switch, "api_start") == "" and bench.store.api.state().url == url
    await switch.stop()
    switch = await bench.look(OFF)
    assert bench.open, "it was open when the engine before ended"
    await bench.ask(switch, "api_stop")
    assert not bench.open and "clients" not in bench.gateways.running
    bench.store.api.tell(True, url)  # an engine that was killed has written so
    await bench.look(ON)
    assert not bench.open


@pytest.mark.processes
async def test_why_it_stays_closed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEEDS", ("no_such_library",))
    switch = await bench.look(ON)
    assert not bench.open and "pip install 'marlaas[api]'" in bench.store.api.state().note and len(bench.log) == 1
    assert "no_such_library" in await bench.ask(switch, "api_start") and bench.store.api.state().switched is None


@pytest.mark.processes
async def test_other_machines_need_a_key(bench: Bench, request: pytest.FixtureRequest) -> None:
    everywhere = ApiSettings(enabled=True, listen="0.0.0.0", port=0)
    switch = await bench.look(everywhere)
    assert not bench.open and "there is no key yet" in bench.store.api.state().note
    request.getfixturevalue("key")
    assert await bench.ask(switch, "api_start") == "" and bench.open
    assert bench.store.api.state().note == ""


@pytest.fixture
async def gateways(desk: Desk, tmp_path: Path) -> AsyncIterator[Gateways]:
    made = Gateways(desk, Limits(log=str(tmp_path / "api.log")), tmp_path / "gateway.log")
    yield made
    await made.stop()


async def ask(url: str, key: str, text: str = "hello there", retry: int | None = None) -> tuple[int, str]:
    """The status and the words of an answer; ``retry`` is what OpenAI's client says of its tries."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
    head += "" if retry is None else f"x-stainless-retry-count: {retry}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    top, _, rest = answer.partition(b"\r\n\r\n")
    status = int(top.split(b" ")[1]) if top else 0
    return status, json.loads(rest)["choices"][0]["message"]["content"] if status == 200 else ""


@pytest.mark.processes
async def test_a_killed_gateway_comes_back_at_its_port(gateways: Gateways, desk: Desk, log: list[str]) -> None:
    slow, endpoints = Echo(), gateways
    slow.go.clear()
    address, other = await endpoints.open(slow), await endpoints.open(Echo())
    under_way = asyncio.create_task(ask(address.url, address.key))
    await slow.begun.wait()
    gateway = gateways.running["episodes"]
    assert gateway.pid is not None
    os.kill(gateway.pid, signal.SIGKILL)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError, IndexError, ValueError)):
        status, _ = await under_way
        if not status:
            raise ConnectionError
    assert await ask(other.url, other.key) == (200, "hello there")
    assert slow.ended == ["cancelled"] and "was ended by signal SIGKILL; it is started again." in log[0]


@pytest.mark.processes
async def test_a_port_that_is_taken(gateways: Gateways) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="another program has this port"):
            await gateways.start("clients", "127.0.0.1", port)
        waits = asyncio.create_task(gateways.start("clients", "127.0.0.1", port, patience=20.0))
        await asyncio.sleep(0)
    assert (await waits).url.endswith(f":{port}")


@pytest.mark.processes
async def test_clients_and_episodes_have_one_each(gateways: Gateways, desk: Desk) -> None:
    clients = await gateways.start("clients", "0.0.0.0", 0)
    assert await gateways.start("clients", "0.0.0.0", 0) is clients
    assert (await ask(clients.url, "tml-ada-wrong"))[0] == 401
    address = await gateways.open(Echo())
    assert (await gateways.open(Echo())).url == address.url != clients.url
    assert address.url.startswith("http://127.0.0.1:"), "other machines do not reach episodes"
    await gateways.stop("clients")
    with pytest.raises(ConnectionRefusedError):
        await ask(clients.url, address.key)
    assert await ask(address.url, address.key) == (200, "hello there"), "episodes go on"


def figures(known: Counted, ledger: Ledger) -> dict[str, float]:
    """By name and labels."""
    rows = list(figure_rows(known, ledger))
    table = {
        " ".join([name, *(f"{label}={value}" for label, value in has.items())]): number for name, has, number in rows
    }
    assert len(table) == len(rows), "each is there once"
    return table


def worked() -> Ledger:
    """Two samplers and a trainer that did something."""
    ledger = Ledger()
    ledger.rollout(1, 100, 20, "rollout-2")
    ledger.rollout_seconds(1.5, "rollout-2")
    ledger.environment(1, 0.25)
    ledger.training(1, 400, 2.0)
    return ledger


def filled(path: Path) -> Filling:
    filling = fill_api(path)
    filling.task("bio", "waits", state="blocked")
    for begun, busy in ((10.0, 0.1), (11.0, 0.75)):
        filling.insert(
            "stages", incarnation=1, stage="rollout", device="cpu", begun=begun, wall=1.0, busy=busy, waiting=2.0,
            active=8.0, ended=3, tokens=90,
        )  # fmt: skip
    for day in ("2026-11-21", "2026-11-22"):
        filling.insert("usage", day=day, task=2, stage="training", tokens=1000, seconds=2.5)
    return filling


def test_what_the_store_and_the_ledger_count(tmp_path: Path) -> None:
    rows = figures(counted(filled(tmp_path / "marlaas.db").path), worked())
    assert (
        rows.items()
        >= {
            "engine_info base=tiny sampler= version=": 1,
            "stage_busy_ratio stage=rollout": 0.75,  # of the newest second
            "stage_waiting stage=rollout": 2,
            "stage_active stage=rollout": 8,
            "tasks state=blocked": 1,
            "tasks state=running": 1,
            "tenant_tokens_total tenant=bio stage=training": 2000,
            "tenant_seconds_total tenant=bio stage=training": 5,
            "tenant_steps tenant=bio": 60,
            "versions state=committed": 5,
            "api_keys state=valid": 2,
            "api_keys state=revoked": 1,
            "api_requests_total tenant=physics-lab": 1211,
            "api_tokens_total tenant=physics-lab direction=in": 1_235_467,
            "api_tokens_total tenant=physics-lab direction=out": 310_302,
            "worker_busy_seconds_total stage=rollout worker=rollout-2": 1.5,
            "worker_tokens_total stage=rollout worker=rollout-2": 20,
            "worker_tokens_total stage=training worker=training": 400,
            "worker_ended_total stage=environment worker=environment": 1,
        }.items()
    )


def test_the_docs_have_each_of_them(tmp_path: Path) -> None:
    known = counted(filled(tmp_path / "marlaas.db").path)
    assert {total.what for total in known.totals} == NAMES.keys()
    page = (Path(__file__).parents[3] / "docs" / "operations" / "monitoring.md").read_text("utf-8")
    for name, labels, _ in figure_rows(known, worked()):
        (row,) = [line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line]
        assert row.split("|")[2].strip() == ", ".join(labels)


async def test_the_store_is_read_once_a_second_if_it_can_be_read(tmp_path: Path) -> None:
    filling, now = filled(tmp_path / "marlaas.db"), [0.0]
    reader = FigureReader(filling.path, Ledger(), lambda: now[0])
    first = await reader.rows()
    filling.execute("UPDATE tasks SET state = 'done'")
    assert await reader.rows() == first
    now[0] = 1.0
    second = await reader.rows()
    assert ("tasks", {"state": "done"}, 3) in second
    filling.path.rename(tmp_path / "elsewhere.db")
    now[0] = 9.0
    assert await reader.rows() == second, "the last ones are shown while it cannot be read"
