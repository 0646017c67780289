"""Starting, stopping and draining an engine; the lock of its home, and who may change its database."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from marlaas.engine.daemon import control, main as engine
from marlaas.engine.daemon.control import PREPARES, EngineLock, holder, starts, why_not
from marlaas.engine.daemon.heartbeat import Heartbeat
from marlaas.engine.daemon.main import start_up
from marlaas.engine.environments.outcomes import OutcomeCounts
from marlaas.engine.errors import ConfigError, DatabaseUnwritable, EngineUnreachable, HomeLocked, StoreError
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.home.paths import Home, version
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.schema import is_current
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import command

from ...old_homes import unpack
from ..by_hand import change


@pytest.mark.parametrize(
    ("code", "line", "kind", "words"),
    [
        (2, "marlaas: The base is gone.", ConfigError, "The base is gone."),
        (1, "marlaas: The disk is full.", EngineUnreachable, "The engine did not start: The disk is full."),
        (0, "info: A plugin was loaded.", EngineUnreachable, "The engine did not start: it was asked to stop."),
        (-9, "info: A plugin was loaded.", EngineUnreachable, "it was ended by signal SIGKILL."),
        (-99, "", EngineUnreachable, "it was ended by signal 99."),
    ],
)
def test_the_reason_is_the_engines_own(tmp_path: Path, code: int, line: str, kind: type[Exception], words: str) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"info: earlier\n{line}\n")
    error = why_not(code, log)
    assert type(error) is kind and words in error.message and "plugin" not in error.message


@pytest.mark.processes
def test_a_stopped_engine_leaves_no_process_behind(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.2)"])
    monkeypatch.setattr(control, "started", [engine])
    holders = iter([engine.pid, engine.pid, None])
    monkeypatch.setattr(control, "holder", lambda lock: next(holders))
    monkeypatch.setattr(control, "command", lambda database, verb: None)
    assert control.stop(home)
    assert engine.returncode == 0, "it had let go of its lock, and was about to end"


@pytest.mark.processes
def test_an_engine_ends_though_its_database_takes_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that became read-only: the command cannot be written."""
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda file, **rest: connect(f"file:{file}?mode=ro", uri=True, **rest))
    with pytest.raises(DatabaseUnwritable, match=r"readonly database\. Mount the home's disk for writing"):
        command(home.database, "drain")
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(control, "started", [engine])
    monkeypatch.setattr(control, "holder", lambda lock: engine.pid if engine.poll() is None else None)
    assert control.stop(home) and engine.returncode == -signal.SIGTERM


