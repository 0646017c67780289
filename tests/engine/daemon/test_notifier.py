"""The command under [notify]: a real script hears each event once, and none of its failures reaches the engine."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.daemon import main as engine
from marlaas.engine.daemon.control import create_database
from marlaas.engine.daemon.main import Notifier, described
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.rows import Reason
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import Submission, submit

from ..by_hand import change

pytestmark = pytest.mark.processes

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


async def test_a_line_for_each_event_in_turn(home: Home, tmp_path: Path) -> None:
    heard = Heard(home, tmp_path, HEARS)
    lines = await heard.of(("done", 1), ("stalled", 2), ("failed", 99))
    assert [(line["event"], line["id"]) for line in lines] == [("done", 1), ("stalled", 2), ("failed", 99)]
    assert lines[0]["home"] == str(home.root) and lines[0]["reason"] == 'as "quoted" and\nbroken'
    assert {"tenant", "name", "environment", "state", "step", "steps", "reward", "score"} <= lines[0].keys()
    assert not heard.log
    await heard.notifier.stop()


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


async def test_what_hangs_is_ended_with_all_that_it_started(home: Home, tmp_path: Path) -> None:
    hangs = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
open(sys.argv[1], "w").write(f"{child.pid}\\n")
time.sleep(60)
"""
    heard = Heard(home, tmp_path, hangs, limit=2)
    (child,) = await heard.of(("done", 1))
    assert "it took longer than 2 s and was ended" in heard.log[0]
    async with asyncio.timeout(50):
        while _runs(int(str(child))):
            await asyncio.sleep(0.01)
    await heard.notifier.stop()


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


async def test_it_need_not_read(home: Home, tmp_path: Path) -> None:
    heard = Heard(home, tmp_path, "import sys; sys.stdin.close()")
    await heard.of(("done", 1))
    assert not heard.log
    await heard.notifier.stop()


async def test_a_program_that_is_not_there(home: Home) -> None:
    log: list[str] = []
    missing = Notifier("/nowhere/program --fast", home, lambda kind, message, level: log.append(message))
    missing.tell("done", 1)
    await missing.delivered()
    assert len(log) == 1 and "No such file" in log[0]
    await missing.stop()


async def test_a_home_of_nobody(home: Home) -> None:
    log: list[str] = []
    strange = Notifier("~not-a-user/notify", home, lambda kind, message, level: log.append(message))
    strange.tell("done", 1)
    await strange.delivered()
    assert len(log) == 1
    await strange.stop()


async def test_no_shell_reads_the_command(home: Home, tmp_path: Path) -> None:
    says = "import json, sys; open(sys.argv[1], 'w').write(json.dumps(sys.argv[2:]))"
    quoted = Heard(home, tmp_path, says, more=" ~not-a-user; $(id)")
    assert await quoted.of(("done", 1)) == [["~not-a-user;", "$(id)"]] and not quoted.log
    await quoted.notifier.stop()


async def test_without_a_command_nothing_is_started(home: Home) -> None:
    log: list[str] = []
    silent = Notifier("", home, lambda kind, message, level: log.append(message))
    silent.tell("done", 1)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await silent.stop()
    assert not log


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


async def test_a_stopping_engine_waits_for_events_in_line(home: Home, tmp_path: Path) -> None:
    heard = Heard(home, tmp_path, HEARS)
    heard.notifier.tell("done", 1)
    await heard.notifier.stop()
    assert len(heard.path.read_text().splitlines()) == 1


def test_numbers_that_json_lacks(home: Home) -> None:
    change(home.database, "UPDATE tasks SET seconds = 9e999 WHERE id = 1")
    assert json.loads(described(home, "done", 1))["seconds"] is None
