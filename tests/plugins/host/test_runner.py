"""One episode in its process: how it ends where the machine, and not the environment, was to blame."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.plugins import Environment, Episode, env, sandbox
from marlaas.plugins.host import meter
from marlaas.plugins.host.blame import Blame, may_pay
from marlaas.plugins.host.channel import Record
from marlaas.plugins.host.meter import (
    LIMITS,
    EpisodeThreads,
    Instances,
    Late,
    OwnTime,
    Stopped,
    charged,
    ended,
    in_thread,
)
from marlaas.plugins.host.process import PluginHost, Run, Running, ScoringRun
from marlaas.plugins.messages import Ask, Endpoint, Reply
from marlaas.plugins.rewards import Skip
from marlaas.plugins.sandbox import Starved
from marlaas.plugins.sandbox_supervisor import wall_limit
from tests.loading import load


class Host:
    """Nobody answers, and the end is kept."""

    def __init__(self) -> None:
        self.blame = Blame(Path(__file__).parent)
        self.asked = asyncio.Event()
        self.end: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self.given_up = False
        self.finals: list[Record] = []

    def send_ask(self, run: Run, ask: Ask) -> asyncio.Future[Reply]:
        self.asked.set()
        return asyncio.get_running_loop().create_future()

    async def open_endpoint(self, run: Run) -> Endpoint:
        return Endpoint("http://127.0.0.1:1/v1", "key")

    async def row(self, environment: Environment, start: Record) -> Any:
        raise NotImplementedError

    async def player(self, environment: Environment) -> Callable[..., Any]:
        raise NotImplementedError

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
    monkeypatch.setattr("marlaas.plugins.host.process.GRACE", 0.0)
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
    monkeypatch.setattr("marlaas.plugins.host.process.GRACE", 0.01)
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


told: list[str] = []


class Base:
    async def play(self, ep: Any) -> float:
        return 1.0


def declared(form: type, timeout: float = 60.0) -> Environment:
    return env(name=form.__name__.lower(), timeout=timeout)(form)


@pytest.fixture
def untold() -> None:
    told.clear()


@pytest.mark.usefixtures("untold")
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


@pytest.mark.usefixtures("untold")
@pytest.mark.usefixtures("watched")
async def test_a_set_up_that_will_not_end_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "_GRACE", 0.01)
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


@pytest.mark.usefixtures("untold")
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


@pytest.mark.usefixtures("untold")
async def test_what_goes_wrong_in_closing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    class Sour(Base):
        def close(self) -> None:
            raise OSError("the line is dead")

    held = Instances()
    await held.player(declared(Sour))
    await held.close()
    assert "OSError: the line is dead" in capsys.readouterr().err


PROGRAM = """
import asyncio, os, sys
from concurrent.futures import ThreadPoolExecutor
from marlaas.plugins.host.meter import in_thread

async def told_to_end_while_it_starts_others():
    loop, begun = asyncio.get_running_loop(), asyncio.Event()

    def episode():
        with ThreadPoolExecutor(8) as pool:
            for _ in range(8):
                pool.submit(loop.call_soon_threadsafe, begun.set)

    playing = asyncio.create_task(in_thread(episode))
    await begun.wait()
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)

async def main():
    for _ in range(50):
        await told_to_end_while_it_starts_others()
    with ThreadPoolExecutor(1) as pool:
        print(pool.submit(lambda: "goes on").result(), flush=True)

sys.setswitchinterval(1e-6)  # threads take turns all the time, as on a busy machine
asyncio.run(main())
os._exit(0)
"""


@pytest.mark.processes
async def test_only_threads_of_ended_episodes_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "LEFT_AFTER", -1.0)
    go, loop, before = threading.Event(), asyncio.get_running_loop(), meter.left_behind()
    usages = [OwnTime(60, lambda wall: None) for _ in range(8)]
    executor = EpisodeThreads()
    loop.set_default_executor(executor)

    async def plain() -> None:
        await in_thread(go.wait)

    async def aside() -> None:
        await asyncio.to_thread(go.wait)

    episodes = [charged(plain() if number % 2 else aside(), usage) for number, usage in enumerate(usages)]
    while not all(usage.threads for usage in usages):
        await asyncio.sleep(0)
    assert meter.left_behind() == before, "they are under way"
    for usage in usages[:4]:
        ended(usage)
    assert meter.left_behind() == before + 4
    go.set()
    await asyncio.gather(*episodes)
    assert meter.left_behind() == before
    executor.shutdown()


@pytest.mark.processes
def test_threads_can_start_after_episodes_were_ended() -> None:
    """Where a thread that was just started ended in place of its starter, the last line waited for ever."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    # coverage traces threads by functions in which an exception from outside would leave its lock taken
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.stdout == "goes on\n", ended.stderr


def led_to(error: BaseException, then: BaseException) -> BaseException:
    """``then``, raised while ``error`` was handled."""
    then.__context__ = error
    return then


