"""Programs of all kinds: what comes back, and that nothing of them stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.process.launch import Door
from marlaas.plugins import Endpoint, Environment, Episode, Range, env
from marlaas.plugins.programs import ProgramRun, forwarder, playing as running
from marlaas.plugins.programs.forwarder import Forwarder
from marlaas.plugins.programs.playing import run
from marlaas.plugins.programs.words import Addresses, filled, words_of

from .episodes import alive, leftovers

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell whose child a process was")


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark of this test's programs alone; nothing that bears it stays."""
    mark = f"MARLAAS_PROGRAM_{os.urandom(8).hex()}"
    monkeypatch.setattr(running, "MARK", mark)
    yield mark
    assert not leftovers(mark)


async def python(code: str, folder: Path, stdin: str = "") -> ProgramRun:
    return await run(("python", "-c", code), str(folder), dict(os.environ), stdin)


@pytest.mark.processes
@pytest.mark.usefixtures("mark")
async def test_a_program_reads_prints_and_ends(tmp_path: Path) -> None:
    ran = await python("print(input()); import sys; print('é', file=sys.stderr); sys.exit(3)", tmp_path, "it\n")
    assert (ran.stdout, ran.stderr, ran.exit_code, ran.ok, ran.cut) == ("it\n", "é\n", 3, False, False)
    assert ran.folder == str(tmp_path) and ran.seconds > 0


async def test_programs_wait_for_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One runs in any case. Each counts as the largest that has ended, until it has."""
    free = 100
    monkeypatch.setattr(running, "_LOOK", 0)
    monkeypatch.setattr(running, "_largest", lambda: 60)
    monkeypatch.setattr(running, "_free", lambda: free)
    places = running.Places()
    await places.take()
    second = asyncio.ensure_future(places.take())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not second.done() and places.running == 1
    free = 120
    await second
    third = asyncio.ensure_future(places.take())
    for _ in range(2):
        places.leave()
    await third
    assert places.running == 1


@pytest.mark.processes
@pytest.mark.usefixtures("mark")
async def test_signals_are_as_a_shell_has_them(tmp_path: Path) -> None:
    """A pipe that nobody reads ends a program without a word, as ``head`` expects of what is before it."""
    ran = await run(("bash", "-c", "set -o pipefail; yes | head -1; exit ${PIPESTATUS[0]}"), str(tmp_path), {}, "")
    assert (ran.stdout, ran.stderr, ran.exit_code) == ("y\n", "", 128 + signal.SIGPIPE)


@pytest.mark.processes
@pytest.mark.usefixtures("mark")
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


@pytest.mark.processes
@pytest.mark.usefixtures("mark")
@LINUX
@pytest.mark.parametrize("after", ["", "os.kill(os.getppid(), 9); time.sleep(600)", "os.kill(os.getpid(), 9)"])
async def test_what_it_leaves_is_killed(after: str, tmp_path: Path) -> None:
    """Also what has left its session, and where the program has killed the one that watches it."""
    await python(DAEMON + after, tmp_path)
    assert not alive(int((tmp_path / "pid").read_text()))


@pytest.mark.processes
@pytest.mark.usefixtures("mark")
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


def landlock() -> int:
    """The version of the kernel's Landlock; negative without it."""
    return int(ctypes.CDLL(None).syscall(444, None, 0, 1)) if sys.platform == "linux" else -1


@pytest.mark.processes
@pytest.mark.usefixtures("mark")
@pytest.mark.skipif(landlock() < 6, reason="this kernel lets a program signal all of its user's processes")
async def test_a_program_can_end_nothing_but_its_own(tmp_path: Path) -> None:
    """Neither the program of another episode, nor who watches it, nor the plugin's process."""
    code = """
import os, signal, subprocess, sys
for pid in map(int, sys.argv[1:] or [os.getppid()]):
    try:
        os.kill(pid, 0)
        print("can")
    except PermissionError:
        print("cannot")
own = subprocess.Popen(["sleep", "600"])
own.kill()
print(own.wait() == -signal.SIGKILL)
"""
    other = asyncio.create_task(python(DAEMON + "time.sleep(600)", tmp_path))
    while not (tmp_path / "pid").exists():
        await asyncio.sleep(0.01)
    pids = ((tmp_path / "pid").read_text(), str(os.getpid()))
    for words, says in ((pids, "cannot\ncannot\nTrue\n"), ((), "cannot\nTrue\n")):
        ran = await run(("python", "-c", code, *words), str(tmp_path), dict(os.environ), "")
        assert ran.stdout == says, ran.stderr
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)


