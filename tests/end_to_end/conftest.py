"""A real home with a real engine process: real llama.cpp, real gradients, real environments. Nothing is faked here.

The command line alone runs in the test's process: a process of its own would take a third of a second to load what it
needs, two hundred times. ``test_application`` starts it as a person does.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import psutil
import pytest

from marlaas.app import output
from marlaas.app.cli.main import main
from marlaas.app.client import Home as Client
from marlaas.engine.daemon import control
from marlaas.engine.daemon.control import holder
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EnvironmentRow, TaskRow
from tests.oracle.audit import audit

PATIENCE = 100.0
Value = TypeVar("Value")


def awaited(
    look: Callable[[], Value], what: Callable[[], object] = lambda: "It never came.", patience: int = 1
) -> Value:
    """The first true value that ``look`` returns; ``what`` explains a failure. The engine is another process."""
    deadline = time.monotonic() + patience * PATIENCE
    while not (value := look()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)
    return value


def task_file(name: str, environment: str = "arithmetic", tenant: str = "lab", **tables: Any) -> str:
    """A small task. Keyword arguments are tables or values of its file."""
    lines = [f'tenant = "{tenant}"\nname = "{name}"\nenvironment = "{environment}"']
    settings: dict[str, Any] = {
        "steps": 4,
        "train": {"groups_per_step": 2, "group_size": 4},
        "sampling": {"max_tokens": 8},
        "eval": {"prompts": 8, "every": 0},
    }
    for key, value in tables.items():
        before = settings.get(key)
        settings[key] = {**before, **value} if isinstance(before, dict) else value
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items() if not isinstance(value, dict)]
    for key, value in settings.items():
        if isinstance(value, dict):
            lines += [f"[{key}]", *(f"{k} = {json.dumps(v)}" for k, v in value.items())]
    return "\n".join(lines)


@dataclass
class Lab:
    """A home, its engine, and the command line as its users type it."""

    home: Home

    def marlaas(self, *words: str, code: int = 0) -> str:
        """Run a command and return its standard output, or what it complains of; its exit code must be ``code``."""
        ended, said, complained = self._run(words)
        assert ended == code, f"{words}: {ended}\n{said}\n{complained}"
        assert "Traceback" not in complained
        return said if code == 0 else complained

    def _run(self, words: Sequence[str]) -> tuple[int, str, str]:
        """A command's exit code and what it wrote to each stream."""
        said, complained = io.BytesIO(), io.BytesIO()
        out, err = (io.TextIOWrapper(each, "utf-8", write_through=True) for each in (said, complained))
        home = patch.dict(os.environ, MARLAAS_HOME=str(self.home.root))
        with home, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(list(words))
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                output.mean_plain(False)
        return code, said.getvalue().decode(), complained.getvalue().decode()

    def submit(self, name: str, environment: str = "arithmetic", tenant: str = "lab", **tables: Any) -> int:
        """Submit a small task from Python; its number.

        Keyword arguments are tables or values of its file.
        """
        path = self.home.root.with_name(f"{name}.toml")  # next to the home, which may have to be made first
        path.write_text(task_file(name, environment, tenant, **tables))
        (number,) = Client(self.home.root).submit(path)
        return number

    def show(self, task: int) -> dict[str, Any]:
        """``show --json``."""
        shown: dict[str, Any] = json.loads(self.marlaas("show", str(task), "--json"))
        return shown

    def sound(self, *tasks: int) -> None:
        """The oracle finds nothing wrong, and no loss of these tasks; others of a shared home lose on purpose."""
        report = audit(self.home.root, updates=False)
        theirs = tuple(f"task {task}{mark}" for task in tasks for mark in ":,")
        assert not report.problems and not [text for text in report.lost if text.startswith(theirs)], report.lines()
        trained = [task for task in tasks if self.row(task).kind == "train"]
        assert report.proven["steps are gapless"] >= len(trained)

    def when(self, task: int, suits: Callable[[TaskRow], bool], patience: int = 1) -> TaskRow:
        """Wait until a task's row is as wanted."""
        return awaited(lambda: [row for row in [self.row(task)] if suits(row)], lambda: self.row(task), patience)[0]

    def until(self, task: int, step: int) -> TaskRow:
        """Wait until a task has made ``step`` steps."""
        return self.when(task, lambda row: row.step >= step or row.state in ("failed", "paused"))

    def reaches(self, task: int, state: str, reason: str = "") -> TaskRow:
        """Wait until a task is in a state, with these words in its reason."""
        return self.when(task, lambda row: row.state == state and reason in row.reason)

    def row(self, task: int) -> TaskRow:
        """A task as the store has it."""
        with Reader(self.home.database) as reader:
            row = reader.task(task)
        assert row is not None
        return row

    def rows(self, sql: str, *values: object) -> list[Any]:
        """What a query finds in the store."""
        with Reader(self.home.database) as reader:
            return [tuple(row) for row in reader.all(sql, *values)]

    def engine_pid(self) -> int:
        """The engine's process."""
        pid = holder(self.home.lock)
        assert pid
        return pid

    def worker_pids(self, word: str) -> list[int]:
        """Children of the engine whose command line mentions ``word``."""
        children = psutil.Process(self.engine_pid()).children(recursive=True)
        return [child.pid for child in children if word in _command(child)]

    def kill_engine(self) -> None:
        """``kill -9``, and wait until the kernel has let go of the lock."""
        process = psutil.Process(self.engine_pid())
        family = [process, *process.children(recursive=True)]
        os.kill(process.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
        assert not alive, f"orphans: {alive}"


@contextlib.contextmanager
def configured(folder: Path, settings: str) -> Iterator[Lab]:
    """A home in ``folder`` with these settings, and its engine while the block runs."""
    lab = Lab(Home(folder / "home").create())
    lab.home.config.write_text(settings)
    control.ensure_running(lab.home)
    try:
        yield lab
    finally:  # a test that fails leaves no engine behind
        if holder(lab.home.lock) is not None:
            control.stop(lab.home)


@pytest.fixture(scope="session", autouse=True)
def seen_off() -> Iterator[None]:
    """All engines that these tests have started have ended with them, whoever ended them."""
    yield
    for engine in control.started:
        engine.wait(PATIENCE)


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One home for all tests: as in a real lab, tasks of the past lie around, and most of a start is import time."""
    lab = Lab(Home(tmp_path_factory.mktemp("lab") / "home"))
    yield lab
    if holder(lab.home.lock) is not None:
        control.stop(lab.home)


@pytest.fixture
def lab(shared_lab: Lab) -> Iterator[Lab]:
    """The shared home; what a test leaves running is cancelled, or it would take a core from all later tests."""
    control.ensure_running(shared_lab.home)
    yield shared_lab
    running = shared_lab.rows("SELECT id FROM tasks WHERE state IN ('submitted', 'queued', 'running', 'blocked')")
    if running and holder(shared_lab.home.lock) is not None:
        shared_lab._run(("cancel", *(str(task) for (task,) in running)))  # refused for one that has just ended


def consumed_once(home: Home, task: int) -> None:
    """Every step stands there once, in order, and consumed its own groups and no other's."""
    lab = Lab(home)
    (policy,) = lab.rows("SELECT id FROM policies WHERE task = ?", task)[0]
    steps = [number for (number,) in lab.rows("SELECT number FROM steps WHERE policy = ? ORDER BY number", policy)]
    groups = lab.rows(
        "SELECT number, step, version FROM groups"
        " WHERE policy = ? AND split = 'train' AND state = 'consumed' ORDER BY number",
        policy,
    )
    ((batch,),) = lab.rows("SELECT json_extract(config, '$.train.groups_per_step') FROM tasks WHERE id = ?", task)
    assert steps == list(range(1, len(steps) + 1))
    assert [number for number, _, _ in groups] == list(range(len(steps) * batch))
    assert all(step == number // batch + 1 for number, step, _ in groups)
    assert all(0 <= number // batch - version <= 2 for number, _, version in groups)


def _command(process: psutil.Process) -> list[str]:
    """Its command line; nothing for one that has just died."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def environment(lab: Lab, name: str, suits: Callable[[EnvironmentRow], bool]) -> EnvironmentRow:
    """Wait until an environment is as wanted."""

    def suitable() -> EnvironmentRow | None:
        with Reader(lab.home.database) as reader:
            return next((row for row in reader.environments() if row.name == name and suits(row)), None)

    row = awaited(suitable, lambda: lab.marlaas("env", "list"))
    assert row is not None
    return row


def served(lab: Lab, name: str, state: str, other_than: str = "") -> str:
    """Wait until an environment is in a state, in another version than the one given; returns its version."""
    return environment(lab, name, lambda row: row.state == state and row.version != other_than).version
