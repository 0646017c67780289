"""Programs that nobody waits for are reaped; those that somebody waits for keep their exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from marlaas.plugins.host import children
from marlaas.plugins.host.children import Reaper, keep_codes

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell which children have ended"),
]


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a plugin's process, and taken back afterwards."""
    monkeypatch.setattr(subprocess.Popen, "__init__", subprocess.Popen.__init__)
    monkeypatch.setattr(os, "waitpid", os.waitpid)
    keep_codes()
    yield


class Host:
    """The episodes under way, and a reaper that looks often."""

    def __init__(self, *episodes: int) -> None:
        self.episodes = set(episodes)
        self.reaper = Reaper(lambda: self.episodes)

    def ticks(self) -> None:
        for _ in range(children._LOOKS + 2):
            self.reaper.tick()


def ended(code: int) -> int:
    """A child that has ended and that nobody has waited for."""
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", f"exit {code}"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def zombie(pid: int) -> bool:
    return children._ended(pid)


def test_a_program_that_nobody_waits_for_is_reaped() -> None:
    host = Host()
    pids = [ended(0) for _ in range(20)]
    host.ticks()
    assert not any(map(zombie, pids))


def test_it_waits_for_the_episodes_that_may_have_started_it() -> None:
    host = Host(1, 2)
    pid = ended(3)
    host.ticks()
    host.episodes = {2, 3}
    host.ticks()
    assert zombie(pid)
    host.episodes = {3}
    host.ticks()
    assert not zombie(pid), "the third began later"


def test_whoever_waits_later_still_learns_the_code() -> None:
    host = Host()
    pid = ended(7)
    host.ticks()
    assert not zombie(pid)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


def test_a_popen_object_keeps_its_code() -> None:
    host = Host()
    program = subprocess.Popen(["/bin/sh", "-c", "exit 5"])
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    host.ticks()
    assert not zombie(program.pid)
    assert program.poll() == 5 and program.wait() == 5


def test_a_running_program_is_left_alone() -> None:
    host = Host()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as program:
        host.ticks()
        assert program.returncode is None and program.poll() is None
    assert program.returncode == 0
