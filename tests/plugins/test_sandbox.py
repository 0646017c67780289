"""Code of all kinds in the sandbox: what comes back, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.plugins import BlockingEpisode, Episode, Ran, env, sandbox, sandbox_supervisor
from marlaas.plugins.sandbox import new_group
from marlaas.plugins.sandbox_supervisor import children, stray

from .scripted import Model, play

pytestmark = pytest.mark.processes
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell whose child a process was")
PR_GET_CHILD_SUBREAPER = 37


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where sandboxes have their folders: empty again afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert not list(tmp_path.glob("sandbox-*"))


async def run(code: str, stdin: str = "", seconds: float = 10.0, memory_mb: int = 256) -> Ran:
    return await Episode(Model()).sandbox.python(code, stdin, seconds=seconds, memory_mb=memory_mb)


async def test_a_program_reads_and_prints() -> None:
    ran = await run("import sys\nprint(int(input()) * 2)\nprint('é', file=sys.stderr)", "21\n")
    assert ran == Ran("42\n", "é\n", 0, timed_out=False, cut=False) and ran.ok


@pytest.mark.parametrize(
    ("code", "exit_code", "says"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("import sys; sys.exit('sorry')", 1, "sorry\n"),
        ("1 +", 1, 'File "main.py", line 1'),
        ("print(1 / 0)", 1, 'Traceback (most recent call last):\n  File "main.py", line 1, in <module>'),
        ("\0", 1, "null bytes"),
        ("import os; os._exit(7)", 7, ""),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9, ""),
        ("input()", 1, "EOFError"),
    ],
)
async def test_how_a_program_ends(code: str, exit_code: int, says: str) -> None:
    ran = await run(code)
    assert (ran.exit_code, ran.ok, ran.timed_out, ran.stdout) == (exit_code, False, False, "")
    assert says in ran.stderr and "sandbox_supervisor" not in ran.stderr


async def test_a_program_is_main_and_alone() -> None:
    ran = await run(
        "import os, sys\n"
        "print(__name__, sys.argv, sys.modules['__main__'].__dict__ is globals())\n"
        "print(os.listdir('.'), sorted(os.environ))\n"
        "print(os.getcwd() == os.environ['HOME'], hash('a'))\n"
    )
    first, second, third = ran.stdout.splitlines()
    assert first == "__main__ ['main.py'] True"
    assert second.startswith("['main.py']") and "PYTEST_CURRENT_TEST" not in second
    assert third.startswith("True") and third == (await run("print('True', hash('a'))")).stdout.strip()


async def test_an_endless_loop_ends_with_its_time() -> None:
    ran = await run("while True: pass", seconds=0.1)
    assert ran.timed_out and not ran.ok and ran.stdout == ""


async def test_memory_is_bounded() -> None:
    ran = await run("print('begun', flush=True)\nbytearray(4 << 30)")
    assert not ran.ok and ran.stdout == "begun\n" and "MemoryError" in ran.stderr


async def test_a_storm_of_prints_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "LARGEST_OUTPUT", 1000)
    ran = await run("print('x' * 1001)")
    assert ran.ok and ran.cut and ran.stdout == "x" * 1000
    ran = await run("while True: print('x' * 1000)", seconds=20)
    assert not ran.ok and not ran.timed_out and ran.cut and len(ran.stdout) == 1000
    assert "File too large" in ran.stderr


async def test_files_go_with_their_folder() -> None:
    ran = await run("import os; os.makedirs('a/b'); open('a/b/c', 'w').write('x'); print(os.getcwd())")
    assert ran.ok and not Path(ran.stdout.strip()).exists()
    ran = await run("open('large', 'wb').write(bytes(64 << 20))")
    assert not ran.ok and "File too large" in ran.stderr


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


DAEMON = """
import os, sys, time
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            time.sleep(600)
        os._exit(0)
    os.wait()
daemon()
while not open(1, 'rb', closefd=False).seek(0, 2): time.sleep(0.01)
"""


@LINUX
@pytest.mark.parametrize("end", ["", "os._exit(5)", "os.kill(os.getpid(), 9)"])
async def test_what_a_program_leaves_behind_is_killed(end: str) -> None:
    ran = await run(DAEMON + end)
    assert not ran.timed_out and not alive(int(ran.stdout))


@LINUX
async def test_a_fork_bomb_fizzles_out() -> None:
    ran = await run(
        "import os, time\n"
        "first = os.getpid()\n"
        "for _ in range(6):\n"
        "    os.fork()\n"
        "os.write(1, b'%8d\\n' % os.getpid())\n"
        "while os.getpid() != first or os.fstat(1).st_size < 64 * 9: time.sleep(0.01)\n"
    )
    pids = [int(pid) for pid in ran.stdout.split()]
    assert ran.ok and len(set(pids)) == 64 and not any(map(alive, pids))


@LINUX
async def test_a_program_that_kills_its_supervisor_dies_with_it() -> None:
    ran = await run("import os, time\nprint(os.getpid(), flush=True)\nos.kill(os.getppid(), 9)\ntime.sleep(600)")
    assert (ran.ok, ran.timed_out, ran.exit_code) == (False, False, 128 + signal.SIGKILL)
    while alive(int(ran.stdout)):  # its end is the kernel's, and may be a moment away
        await asyncio.sleep(0)


ESCAPE = """
import os, signal, sys, time
supervisor = os.getppid()
held = os.open(input(), os.O_WRONLY)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        AT_LAST
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""
KILLS = "os.kill(supervisor, 9)"
MULTIPLIES = """os.kill(supervisor, 9)
        while True:
            try:
                if os.fork() and os.getpid() % 2: os._exit(0)
                os.setsid()
            except OSError: pass"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[int]:
    """The reading end of a pipe that programs hold open by its name: at its end once none of them lives."""
    os.mkfifo(tmp_path / "held")
    reader = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    yield reader
    os.close(reader)


@pytest.fixture(params=["a control group", "no control group"])
def grouped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With and without what the kernel does for it where this account may make groups."""
    if request.param == "no control group":
        monkeypatch.setattr(sandbox, "new_group", lambda processes: None)
        return False
    if (group := new_group(1)) is None:
        pytest.skip("no control group can be made here")
    group.end()
    return True


