"""Why an engine did not start, in words, whatever the last line of its log is about; and what is left of its end."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.daemon.control import why_not
from marlaas.engine.errors import ConfigError, DatabaseUnwritable, EngineUnreachable
from marlaas.engine.home.paths import Home
from marlaas.engine.store.submissions import command


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
def test_a_stopped_engine_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.2)"])
    monkeypatch.setattr(control, "started", [engine])
    holders = iter([engine.pid, engine.pid, None])
    monkeypatch.setattr(control, "holder", lambda lock: next(holders))
    monkeypatch.setattr(control, "command", lambda database, verb: None)
    assert control.stop(Home(tmp_path))
    assert engine.returncode == 0, "it had let go of its lock, and was about to end"


@pytest.mark.processes
def test_an_engine_ends_though_its_database_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that became read-only: the command cannot be written."""
    home = Home(tmp_path)
    control.create_database(home)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda file, **rest: connect(f"file:{file}?mode=ro", uri=True, **rest))
    with pytest.raises(DatabaseUnwritable, match=r"readonly database\. Mount the home's disk for writing"):
        command(home.database, "drain")
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(control, "started", [engine])
    monkeypatch.setattr(control, "holder", lambda lock: engine.pid if engine.poll() is None else None)
    assert control.stop(home) and engine.returncode == -signal.SIGTERM


@pytest.mark.processes
def test_a_suspended_engine_is_said_to_be_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits half a minute for what cannot answer."""
    home = Home(tmp_path)
    control.create_database(home)
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
