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

from marlaas.plugins import Episode, Ran, sandbox, sandbox as cgroups, sandbox_supervisor
from marlaas.plugins.sandbox import new_group, remove_folder
from marlaas.plugins.sandbox_supervisor import (
    STARVED,
    Ended,
    Used,
    Watch,
    children,
    stray,
    wall_limit,
)

from .scripted import Model

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell whose child a process was")

PR_GET_CHILD_SUBREAPER = 37


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where sandboxes have their folders: empty again afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert not list(tmp_path.glob("sandbox-*"))


async def run(code: str, stdin: str = "", seconds: float = 10.0, memory_mb: int = 256) -> Ran:
    return await Episode(Model()).sandbox.python(code, stdin, seconds=seconds, memory_mb=memory_mb)


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_a_program_reads_and_prints() -> None:
    ran = await run("import sys\nprint(int(input()) * 2)\nprint('é', file=sys.stderr)", "21\n")
    assert ran == Ran("42\n", "é\n", 0, timed_out=False, cut=False) and ran.ok


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
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


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
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


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_memory_is_bounded() -> None:
    ran = await run("print('begun', flush=True)\nbytearray(4 << 30)")
    assert not ran.ok and ran.stdout == "begun\n" and "MemoryError" in ran.stderr


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_a_storm_of_prints_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "LARGEST_OUTPUT", 1000)
    ran = await run("print('x' * 1001)")
    assert ran.ok and ran.cut and ran.stdout == "x" * 1000
    ran = await run("while True: print('x' * 1000)", seconds=20)
    assert not ran.ok and not ran.timed_out and ran.cut and len(ran.stdout) == 1000
    assert "File too large" in ran.stderr


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
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


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
@LINUX
@pytest.mark.parametrize("end", ["", "os._exit(5)", "os.kill(os.getpid(), 9)"])
async def test_what_a_program_leaves_behind_is_killed(end: str) -> None:
    ran = await run(DAEMON + end)
    assert not ran.timed_out and not alive(int(ran.stdout))


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
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


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
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


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
@LINUX
@pytest.mark.parametrize("at_last", [KILLS, MULTIPLIES], ids=["kills", "multiplies"])
async def test_killing_it_from_another_session_leaves_nothing(at_last: str, grouped: bool, held: int) -> None:
    if at_last == MULTIPLIES and os.getuid() == 0 and not grouped:
        pytest.skip("the number of root's processes has no bound")
    ran = await run(ESCAPE.replace("AT_LAST", at_last), f"{tempfile.gettempdir()}/held\n")
    assert ran.exit_code == 128 + signal.SIGKILL and os.read(held, 1) == b""
    assert not any(map(stray, children())), "they are buried, too"


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
@LINUX
async def test_what_a_plugin_has_started_itself_is_not_of_a_program(held: int) -> None:
    own = await asyncio.create_subprocess_exec("sleep", "600")
    await run(ESCAPE.replace("AT_LAST", KILLS), f"{tempfile.gettempdir()}/held\n")
    assert own.returncode is None and alive(own.pid)
    own.kill()
    assert await own.wait() == -signal.SIGKILL, "nobody else has asked how it ended"


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
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


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
@LINUX
def test_children_are_found_without_the_kernel_s_lists_too() -> None:
    with subprocess.Popen(["sleep", "600"]) as own:
        assert own.pid in children() and set(children()) == set(sandbox_supervisor.children_by_search(os.getpid()))
        own.kill()


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
@LINUX
async def test_a_program_gains_no_rights() -> None:
    ran = await run("print([line for line in open('/proc/self/status') if line.startswith('NoNewPrivs')])")
    assert "\\t1" in ran.stdout


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_folders_in_folders_go_with_theirs() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))  # as few files may be open as a worker of plugins has left
    ran = await run("import os\nfor _ in range(150): os.mkdir('d'); os.chdir('d')\nos.chmod('..', 0)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert ran.ok, "and the folder has gone: see the fixture"


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
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


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
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


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize("arguments", [{"seconds": 0}, {"seconds": float("nan")}, {"memory_mb": -1}])
async def test_arguments_that_mean_nothing(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cannot grant"):
        await Episode(Model()).sandbox.python("", **arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="runs a text"):
        await Episode(Model()).sandbox.python(b"1")  # type: ignore[arg-type]


DELAYS = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell how long a process has waited")

COMPUTES = """
import os, sys, time
os.sched_setaffinity(0, {int(input())})
until = time.process_time() + float(sys.stdin.read())
while time.process_time() < until: pass
print("right")
"""


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


@DELAYS
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


@DELAYS
@pytest.mark.processes
async def test_what_many_short_programs_compute_is_added_up() -> None:
    short = "t = time.process_time()\nwhile time.process_time() < t + 0.05: pass"
    again = f"while True:\n    if not os.fork():\n        exec({short!r})\n        os._exit(0)\n    os.wait()"
    assert (await run(f"import os, time\n{again}", seconds=0.3)).timed_out


@DELAYS
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


def test_what_was_starved_is_not_judged() -> None:
    looks = Looks()
    watch = Watch(2.0, looks, cores=2)
    while looks.now.wall < wall_limit(2.0) - 1:
        looks.after(1.0, computed=0.01, delayed=0.99)
        assert verdict(watch) == 0
    looks.after(1.0, computed=0.01, delayed=0.99)
    assert verdict(watch) == STARVED


@pytest.mark.processes
def test_a_group_ends_with_all_that_is_in_it() -> None:
    group = new_group(8)
    if group is None:
        pytest.skip("no control group can be made here")
    os.mkdir(os.path.join(group.path, "below"))
    command = "import os, sys; open(sys.argv[1], 'w').write('0'); print(flush=True); os.fork(); os.setsid(); input()"
    inside = os.path.join(group.path, "below", "cgroup.procs")
    with subprocess.Popen(
        [sys.executable, "-c", command, inside], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as one:
        assert one.stdout is not None and one.stdout.readline() == b"\n"
        group.end()
        assert one.stdout.read() == b"", "it and its child are gone"
        assert one.wait() == -9 and not os.path.exists(group.path)


def test_its_files_are_written_without_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lets a group's owner write ``cgroup.kill``, and not read it; root may do both."""
    user = os.geteuid() or 65534
    mkdir = os.mkdir

    def made(path: str) -> None:
        mkdir(path)
        for name, mode in (("cgroup.kill", 0o200), ("pids.max", 0o644)):
            os.close(os.open(os.path.join(path, name), os.O_WRONLY | os.O_CREAT, mode))

    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        monkeypatch.setattr(cgroups, "parent_group", lambda: place)
        monkeypatch.setattr(os, "mkdir", made)
        os.chown(place, user, -1)
        before = os.geteuid()
        os.seteuid(user)
        try:
            group = new_group(8)
            assert group is not None
            with pytest.raises(PermissionError):
                Path(group.path, "cgroup.kill").read_bytes()
            group.end()
        finally:
            os.seteuid(before)
        os.chmod(os.path.join(group.path, "cgroup.kill"), 0o600)
        assert [Path(group.path, name).read_bytes() for name in ("pids.max", "cgroup.kill")] == [b"8", b"1"]


@pytest.mark.parametrize("place", [None, "/proc"], ids=["no place", "a place that refuses"])
def test_none_to_be_had(place: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "parent_group", lambda: place)
    assert new_group(8) is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    """Neither into what they lead to, nor to its permissions."""
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "kept").write_text("x")
    beside.chmod(0o500)
    (folder / "deep").mkdir()
    for link in (folder / "link", folder / "deep" / "link"):
        link.symlink_to(beside)
    os.link(beside / "kept", folder / "hard")
    remove_folder(str(folder))
    assert not folder.exists() and (beside / "kept").read_text() == "x" and beside.stat().st_mode & 0o777 == 0o500
    link = tmp_path / "itself"
    link.symlink_to(beside)
    remove_folder(str(link))
    assert link.is_symlink() and (beside / "kept").exists()


def test_without_permissions(folder: Path) -> None:
    inner = folder / "a" / "b"
    (inner / "c").mkdir(parents=True)
    (inner / "file").write_text("x")
    for closed in (inner / "c", inner, folder / "a", folder):
        closed.chmod(0)
    remove_folder(str(folder))
    assert not folder.exists()