@LINUX
@pytest.mark.parametrize("at_last", [KILLS, MULTIPLIES], ids=["kills", "multiplies"])
async def test_killing_it_from_another_session_leaves_nothing(at_last: str, grouped: bool, held: int) -> None:
    if at_last == MULTIPLIES and os.getuid() == 0 and not grouped:
        pytest.skip("the number of root's processes has no bound")
    ran = await run(ESCAPE.replace("AT_LAST", at_last), f"{tempfile.gettempdir()}/held\n")
    assert ran.exit_code == 128 + signal.SIGKILL and os.read(held, 1) == b""
    assert not any(map(stray, children())), "they are buried, too"


@LINUX
async def test_what_a_plugin_has_started_itself_is_not_of_a_program(held: int) -> None:
    own = await asyncio.create_subprocess_exec("sleep", "600")
    await run(ESCAPE.replace("AT_LAST", KILLS), f"{tempfile.gettempdir()}/held\n")
    assert own.returncode is None and alive(own.pid)
    own.kill()
    assert await own.wait() == -signal.SIGKILL, "nobody else has asked how it ended"


@LINUX
async def test_orphans_are_adopted_only_while_programs_run() -> None:
    def adopts() -> bool:
        found = ctypes.c_int()
        assert ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0) == 0
        return bool(found.value)

    first = asyncio.create_task(run("input()"))
    while not adopts():
        await asyncio.sleep(0)
    await asyncio.gather(first, run(""))
    assert not adopts()


@LINUX
def test_children_are_found_without_the_kernel_s_lists_too() -> None:
    with subprocess.Popen(["sleep", "600"]) as own:
        assert own.pid in children() and set(children()) == set(sandbox_supervisor.children_by_search(os.getpid()))
        own.kill()


@LINUX
async def test_a_program_gains_no_rights() -> None:
    ran = await run("print([line for line in open('/proc/self/status') if line.startswith('NoNewPrivs')])")
    assert "\\t1" in ran.stdout


async def test_folders_in_folders_go_with_theirs() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))  # as few files may be open as a worker of plugins has left
    ran = await run("import os\nfor _ in range(150): os.mkdir('d'); os.chdir('d')\nos.chmod('..', 0)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert ran.ok, "and the folder has gone: see the fixture"


async def test_a_program_cannot_make_itself_right() -> None:
    """It may end well and print anything: the answer is not there to be printed."""
    for attempt in ("import os; os._exit(0)", "print('ok')", "import sys; sys.stdout = open('verdict', 'w')"):
        ran = await run(f"{attempt}\nassert False", "21\n")
        assert ran.stdout != "42\n"


@LINUX
async def test_an_episode_that_is_cancelled_leaves_nothing() -> None:
    folder = Path(tempfile.gettempdir())
    running = asyncio.create_task(run("import os, time\nopen('pid', 'w').write(f'{os.getpid()}\\n')\ntime.sleep(600)"))
    while not (found := [path.read_text() for path in folder.glob("sandbox-*/pid")]) or not found[0].endswith("\n"):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not alive(int(found[0]))


async def test_only_so_many_run_at_once_and_waiting_is_told() -> None:
    told: list[str] = []

    @contextlib.contextmanager
    def queueing() -> Iterator[None]:
        told.append("waits")
        yield
        told.append("has a place")

    place, free = sandbox.places(), 0
    while not place.locked():
        await place.acquire()
        free += 1
    waiting = asyncio.create_task(Episode(Model(), queueing=queueing).sandbox.python("print(1)"))
    await asyncio.sleep(0)
    assert told == ["waits"] and not waiting.done()
    for _ in range(free):
        place.release()
    assert (await waiting).stdout == "1\n" and told == ["waits", "has a place"]


async def test_many_at_once() -> None:
    found = await asyncio.gather(*(run(f"print({number})") for number in range(12)))
    assert [ran.stdout for ran in found] == [f"{number}\n" for number in range(12)]


async def test_a_plain_function_runs_code_too() -> None:
    @env
    def coding(ep: BlockingEpisode) -> bool:
        return ep.sandbox.python(ep.ask("?").text, stdin="2", seconds=10).stdout == "4\n"

    assert (await play(coding, lambda ask: "print(int(input()) * 2)")).reward == 1.0


@pytest.mark.parametrize("arguments", [{"seconds": 0}, {"seconds": float("nan")}, {"memory_mb": -1}])
async def test_arguments_that_mean_nothing(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cannot grant"):
        await Episode(Model()).sandbox.python("", **arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="runs a text"):
        await Episode(Model()).sandbox.python(b"1")  # type: ignore[arg-type]


def test_the_supervisor_is_found_by_its_path() -> None:
    assert os.path.samefile(sandbox_supervisor.__file__, sandbox.SUPERVISOR)