@pytest.mark.processes
def test_a_suspended_engine_is_said_to_be_that(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits half a minute for what cannot answer."""
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(control, "holder", lambda lock: engine.pid)
    try:
        control.refuse_suspended(engine.pid)
        os.kill(engine.pid, signal.SIGSTOP)
        os.waitpid(engine.pid, os.WUNTRACED)
        for act in (control.ensure_running, control.stop, lambda home: control.drain(home, print)):
            with pytest.raises(EngineUnreachable, match=rf"process {engine.pid}\) is suspended.*kill -CONT"):
                act(home)
        os.kill(engine.pid, signal.SIGCONT)
        control.refuse_suspended(None)
    finally:
        engine.kill()
        engine.wait()


STEP = 20.0
"""Seconds between two looks: a third of what a silent engine is given."""


class Engine:
    """An engine that starts, by a clock of its own: each look at it is one more of its ``phases``."""

    def __init__(self, home: Home, phases: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._home, self._phases = home, phases
        self._lock = EngineLock(home.lock)
        self._lock.acquire()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, _: float) -> None:
        self.now += STEP
        if not self._phases:
            return
        phase = self._phases.pop(0)
        if phase == "serves":
            self._lock.started()
            store = Store(self._home.database, "tiny", "f" * 16)
            store.telemetry.heartbeat(store.incarnation, "running")
            store.close()
        elif phase:
            self._lock.starting(phase)
        else:
            self._lock.started()

    def end(self) -> None:
        self._lock.release()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """With a database; nobody waits between two looks at it."""
    monkeypatch.setattr(control, "POLL", 0.0)
    monkeypatch.setattr(engine, "START_INTERVAL", 0.01)
    home = Home(tmp_path / "home")
    control.create_database(home)
    return home


def test_an_engine_that_starts_is_waited_for(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = [*["It reads the base."] * 10, *["It measures the processor."] * 10, "serves"]
    engine = Engine(home, phases, monkeypatch)
    said: list[str] = []
    control.ensure_running(home, timeout=60.0, notice=said.append)
    engine.end()
    assert engine.now > 20 * STEP, "far beyond what a silent engine is given"
    assert said == ["It reads the base.", "It measures the processor."]


def test_one_that_falls_silent_is_given_up(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(home, [*["It reads the base."] * 10, ""], monkeypatch)
    with pytest.raises(EngineUnreachable, match="does not answer after 60 s"):
        control.ensure_running(home, timeout=60.0)
    engine.end()
    assert 10 * STEP + 60 <= engine.now <= 12 * STEP + 60


def test_a_starting_engine_is_named_by_its_process(home: Home) -> None:
    lock = EngineLock(home.lock)
    lock.acquire()
    process = holder(home.lock)
    assert process and not starts(home.lock)
    lock.starting("It reads the base, which is long.")
    assert (holder(home.lock), starts(home.lock)) == (process, "It reads the base, which is long.")
    with pytest.raises(HomeLocked, match=rf"process {process}\) serves"):
        EngineLock(home.lock).acquire(lambda _: None)
    lock.starting("It measures.")
    assert starts(home.lock) == "It measures."
    lock.started()
    assert (holder(home.lock), starts(home.lock), home.lock.read_text()) == (process, "", f"{process}\n")
    lock.starting("It reads the base.")
    lock.release()
    assert (holder(home.lock), starts(home.lock)) == (None, "")


@pytest.fixture
def store(home: Home) -> Iterator[Store]:
    store = Store(home.database, "tiny", "f" * 16)
    yield store
    store.close()


async def test_it_says_that_it_is_starting_for_as_long_as_it_does(store: Store, home: Home) -> None:
    with Reader(home.database) as reader:
        before = reader.engine()

        async def work() -> None:
            while (now := reader.engine()) is None or before is None or now.heartbeat == before.heartbeat:
                await asyncio.sleep(0)

        with pytest.raises(TimeoutError):  # what the work raises is raised
            await start_up(asyncio.wait_for(asyncio.Event().wait(), 0), store, lambda: False)
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


def test_it_waits_until_the_engine_has_gone_and_says_for_what(home: Home, store: Store) -> None:
    """The engine is this process: it goes on a little with each thing that is told."""
    assert not control.drain(home, print), "there is no engine, which is no error"
    lock, told = EngineLock(home.lock), list[str]()
    lock.acquire()
    store.telemetry.heartbeat(store.incarnation, "draining", "2 tasks finish.")

    def notice(text: str) -> None:
        told.append(text)
        store.telemetry.heartbeat(store.incarnation, "draining", "1 task finishes.")
        if len(told) == 2:
            lock.release()

    assert control.drain(home, notice)
    assert told == ["2 tasks finish.", "1 task finishes."]
    assert [command.kind for command in store.tasks.new_commands()] == ["drain"]


def test_an_engine_that_says_nothing_is_not_waited_for(home: Home, store: Store) -> None:
    lock = EngineLock(home.lock)
    lock.acquire()
    for state, hears in (("starting", False), ("running", True), ("draining", True), ("stopping", False)):
        store.telemetry.heartbeat(store.incarnation, state)
        assert control.alive(home) is hears
    change(home.database, "UPDATE engines SET heartbeat = ?", time.time() - 2 * control.STALE)
    with pytest.raises(EngineUnreachable, match="does not answer"):
        control.drain(home, print)
    store.telemetry.heartbeat(store.incarnation, "running")
    assert control.alive(home)
    change(home.database, "UPDATE engines SET pid = pid + 1")
    assert not control.alive(home), "the row is a killed engine's: another process holds the lock"
    lock.release()


def test_a_held_lock_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "engine.lock"
    assert holder(path) is None
    path.write_text("12345\n")
    assert holder(path) is None, "a file that was left behind holds nobody up"
    asking = open(path, "w")  # noqa: SIM115 - closed by the pause below
    fcntl.flock(asking, fcntl.LOCK_SH)
    lock = EngineLock(path)
    lock.acquire(pause=lambda _: asking.close())
    assert holder(path) == os.getpid(), "who asks for the holder keeps no engine out"
    lock.release()
    assert holder(path) is None
    EngineLock(path).acquire()


def test_a_lock_file_that_was_removed_comes_back(tmp_path: Path) -> None:
    """A clean-up of files that are called ``*.lock``."""
    path = tmp_path / "engine.lock"
    lock = EngineLock(path)
    lock.acquire()
    lock.keep()
    for _ in range(2):
        path.unlink()
        assert holder(path) is None
        lock.keep()
        assert holder(path) == os.getpid()
        with pytest.raises(HomeLocked):
            EngineLock(path).acquire()
    path.unlink()
    other = EngineLock(path)
    other.acquire()
    with pytest.raises(HomeLocked):  # of two engines the one without the file ends
        lock.keep()
    other.keep()
    other.release()
    lock.release()
    assert holder(path) is None


async def test_a_home_that_is_away_for_a_time_ends_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moved, or on a full disk: the file cannot be put back now, and the next beat tries again."""
    monkeypatch.setattr("marlaas.engine.daemon.heartbeat.HEARTBEAT", 0.0)
    tries = iter(
        [FileNotFoundError(2, "gone"), OSError(28, "No space left on device"), HomeLocked("Another serves it.")]
    )

    def keep() -> None:
        raise next(tries)

    heartbeat = Heartbeat(cast(Any, None), Ledger(), OutcomeCounts(), lambda: None, keep=keep)
    monkeypatch.setattr(heartbeat, "_beat", AsyncMock())
    with pytest.raises(HomeLocked):
        await heartbeat.run(cast(Any, None))


MAKE = """
import sys
from pathlib import Path
from marlaas.engine.daemon.control import create_database
from marlaas.engine.home.paths import Home
from marlaas.engine.store.submissions import command
sys.stdin.readline()
home = Home(Path(sys.argv[1]))
create_database(home)
command(home.database, "reload", plugin="any")
"""


@pytest.mark.processes
def test_several_programs_at_once_make_one_home(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    code = [sys.executable, "-P", "-c", MAKE, str(home.root)]
    pipe = subprocess.PIPE
    programs = [subprocess.Popen(code, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("go\n")
        program.stdin.flush()
    said = [program.communicate()[1] for program in programs]
    assert [program.returncode for program in programs] == [0] * 2, said
    with Reader(home.database) as reader:
        assert reader.all("SELECT count(*) FROM commands")[0][0] == 2
    assert holder(home.lock) is None


def test_nothing_is_changed_beside_an_older_engine(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    with closing(sqlite3.connect(home.database)) as database, database:
        database.execute("UPDATE engines SET pid = ?, state = 'running'", [os.getpid()])
    lock = EngineLock(home.lock)
    lock.acquire()
    with pytest.raises(StoreError, match=r"is of an older marlaas .* Restart it: `marlaas engine drain`"):
        control.create_database(home)
    assert not is_current(home.database) and not (home.root / "backups").exists()
    lock.release()
    control.create_database(home)
    assert is_current(home.database)


def test_an_engine_waits_for_who_prepares_the_database(tmp_path: Path) -> None:
    path = tmp_path / "engine.lock"
    preparing, engine = EngineLock(path), EngineLock(path)
    preparing.acquire(prepares=True)
    assert path.read_text() == f"{os.getpid()}{PREPARES}\n" and holder(path) is None
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 50:
            preparing.release()

    engine.acquire(pause)
    assert len(pauses) == 50 and holder(path) == os.getpid()
    with pytest.raises(HomeLocked):
        preparing.acquire(lambda _: None, prepares=True)
    engine.release()


def test_an_engine_of_another_version_is_named(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    store = Store(home.database, "tiny")
    with Reader(home.database) as reader:
        engine = reader.engine()
        assert engine is not None and engine.version == version() and control.other_version(engine) == ""
        change(home.database, "UPDATE engines SET version = '0.0.9'")
        words = f"The engine is marlaas 0.0.9, and this is marlaas {version()}: restart it"
        assert control.other_version(reader.engine()).startswith(words)
    store.close()
