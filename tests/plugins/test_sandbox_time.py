"""What a program in the sandbox may compute, and wait: how busy the machine is does not matter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from marlaas.plugins import BlockingEpisode, Episode, Ran, env, sandbox
from marlaas.plugins.sandbox import Starved
from marlaas.plugins.sandbox_supervisor import STARVED, Ended, Used, Watch, waited, waiting_limit, wall_limit

from .scripted import Model, play

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell how long a process has waited")
COMPUTES = """
import os, sys, time
os.sched_setaffinity(0, {int(input())})
until = time.process_time() + float(sys.stdin.read())
while time.process_time() < until: pass
print("right")
"""


async def run(code: str, stdin: str = "", seconds: float = 10.0) -> Ran:
    return await Episode(Model()).sandbox.python(code, stdin, seconds=seconds)


@pytest.fixture
def busy_core() -> Iterator[int]:
    """A core that eight programs compete for."""
    core = min(os.sched_getaffinity(0))
    endless = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-S", "-c", endless]) for _ in range(8)]
    yield core
    for other in others:
        other.kill()
        other.wait()


@LINUX
@pytest.mark.processes
async def test_a_right_program_is_right_on_a_busy_core(busy_core: int) -> None:
    """It has a ninth of a core, so it takes several times as many seconds as it may compute."""
    ran = await run(COMPUTES, f"{busy_core}\n0.3", seconds=1.0)
    assert ran == Ran("right\n", "", 0, timed_out=False, cut=False)


@pytest.mark.processes
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(600)",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])",
    ],
    ids=["computes", "sleeps", "has another compute"],
)
async def test_what_never_ends_ends(code: str) -> None:
    ran = await run(code, seconds=0.2)
    assert ran.timed_out and not ran.ok


@LINUX
@pytest.mark.processes
async def test_what_many_short_programs_compute_is_added_up() -> None:
    short = "t = time.process_time()\nwhile time.process_time() < t + 0.05: pass"
    again = f"while True:\n    if not os.fork():\n        exec({short!r})\n        os._exit(0)\n    os.wait()"
    assert (await run(f"import os, time\n{again}", seconds=0.3)).timed_out


@LINUX
@pytest.mark.processes
async def test_no_program_can_say_that_it_was_starved() -> None:
    ran = await run(f"import os\nos.kill(os.getppid(), {int(STARVED)})\nprint('judged')")
    assert ran.ok and ran.stdout == "judged\n"


class Looks:
    """A program whose figures are set by the test."""

    def __init__(self) -> None:
        self.now = Used(0.0, 0.0, {1: 0.0})

    def __call__(self) -> Used:
        return self.now

    def after(self, wall: float, *, computed: float = 0.0, delayed: float = 0.0) -> None:
        delays = {thread: seconds + delayed for thread, seconds in self.now.delays.items()}
        self.now = Used(self.now.wall + wall, self.now.processor + computed, delays)


def verdict(watch: Watch) -> int:
    """0 where the program may go on."""
    try:
        assert watch.look() > 0
    except Ended as end:
        return int(end.args[0])
    return 0


def test_processor_time_is_the_limit() -> None:
    looks = Looks()
    watch = Watch(2.0, looks, cores=2)
    looks.after(19.0, computed=1.9, delayed=17.1)
    assert verdict(watch) == 0
    looks.after(1.0, computed=0.1, delayed=0.9)
    assert verdict(watch) == signal.SIGALRM


def test_waiting_has_a_limit_of_its_own() -> None:
    looks = Looks()
    watch = Watch(2.0, looks, cores=2)
    looks.after(waiting_limit(2.0) - 0.1)
    assert verdict(watch) == 0
    looks.after(0.2)
    assert verdict(watch) == signal.SIGALRM


def test_what_was_starved_is_not_judged() -> None:
    looks = Looks()
    watch = Watch(2.0, looks, cores=2)
    while looks.now.wall < wall_limit(2.0) - 1:
        looks.after(1.0, computed=0.01, delayed=0.99)
        assert verdict(watch) == 0
    looks.after(1.0, computed=0.01, delayed=0.99)
    assert verdict(watch) == STARVED


def test_threads_that_began_or_ended_are_no_proof_of_waiting() -> None:
    assert waited(Used(0.0, 0.0, {1: 0.0}), Used(1.0, 0.0, {1: 0.0})) == 1.0
    assert waited(Used(0.0, 0.0, {1: 0.0}), Used(1.0, 0.0, {2: 0.0})) == 0.0
    assert waited(Used(0.0, 0.0, {1: 0.0, 2: 0.0}), Used(1.0, 0.5, {1: 0.25, 2: 0.25})) == 0.0


async def test_an_episode_hears_that_it_cannot_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def starved(*_: Any) -> Ran:
        raise Starved("too busy")

    monkeypatch.setattr(sandbox, "_run", starved)
    told: list[str] = []
    with pytest.raises(Starved):
        await Episode(Model(), starved=lambda: told.append("starved")).sandbox.python("")
    assert told == ["starved"]

    @env
    def coding(ep: BlockingEpisode) -> bool:
        try:
            return ep.sandbox.python(ep.ask("?").text).ok
        except Exception:
            return False

    with pytest.raises(Starved):
        await play(coding, lambda ask: "")