HOST = """
import asyncio, os, sys
from marlaas.plugins.programs import playing as running
running.MARK = sys.argv[3]
asyncio.run(running.run(("python", "-c", sys.argv[1]), sys.argv[2], dict(os.environ), ""))
"""


@pytest.mark.processes
@pytest.mark.usefixtures("mark")
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


VALUES: dict[str, object] = {
    "prompt": "1+1=",
    "task": {"question": "how?", "choices": ["a", {"b": None}], "n": 3},
    "index": 7,
    "url": Addresses("http://127.0.0.1:1/v1", {"first": "http://127.0.0.1:1/e/first/v1"}),
}


def test_words_are_split_as_a_shell_splits_them() -> None:
    assert words_of("python 'my agent.py' --x=\"a b\" $HOME|cat") == ("python", "my agent.py", "--x=a b", "$HOME|cat")
    assert words_of(["a b", ""]) == ("a b", "")
    assert words_of("python ~/agent.py") == ("python", os.path.expanduser("~/agent.py"))


@pytest.mark.parametrize(
    ("command", "says"),
    [("", "has no words"), ([], "has no words"), ([""], "has no words"), ("a 'b", "cannot be split into words: No cl")],
)
def test_commands_that_are_none(command: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        words_of(command)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{prompt}", "1+1="),
        ("--n={task[n]} {index}", "--n=3 7"),
        ("{task[choices][1][b]}", "null"),
        ('{{task}} {{task[n]}} {"n": {task[n]}} {x{index}}', '{{task}} {{task[n]}} {"n": 3} {x7}'),
        ("{task[choices]}", '["a", {"b": null}]'),
        ('{"a": {}} ${HOME} {unknown} {0} {task.n}', '{"a": {}} ${HOME} {unknown} {0} {task.n}'),
        ("{url}/x {url[first]}", "http://127.0.0.1:1/v1/x http://127.0.0.1:1/e/first/v1"),
    ],
)
def test_what_is_filled_in(template: str, text: str) -> None:
    assert filled(template, VALUES) == text


@given(st.text(), st.text())
def test_what_is_filled_in_is_not_looked_into(before: str, prompt: str) -> None:
    """A prompt that holds placeholders stays as it is, and no word becomes two."""
    before = before.replace("{", "")
    assert filled(f"{before}{{prompt}}", VALUES | {"prompt": prompt}) == before + prompt


@asynccontextmanager
async def way(folder: Path, far: str) -> AsyncIterator[int]:
    """The port at which a process in ``folder`` reaches the server ``far``."""
    door, inside = Door(folder), Forwarder(folder)
    try:
        name = await door.open(far)
        assert await door.open(far) == name and (folder / name).is_socket()
        port = await inside.port(name)
        own = await inside.inside(Endpoint(f"{far}/x", "key"), name)
        assert own == Endpoint(f"http://127.0.0.1:{port}{urlsplit(far).path}/x", "key")
        yield port
    finally:
        inside.close()
        door.close()
        await asyncio.sleep(0)
    assert not list(folder.iterdir())


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write(b"<end>")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    server.close()


