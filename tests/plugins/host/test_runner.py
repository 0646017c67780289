"""One episode in its process: how it ends where the machine, and not the environment, was to blame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.plugins import Environment, Episode, env, sandbox
from marlaas.plugins.host.blame import Blame
from marlaas.plugins.host.channel import Record
from marlaas.plugins.host.process import PluginHost
from marlaas.plugins.host.runner import Run
from marlaas.plugins.host.threads import Late
from marlaas.plugins.messages import Ask, Endpoint, Reply
from marlaas.plugins.sandbox import Starved


class Host:
    """Nobody answers, and the end is kept."""

    def __init__(self) -> None:
        self.blame = Blame(Path(__file__).parent)
        self.asked = asyncio.Event()
        self.end: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self.given_up = False
        self.late: Late | None = None
        self.finals: list[Record] = []

    def send_ask(self, run: Run, ask: Ask) -> asyncio.Future[Reply]:
        self.asked.set()
        return asyncio.get_running_loop().create_future()

    async def open_endpoint(self, run: Run) -> Endpoint:
        return Endpoint("http://127.0.0.1:1/v1", "key")

    async def row(self, environment: Environment, start: Record) -> Any:
        raise NotImplementedError

    async def player(self, environment: Environment) -> Callable[..., Any]:
        assert self.late is not None
        raise self.late

    def send_final(self, run: Run, record: Record) -> None:
        self.finals.append(record)

    def ended(self, run: Run, record: Record) -> None:
        self.end.set_result(record)

    def give_up(self, run: Run) -> None:
        self.given_up = True


def started(environment: Environment) -> tuple[Host, Run]:
    host = Host()
    start = {"episode": 1, "split": "train", "index": 0, "seed": 0, "member": 0, "config": {}, "timeout": None}
    return host, Run(cast(PluginHost, host), start, environment)


@env
async def asks(ep: Episode) -> float:
    await ep.ask("x")
    return 1.0


@pytest.mark.parametrize(("overloaded", "says"), [(True, "busy"), (False, "longer than 60 s")])
async def test_what_ended_by_the_wall_limit_is_marked(overloaded: bool, says: str) -> None:
    host, run = started(asks)
    await host.asked.wait()
    run.expire(overloaded)
    end = await host.end
    assert (end["status"], end.get("overloaded", False)) == ("timeout", overloaded)
    assert says in end["failure"]["message"] and end["failure"]["file"] == "test_runner.py"


@env
class Sets:
    async def play(self, ep: Episode) -> float:
        return 1.0


@pytest.mark.parametrize("overloaded", [True, False])
async def test_a_late_set_up_may_be_the_machines_fault(overloaded: bool) -> None:
    host, _ = started(cast(Environment, Sets))
    host.late = Late("the set-up took longer than 60 s", overloaded)
    end = await host.end
    assert (end["status"], end.get("overloaded", False)) == ("timeout", overloaded)


@pytest.mark.parametrize("kept", [True, False], ids=["swallowed", "raised"])
async def test_a_starved_program_is_no_verdict(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def starved(*_: Any) -> Any:
        raise Starved("too busy")

    monkeypatch.setattr(sandbox, "_run", starved)

    @env
    async def coding(ep: Episode) -> float:
        try:
            return float((await ep.sandbox.python("")).ok)
        except BaseException:
            if not kept:
                raise
        return 0.0

    host, _ = started(coding)
    end = await host.end
    assert end["status"] == "timeout" and end["overloaded"] and "rewards" not in end
    assert "busy" in end["failure"]["message"]


@pytest.mark.usefixtures("watched")
async def test_an_episode_that_ignores_its_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.plugins.host.runner.GRACE", 0.0)
    go = asyncio.Event()

    @env
    async def stubborn(ep: Episode) -> float:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return 1.0

    host, run = started(stubborn)
    await asyncio.sleep(0)
    run.cancel()
    while not host.given_up:
        await asyncio.sleep(0)
    go.set()
    assert (await host.end)["status"] == "ok"


@pytest.mark.usefixtures("watched")
async def test_an_episode_that_asks_again_after_its_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.plugins.host.runner.GRACE", 0.01)
    asked = 0

    @env
    async def asks_again(ep: Episode) -> float:
        nonlocal asked
        while True:
            asked += 1
            try:
                await ep.ask("x")
            except asyncio.CancelledError:
                if asked > 1:
                    raise

    host, run = started(asks_again)
    await host.asked.wait()
    run.cancel()
    while not host.given_up:
        await asyncio.sleep(0.001)
    assert asked == 2 and not run.task.done(), "it waits for a reply"
    run.cancel()
    assert (await host.end)["status"] == "cancelled"


async def test_no_traceback_is_written_of_a_cancelled_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds are cancelled at once."""
    host, run = started(asks)
    monkeypatch.setattr(Blame, "of", lambda *_: pytest.fail("a traceback was written"))
    await host.asked.wait()
    run.cancel()
    end = await host.end
    assert end["status"] == "cancelled" and "failure" not in end
