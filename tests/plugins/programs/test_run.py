"""Programs of all kinds: what comes back, and that nothing of them stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.plugins import env
from marlaas.plugins.programs import ProgramRun, run as running
from marlaas.plugins.programs.run import places, run

from .episodes import alive, episode, leftovers, result_of

pytestmark = pytest.mark.processes
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell whose child a process was")


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark of this test's programs alone; nothing that bears it stays."""
    mark = f"MARLAAS_PROGRAM_{os.urandom(8).hex()}"
    monkeypatch.setattr(running, "MARK", mark)
    yield mark
    assert not leftovers(mark)


async def python(code: str, folder: Path, stdin: str = "") -> ProgramRun:
    return await run(("python", "-c", code), str(folder), dict(os.environ), stdin)


async def test_a_program_reads_prints_and_ends(tmp_path: Path) -> None:
    ran = await python("print(input()); import sys; print('é', file=sys.stderr); sys.exit(3)", tmp_path, "it\n")
    assert (ran.stdout, ran.stderr, ran.exit_code, ran.ok, ran.cut) == ("it\n", "é\n", 3, False, False)
    assert ran.folder == str(tmp_path) and ran.seconds > 0


async def test_a_signal_is_an_exit_code(tmp_path: Path) -> None:
    assert (await python("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", tmp_path)).exit_code == 128 + 15


async def test_signals_are_as_a_shell_has_them(tmp_path: Path) -> None:
    """A pipe that nobody reads ends a program without a word, as ``head`` expects of what is before it."""
    ran = await run(("bash", "-c", "set -o pipefail; yes | head -1; exit ${PIPESTATUS[0]}"), str(tmp_path), {}, "")
    assert (ran.stdout, ran.stderr, ran.exit_code) == ("y\n", "", 128 + signal.SIGPIPE)


async def test_its_own_group_is_its_own(tmp_path: Path) -> None:
    ran = await run(("bash", "-c", "trap '' TERM; kill 0; exit 4"), str(tmp_path), dict(os.environ), "")
    assert ran.exit_code == 4


async def test_a_storm_of_prints_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "KEPT", 100)
    ran = await python("print('a' * 100 + 'b' * 100_000 + 'c' * 99)", tmp_path)
    assert ran.ok and ran.cut and ran.stdout == "a" * 100 + "\n[...]\n" + "c" * 99 + "\n"
    monkeypatch.setattr(running, "FLOOD", 1 << 20)
    ran = await run(("yes",), str(tmp_path), dict(os.environ), "")
    assert ran.flooded and not ran.ok and len(ran.stdout) < 300


DAEMON = """
import os, sys, time
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open('pid.new', 'w').write(str(os.getpid()))
            os.rename('pid.new', 'pid')
            while True:
                time.sleep(600)
        os._exit(0)
    os.wait()
    while not os.path.exists('pid'):
        time.sleep(0.001)
daemon()
"""


@LINUX
@pytest.mark.parametrize("after", ["", "os.kill(os.getppid(), 9); time.sleep(600)", "os.kill(os.getpid(), 9)"])
async def test_what_it_leaves_is_killed(after: str, tmp_path: Path) -> None:
    """Also what has left its session, and where the program has killed the one that watches it."""
    await python(DAEMON + after, tmp_path)
    assert not alive(int((tmp_path / "pid").read_text()))


@LINUX
async def test_a_cancelled_program_ends_with_all_that_it_started(tmp_path: Path) -> None:
    task = asyncio.create_task(python(DAEMON + "time.sleep(600)", tmp_path))
    while not (tmp_path / "pid").exists():
        await asyncio.sleep(0.01)
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled() and not alive(pid)


HOST = """
import asyncio, os, sys
from marlaas.plugins.programs import run as running
running.MARK = sys.argv[3]
asyncio.run(running.run(("python", "-c", sys.argv[1]), sys.argv[2], dict(os.environ), ""))
"""


@LINUX
async def test_none_outlives_the_process_of_its_plugin(tmp_path: Path, mark: str) -> None:
    host = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", HOST, DAEMON + "time.sleep(600)", str(tmp_path), mark)
    )
    while not (tmp_path / "pid").exists():
        await asyncio.sleep(0.01)
    watched = os.pidfd_open(int((tmp_path / "pid").read_text()))
    host.kill()
    await host.wait()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, ended.set)
    await ended.wait()
    asyncio.get_running_loop().remove_reader(watched)
    os.close(watched)
    while leftovers(mark):  # the one that watched it ends after it
        await asyncio.sleep(0.01)


async def test_programs_wait_for_a_place(monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    monkeypatch.setattr(running, "_MOST", 1)
    free: list[bool] = []

    async def judge(run: ProgramRun) -> float:
        free.append(not places().locked())
        return 1.0

    program = env.program("true", reward=judge)
    async with places():
        playing = asyncio.ensure_future(result_of(program, episode(program)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not playing.done() and not leftovers(mark)
    assert await playing == 1.0
    assert free == [True], "while it is judged another may run"