async def test_bytes_go_both_ways(tmp_path: Path) -> None:
    """Through a folder whose path is longer than a socket's may be."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    async with echo() as far, way(folder, far) as port:

        async def one(number: int) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"%d" % number * 200_000)
            writer.write_eof()
            said = await reader.read()
            writer.close()
            return said

        said = await asyncio.gather(*(one(number) for number in range(4)))
        assert said == [b"%d" % number * 200_000 + b"<end>" for number in range(4)]


async def test_a_client_that_leaves_is_told_of(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"token")
        await reader.read()
        left.set()
        writer.close()

    server = await asyncio.start_server(streams, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with way(tmp_path, url) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readexactly(5) == b"token"
        writer.close()
        await left.wait()
    server.close()


async def test_connections_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "MOST", 0)
    async with echo() as far, way(tmp_path, far) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()


def test_an_assigned_program_is_an_environment() -> None:
    solve = env.program("bash agent.sh", reward="exit", timeout=5)
    assert isinstance(solve, Environment) and not solve.blocking
    assert (solve.name, solve.timeout, solve.takes_task, solve.rows) == ("agent", 5.0, False, "")
    assert solve.description == "Plays bash agent.sh"
    assert env.program("a", reward="exit", name="b", agents=("x", "y")).agents == ("x", "y")


@pytest.mark.parametrize("command", ["a {prompt}", "a {task[x]}"])
def test_a_program_that_names_its_task_gets_rows(command: str) -> None:
    assert env.program(command, reward="exit").rows == "task"
    assert env.program("a", reward="exit", stdin="{task}").rows == "task"
    assert env.program("a", reward="exit", data="rows.jsonl").rows == "own"


def test_a_function_gives_name_parameters_and_description() -> None:
    @env.program("a", on_error=0.5, score_timeout=3)
    def solve(ep: Any, run: ProgramRun, task: Any, digits: Annotated[int, Range(1, 4)] = 2) -> float:
        """Solves it."""
        return 0.0

    assert isinstance(solve, Environment)
    assert (solve.name, solve.description, solve.takes_task, solve.on_error) == ("solve", "Solves it.", True, 0.5)
    (digits,) = solve.parameters
    assert (digits.name, digits.type, digits.default, digits.high) == ("digits", "int", 2, 4)
    assert solve.score_timeout == 3.0


def test_a_function_that_prepares_takes_no_end() -> None:
    @env.program("a {prompt}", reward="exit", name="named")
    async def solve(ep: Episode, words: int = 3) -> str:
        return "x"

    assert isinstance(solve, Environment)
    assert (solve.name, [one.name for one in solve.parameters], solve.rows) == ("named", ["words"], "")


def judged(ep: Any, run: Any) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("declare", "error", "says"),
    [
        (lambda: env.program(judged), TypeError, "a program is a command"),  # type: ignore[arg-type]
        (lambda: env.program("a", reward=3), TypeError, 'reward is "exit", the name of a file'),  # type: ignore[arg-type]
        (lambda: env.program("a", reward="../r"), ValueError, "'../r' does not lie in the program's folder"),
        (lambda: env.program("a", reward=lambda: 0), TypeError, r"def scorer\(run\), or \(ep, run\)"),
        (lambda: env.program("a", reward="exit")(judged), TypeError, r"judged\(ep, run\) says the reward, and so does"),
        (lambda: env.program("a")(lambda run: 0), TypeError, "must take ep, run"),
        (lambda: env.program("a", reward="exit")(lambda: 0), TypeError, "must take ep, …"),
        (lambda: env.program("a")(int), TypeError, "stands over a function"),
        (lambda: env.program("a", env={"A": 1}), TypeError, "a variable is a text by its name"),  # type: ignore[dict-item]
        (lambda: env.program("a", env={"A=": ""}), TypeError, "a variable is a text by its name"),
        (lambda: env.program("a", stdin=b""), TypeError, "stdin is a text"),  # type: ignore[arg-type]
        (lambda: env.program("a", exit_codes=()), TypeError, "exit_codes are the whole numbers"),
        (lambda: env.program("a", exit_codes=(True,)), TypeError, "exit_codes are the whole numbers"),
        (lambda: env.program("a", files="x.py"), TypeError, "files must be names beside the plugin"),
        (lambda: env.program("a", files=[3]), TypeError, "the name of a file is a text"),  # type: ignore[list-item]
        (lambda: env.program("a", files={"x": 3}), TypeError, "'x' must be a text or a path"),  # type: ignore[dict-item]
        (lambda: env.program("a", files={"../x": "text here"}), ValueError, "'../x' does not lie in the program's"),
        (lambda: env.program("a", files={"/x": "text here"}), ValueError, "'/x' does not lie in the program's"),
        (lambda: env.program("a", files=["none.py"]), ValueError, "there is no none.py beside the plugin"),
        (lambda: env.program("a", files={"x": "none.py"}), ValueError, "there is no none.py beside the plugin"),
        (lambda: env.program("a", timeout=0), ValueError, "the timeout of a must be a number of seconds"),
        (lambda: env.program("a", on_error="x"), (TypeError, ValueError), "on_error of a must be a number"),  # type: ignore[arg-type]
    ],
)
def test_mistakes(declare: Callable[[], Any], error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        declare()
