"""How the program ends where nobody quits it, and what it does without its standard streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marlaas.engine.daemon.control import create_database
from marlaas.engine.home.paths import Home

from ..terminal import terminal

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("early", [True, False])
def test_sigterm_leaves_the_terminal_as_it_was(tmp_path: Path, early: bool) -> None:
    """``kill`` and a system that shuts down send SIGTERM; mouse reports and the alternate screen would stay."""
    with terminal(Home(tmp_path).create()) as screen:
        screen.until("opening") if early else screen.until("Three ways to begin")
        os.kill(screen.process.pid, signal.SIGTERM)
        assert screen.end() == 128 + signal.SIGTERM
        for mode in (1049, 1000, 1003, 1006, 2004):
            on, off = f"\x1b[?{mode}h".encode(), f"\x1b[?{mode}l".encode()
            assert screen.drawn.rfind(on) <= screen.drawn.rfind(off), f"mode {mode} stays on"
        assert screen.drawn.rfind(b"\x1b[?25l") < screen.drawn.rfind(b"\x1b[?25h"), "the cursor stays hidden"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_fault(tmp_path: Path, closed: str) -> None:
    home = Home(tmp_path)
    create_database(home)
    command = f"{sys.executable} -P -m marlaas.app.cli.main --home {home.root} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "Error" not in done.stderr
    assert not (home.logs / "marlaas-errors.log").exists()
