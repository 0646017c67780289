"""What the engine says in its log and to the command under [notify]; its heap; when it checks plugins."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.daemon import main as engine
from marlaas.engine.daemon.control import create_database
from marlaas.engine.daemon.main import Engine, Notifier, describe, described, names_of, say, sentence
from marlaas.engine.daemon.planning import plan
from marlaas.engine.devices.usable import ResourceSettings
from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.environments.protocol import EnvironmentEvent, EnvironmentInfo
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import Settings
from marlaas.engine.models.find import load_base
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.queries.machine import newest_events
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import Reason
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import Submission, submit
from marlaas.engine.trajectories import Failure

from ..by_hand import change


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_hostile_words_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    event = EnvironmentEvent("rejected", "p", "1", Failure("\x1b[2J\x1b]0;mine\x07\nerror: forged", "p.py", 3))
    say(describe(event))
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "\x1b" not in said and "\x07" not in said
    assert said.startswith("Environment p: broken, ") and "(p.py:3), version 1" in said


def test_the_log_has_the_words_of_the_screens() -> None:
    failure = Failure("KeyError: '329!', on all of 20 instances; rests for 60 s", "nightly.py", 7)
    said = describe(EnvironmentEvent("quarantined", "nightly", "ea683a70563c", failure))
    assert said == (
        "Environment nightly: failing, KeyError: '329!', on all of 20 instances; rests for 60 s (nightly.py:7), version"
        " ea683a70563c"
    )
    assert describe(EnvironmentEvent("removed", "nightly", "")) == "Environment nightly: removed"
    findings = [Finding("latency", "note", "It is quick."), *(Finding("leaks", "error", "It leaks.") for _ in range(2))]
    assert sentence("rg/coin_flip", "9f2c", findings) == (
        "The environment rg/coin_flip (9f2c) has an error: It leaks. (and 1 more: `marlaas env list`)"
    )


def test_a_log_on_a_full_disk_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", FullDisk())
    say("The engine serves.")


def test_tasks_may_mean_an_environment_by_two_names() -> None:
    infos = [EnvironmentInfo(name, "v", "ready") for name in ("games/guess", "games/add", "gamesome/x", "broken")]
    assert names_of("games", infos) == {"games/guess", "guess", "games/add", "add"}
    assert names_of("broken", infos) == {"broken"}


async def test_what_loads_at_the_start_is_checked_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, base = Home(tmp_path / "home").create(), load_base("tiny")
    settings = Settings(resources=ResourceSettings(share="base"))
    store = Store(home.database, "tiny", base.fingerprint)
    engine = Engine(home, settings, base, plan(home, base, settings), store, lambda: None)
    monkeypatch.setattr(engine._environments, "infos", lambda: [EnvironmentInfo("mine/guess", "v1", "ready")])
    engine._on_environment(EnvironmentEvent("loaded", "mine", "v1"))
    assert not engine._conformance.busy
    await engine._tell_that_it_serves()
    assert engine._conformance.busy
    await engine._conformance.stop()
    with Reader(home.database) as reader:
        (note,) = [event.message for event in newest_events(reader) if "`share" in event.message]
    assert note.startswith('`share = "base"` under [resources] is read as "memory"')
    store.close()


ARENAS = """
import ctypes, sys, threading
libc = ctypes.PyDLL(None)
libc.malloc.restype = ctypes.c_void_p
if sys.argv[1] == "one":
    from marlaas.engine.daemon.main import keep_to_one_heap
    keep_to_one_heap()
blocks = []
def work():
    blocks.append([libc.malloc(ctypes.c_size_t(10_000)) for _ in range(50)])
    met.wait()
met = threading.Barrier(4)
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len({block >> 26 for own in blocks for block in own}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="arenas are glibc's")
def test_threads_share_one_heap() -> None:
    apart, together = (
        int(subprocess.run([sys.executable, "-P", "-c", ARENAS, how], capture_output=True, check=True).stdout)
        for how in ("apart", "one")
    )
    assert apart >= 4, "each thread has a heap of 64 MB of the address space"
    assert together <= 2, "one heap, which may lie across a border of 64 MB"


HEARS = """
import sys
lines = sys.stdin.readlines()
open(sys.argv[1], "a").writelines(lines)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home with two tasks, the first of them done, and their store open."""
    home = Home(tmp_path / "home")
    create_database(home)
    submit(home.database, [Submission(TaskSpec("bio", f"sums {n}\x1b[31m", "arithmetic", 5)) for n in (1, 2)])
    store = Store(home.database, "tiny", "")
    store.tasks.set_state(1, "done", Reason(words='as "quoted" and\nbroken'))
    yield home
    store.close()