@pytest.mark.parametrize(
    ("error", "paid"),
    [
        (ValueError("no number"), True),
        (RecursionError(), True),
        (OSError(errno.ENOENT, "no such file"), True),
        (led_to(KeyError("x"), ValueError("no number")), True),
        (ExceptionGroup("both", [ValueError(), KeyError()]), True),
        (Skip(), False),
        (SystemExit(), False),
        (Stopped(), False),
        (Late(), False),
        (MemoryError(), False),
        (TimeoutError(), False),
        (subprocess.TimeoutExpired("gcc", 2), False),
        (OSError(errno.EMFILE, "too many open files"), False),
        (BlockingIOError(errno.EAGAIN, "no process can be had"), False),
        (RuntimeError("can't start new thread"), False),
        (led_to(OSError(errno.EMFILE, "too many open files"), ValueError("no grader")), False),
        (ExceptionGroup("both", [ValueError(), TimeoutError()]), False),
    ],
    ids=repr,
)
def test_what_is_paid_for(error: BaseException, paid: bool) -> None:
    assert may_pay(error) is paid


def test_an_error_that_leads_to_itself_ends() -> None:
    error, other = ValueError(), KeyError()
    error.__context__, other.__context__ = other, error
    assert may_pay(error)


@pytest.mark.parametrize("value", ["0", float("nan"), 1e10])
def test_only_a_number_can_be_paid(value: object) -> None:
    with pytest.raises((TypeError, ValueError), match="on_error of play must"):
        env(on_error=value)(play)  # type: ignore[call-overload]


async def play(ep: object) -> float:
    return 1.0


PLUGIN = """
import asyncio
from marlaas.plugins import Score, Skip, env

@env
async def task(ep):
    await ep.ask("x")

@task.score
async def score(task, transcript):
    match task:
        case "right":
            return Score(0.5, said=len(transcript.text))
        case "slow":
            await asyncio.sleep(600)
        case "gives up":
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                raise ValueError("no verdict") from None
        case "raises":
            raise KeyError("lost")
        case "skips":
            raise Skip
        case "leaves":
            raise SystemExit
    return task

@task.group
def rank(episodes):
    return [episode.reward for episode in episodes][:len(episodes[0].task)]
"""

SAID: Record = {"agent": [{"role": "assistant", "content": "abc"}]}


class ScoringHost:
    """Collects answers."""

    def __init__(self, folder: Path) -> None:
        self.blame = Blame(folder)
        self.answers: list[Record] = []

    def ended(self, run: Running, record: Record) -> None:
        self.answers.append(record | {"episode": run.number})


async def answer(folder: Path, request: Record) -> Record:
    (folder / "p.py").write_text(PLUGIN)
    host = ScoringHost(folder)
    run = ScoringRun(cast(PluginHost, host), {"episode": 7, "timeout": 0.01, **request}, load(folder / "p.py")["task"])
    await run.task
    (record,) = host.answers
    assert record["episode"] == 7
    return record


async def scored(folder: Path, task: object, **more: object) -> Record:
    request = {"op": "score", "task": task, "transcript": SAID, "earned": {"agent": 1.0}}
    return await answer(folder, request | more)


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize(
    ("task", "status", "says", "line"),
    [
        (None, "error", "returned None", "async def score"),
        ("text", "error", "must be a number, not str", "async def score"),
        ("raises", "error", "KeyError: 'lost'", "raise KeyError"),
        ("leaves", "error", "SystemExit", "raise SystemExit"),
        ("slow", "timeout", "the score of task took longer than 0.01 s", "await asyncio.sleep"),
        ("gives up", "timeout", "the score of task took longer than 0.01 s", "raise ValueError"),
    ],
)
async def test_what_goes_wrong_has_its_place(tmp_path: Path, task: object, status: str, says: str, line: str) -> None:
    record = await scored(tmp_path, task)
    assert record["status"] == status and says in record["failure"]["message"]
    lines = PLUGIN.splitlines()
    assert record["failure"]["file"] == "p.py" and line in lines[record["failure"]["line"] - 1]


def member(reward: float, task: str) -> Record:
    return {
        "task": task, "transcript": SAID, "rewards": {"agent": reward}, "parts": {}, "logged": {}, "invalid": ""
    }  # fmt: skip


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize(
    ("task", "said", "status"),
    [("raises", SAID, "ok"), ("raises", {}, "error"), ("slow", SAID, "timeout"), ("leaves", SAID, "error")],
)
async def test_an_exception_is_paid_for_where_it_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, said: Record, status: str
) -> None:
    """Not where nothing was said, nor where the time is up."""
    monkeypatch.setattr(sys.modules[__name__], "PLUGIN", PLUGIN.replace("@env\n", "@env(on_error=-1)\n"))
    end = await answer(tmp_path, {"op": "score", "task": task, "transcript": said, "earned": {"": 0.25}})
    assert end["status"] == status and "failure" in end
    assert end.get("rewards") == ({"agent": -0.75} if status == "ok" else None)
