"""Instances of the class form in one process: set up once, timed, tried again, closed."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from marlaas.plugins import Environment, env
from marlaas.plugins.host import meter, threads as instances
from marlaas.plugins.host.blame import Blame
from marlaas.plugins.host.meter import LIMITS
from marlaas.plugins.host.threads import Instances, Late
from marlaas.plugins.sandbox_supervisor import wall_limit

told: list[str] = []


class Base:
    async def play(self, ep: Any) -> float:
        return 1.0


def declared(form: type, timeout: float = 60.0) -> Environment:
    return env(name=form.__name__.lower(), timeout=timeout)(form)


@pytest.fixture(autouse=True)
def untold() -> None:
    told.clear()


async def test_one_instance_plays_all_episodes() -> None:
    class Counter(Base):
        def __init__(self) -> None:
            told.append("made")

        def setup(self) -> None:
            told.append("set up" if threading.current_thread() is not threading.main_thread() else "in the loop")
            self.number = 7

        async def play(self, ep: Any) -> float:
            self.number += 1
            return self.number

        async def close(self) -> None:
            told.append(f"closed at {self.number}")

    held = Instances()
    players = await asyncio.gather(*(held.player(declared(Counter)) for _ in range(3)))
    assert [await player(None) for player in players] == [8, 9, 10]
    await held.close()
    assert told == ["made", "set up", "closed at 10"]


async def test_a_set_up_that_fails_is_tried_again_next_episode() -> None:
    class Fails(Base):
        async def setup(self) -> None:
            told.append("tried")
            if len(told) < 3:
                raise SystemExit("not yet")

    held = Instances()

    async def failure() -> str:
        try:
            await held.player(declared(Fails))
        except SystemExit as error:  # which no task may raise
            return str(error)
        return ""

    for _ in range(2):
        assert await asyncio.gather(*(failure() for _ in range(4))) == ["not yet"] * 4
    assert await (await held.player(declared(Fails)))(None) == 1.0 and told == ["tried"] * 3
    await held.close()


@pytest.mark.usefixtures("watched")
async def test_a_late_set_up_says_where_it_stood() -> None:
    class Slow(Base):
        async def setup(self) -> None:
            await asyncio.Future()

    with pytest.raises(Late, match=r"the set-up of slow took longer than 0\.01 s") as caught:
        await Instances().player(declared(Slow, timeout=0.01))
    record = Blame(Path(__file__).parent).of(caught.value)
    assert record["file"] == "test_instances.py" and record["line"] > 0
    assert not caught.value.overloaded


async def test_a_set_up_that_the_wall_limit_ends_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Base):
        async def setup(self) -> None:
            await asyncio.Future()

    before = LIMITS.copy()  # of earlier tests in this process
    making = asyncio.create_task(Instances().player(declared(Slow)))
    while not (limits := LIMITS - before):
        await asyncio.sleep(0)
    later = time.monotonic() + wall_limit(60.0)
    monkeypatch.setattr(meter, "monotonic", lambda: later)
    limits.pop().end()
    with pytest.raises(Late) as caught:
        await making
    assert caught.value.overloaded


@pytest.mark.usefixtures("watched")
async def test_a_set_up_that_will_not_end_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "_GRACE", 0.01)
    go = asyncio.Event()

    class Stubborn(Base):
        async def setup(self) -> None:
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    told.append("cancelled")

    with pytest.raises(Late):
        await Instances().player(declared(Stubborn, timeout=0.01))
    assert told == ["cancelled"]
    go.set()


async def test_an_episode_that_ends_meanwhile_does_not_end_the_set_up() -> None:
    go = asyncio.Event()

    class Shared(Base):
        async def setup(self) -> None:
            await go.wait()

    held = Instances()
    first, second = (asyncio.create_task(held.player(declared(Shared))) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    go.set()
    assert await (await second)(None) == 1.0


async def test_what_goes_wrong_in_closing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    class Sour(Base):
        def close(self) -> None:
            raise OSError("the line is dead")

    held = Instances()
    await held.player(declared(Sour))
    await held.close()
    assert "OSError: the line is dead" in capsys.readouterr().err