class Heard:
    """A command, and what the engine was told of its failures."""

    def __init__(self, home: Home, tmp_path: Path, script: str, limit: float = 20, more: str = "") -> None:
        self.path = tmp_path / "heard.jsonl"
        program = tmp_path / "a script.py"
        program.write_text(script)
        self.log: list[str] = []
        command = f'{sys.executable} -S "{program}" {self.path}{more}'
        self.notifier = Notifier(command, home, lambda kind, message, level: self.log.append(message), limit)

    async def of(self, *events: tuple[str, int]) -> list[Any]:
        """What the command wrote down, after all events."""
        for event in events:
            self.notifier.tell(*event)
        await self.notifier.delivered()
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []


@pytest.mark.processes
async def test_a_line_for_each_event_in_turn(home: Home, tmp_path: Path) -> None:
    heard = Heard(home, tmp_path, HEARS)
    lines = await heard.of(("done", 1), ("stalled", 2), ("failed", 99))
    assert [(line["event"], line["id"]) for line in lines] == [("done", 1), ("stalled", 2), ("failed", 99)]
    assert lines[0]["home"] == str(home.root) and lines[0]["reason"] == 'as "quoted" and\nbroken'
    assert {"tenant", "name", "environment", "state", "step", "steps", "reward", "score"} <= lines[0].keys()
    assert not heard.log
    await heard.notifier.stop()


@pytest.mark.processes
async def test_failures_are_said_once_until_it_works_again(home: Home, tmp_path: Path) -> None:
    heard = Heard(home, tmp_path, "import sys; print('no route', file=sys.stderr); sys.exit(3)")
    await heard.of(("done", 1), ("done", 1))
    assert [line.split(": ", 1)[1] for line in heard.log] == [
        "it ended with code 3: no route. This is not said again until it works."
    ]
    (tmp_path / "a script.py").write_text(HEARS)
    await heard.of(("done", 1))
    (tmp_path / "a script.py").write_text("raise SystemExit(1)")
    await heard.of(("done", 1))
    assert len(heard.log) == 2 and "code 1." in heard.log[1]
    await heard.notifier.stop()


@pytest.mark.processes
async def test_what_hangs_is_ended_with_all_that_it_started(home: Home, tmp_path: Path) -> None:
    hangs = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
open(sys.argv[1], "w").write(f"{child.pid}\\n")
time.sleep(60)
"""
    heard = Heard(home, tmp_path, hangs, limit=1)
    (child,) = await heard.of(("done", 1))
    assert "it took longer than 1 s and was ended" in heard.log[0]
    async with asyncio.timeout(50):
        while _runs(int(str(child))):
            await asyncio.sleep(0.01)
    await heard.notifier.stop()


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "words"), [("/nowhere/program --fast", "No such file"), ("~not-a-user/notify", "home directory")]
)
async def test_a_program_that_is_not_there(home: Home, command: str, words: str) -> None:
    log: list[str] = []
    missing = Notifier(command, home, lambda kind, message, level: log.append(message))
    missing.tell("done", 1)
    await missing.delivered()
    assert len(log) == 1 and words in log[0]
    await missing.stop()


@pytest.mark.processes
async def test_no_shell_reads_the_command_nor_need_it_read(home: Home, tmp_path: Path) -> None:
    says = "import json, sys; sys.stdin.close(); open(sys.argv[1], 'w').write(json.dumps(sys.argv[2:]))"
    quoted = Heard(home, tmp_path, says, more=" ~not-a-user; $(id)")
    assert await quoted.of(("done", 1)) == [["~not-a-user;", "$(id)"]] and not quoted.log
    await quoted.notifier.stop()


@pytest.mark.processes
async def test_a_command_that_is_too_slow_fills_no_memory(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MOST", 2)
    heard = Heard(home, tmp_path, HEARS)
    for _ in range(5):
        heard.notifier.tell("done", 1)
    assert len(heard.log) == 1 and "more than 2 events wait" in heard.log[0]
    assert len(await heard.of()) == 2
    await heard.notifier.stop()


@pytest.mark.processes
async def test_a_stopping_engine_waits_for_events_in_line(home: Home, tmp_path: Path) -> None:
    heard = Heard(home, tmp_path, HEARS)
    heard.notifier.tell("done", 1)
    await heard.notifier.stop()
    assert len(heard.path.read_text().splitlines()) == 1


@pytest.mark.processes
def test_numbers_that_json_lacks(home: Home) -> None:
    change(home.database, "UPDATE tasks SET seconds = 9e999 WHERE id = 1")
    assert json.loads(described(home, "done", 1))["seconds"] is None
