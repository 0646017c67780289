"""The benchmark of memory finds the processes of an engine by what they run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.engine import memory
from benchmarks.terminal.home import filled
from marlaas.engine.store.database import open_database

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process shares with others")
CHILD = "import sys; print('there', flush=True); sys.stdin.read()"
PARENT = f"""
import subprocess, sys
words = ("marlaas.engine.workers.host", "training")
subprocess.run([sys.executable, "-c", {CHILD!r}, *words])
"""


def test_processes_are_known_by_their_command_line(tmp_path: Path) -> None:
    home = filled(tmp_path / "home", 1, steps=1)
    command = [sys.executable, "-c", PARENT, "marlaas.engine.daemon.main"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None and engine.stdout.readline() == b"there\n"
        database = open_database(home.database)
        database.execute("UPDATE engines SET pid = ?", [engine.pid])
        database.conn.commit()
        database.conn.close()
        found = memory.taken(home)
        engine.communicate()
    assert set(found) == {"engine", "trainer"} and all(1 < megabytes < 100 for megabytes in found.values())
