"""Opening the application: the first frame, what is loaded, and the installed program in a pseudo terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from textual.css.stylesheet import Stylesheet

from marlaas.app.app import ALL_MODES, MarlaasApp
from marlaas.app.text.format import cells
from marlaas.app.tui.frame.first_frame import ENTER, LEAVE, lines_of
from marlaas.engine.home.paths import Home
from tests.app.driving import driving
from tests.app.filling import NOW, Filling, fill_full, fill_hostile

SMALL = (60, 15)

BAR = " ▁▂▃▄▅▆▇█"
"""What the view's scrollbar is drawn with."""

LIGHT = "import sys, marlaas.app.tui.frame.first_frame; sys.exit('textual' in sys.modules)"

BROKEN = """
import sys
from marlaas.app.cli import terminal
from marlaas.app.cli.main import main
import marlaas.app.app
def broken(*args, **options): raise OSError("no such thing")
marlaas.app.app.MarlaasApp.run = broken
sys.exit(main())
"""


@pytest.mark.parametrize("size", [SMALL, (80, 24)])
async def test_the_table_stands_where_it_will_stand(home: Home, size: tuple[int, int]) -> None:
    filling = fill_full(home.database)
    filling.task(name="shop", state="paused", reason="It paused: no reply was read.")
    first = lines_of(home, "marlaas", *size, NOW)
    async with driving(home, size) as driver:
        view = driver.text().splitlines()
    assert first[0].startswith(" marlaas") and len(first) > 5
    assert [line.rstrip(BAR) for line in first[2:]] == [line.rstrip(BAR) for line in view[2 : len(first)]]


@pytest.mark.parametrize("size", [SMALL, (80, 24)])
def test_foreign_text_gives_the_terminal_no_orders(home: Home, size: tuple[int, int]) -> None:
    fill_hostile(home.database)
    for line in lines_of(home, "marlaas", *size, NOW):
        assert all(character.isprintable() for character in line) and cells(line) <= size[0]


def test_it_does_not_load_what_draws() -> None:
    assert subprocess.run([sys.executable, "-P", "-c", LIGHT], check=False).returncode == 0


def test_a_failure_leaves_the_terminal_as_it_was(home: Home, filling: Filling) -> None:
    filling.task(name="two-digit sums", made=3)
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(other)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", BROKEN], stdin=other, stdout=other, stderr=other, start_new_session=True
    )
    seen = b""
    while b"no such thing" not in seen:
        seen += os.read(terminal, 65536)
    assert process.wait() != 0
    assert termios.tcgetattr(other) == before
    text = seen.decode()
    assert text.count(ENTER) == 1 and text.index(ENTER) < text.index("two-digit sums") < text.index(LEAVE)
    os.close(other)
    os.close(terminal)


async def test_the_first_view_is_drawn_from_what_is_there(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not empty, until the first poll has come back: what stands on the first frame would go and come again."""
    fill_full(home.database)
    monkeypatch.setattr(MarlaasApp, "poll", lambda app: None)
    async with driving(home, (80, 24)) as driver:
        assert "task number 1" in driver.text()


LOADED = """
import asyncio, json, sys
from pathlib import Path
from marlaas.app.app import MarlaasApp
from marlaas.engine.home.paths import Home

async def main():
    app, seen = MarlaasApp(Home(Path(sys.argv[1])), interval=3600), {}
    async with app.run_test(size=(120, 36)) as pilot:
        for name in ("first paint", *sys.argv[2:]):
            if name != "first paint":
                app.action_open_view(name)
            await app.workers.wait_for_complete()
            await pilot.pause()
            seen[name] = [*sys.modules]
    print(json.dumps(seen))

asyncio.run(main())
"""

HEAVY = (
    "numpy",
    "torch",
    "msgspec",
    "sqlite_utils",
    "watchfiles",
    "jinja2",
    "tokenizers",
    "tomlkit",
    "hashlib",
    "http",
)
"""Libraries, and modules of Python's own, that no view needs before a key asks for more."""

LATER = (
    "tui.screens.dialogs",
    "tui.screens.editing",
    "tui.screens.submit",
    "tui.screens.chat",
    "tui.form",
    "tui.chat",
    "report",
    "cli",
)
"""Our own that nothing but a key opens, whichever view is in sight."""

BEFORE = ("tui.screens", "tui.screens.queue", "tui.screens.view")
"""What of ``app/tui/screens`` the first paint takes."""


def loaded(home: Home, *views: str) -> dict[str, set[str]]:
    """The modules that are there after the first paint, and after each view has been opened, in a fresh process."""
    fill_full(home.database)
    command = [sys.executable, "-P", "-c", LOADED, str(home.root), *views]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    environment["TZ"] = "UTC"  # coverage loads modules of its own
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return {name: set(modules) for name, modules in json.loads(told).items()}


@pytest.mark.parametrize("views", [(), pytest.param([mode.name for mode in ALL_MODES[1:]], marks=pytest.mark.slow)])
def test_what_is_loaded_before_the_first_paint_and_views(home: Home, views: Sequence[str]) -> None:
    found = loaded(home, *views)
    for view, modules in found.items():
        ours = {name.removeprefix("marlaas.app.") for name in modules if name.startswith("marlaas.app.")}
        assert not {name for name in modules if name.partition(".")[0] in HEAVY}, view
        assert not {name for name in ours if any(f"{name}.".startswith(f"{late}.") for late in LATER)}, view
    painted = found["first paint"]
    assert {name for name in painted if name.startswith("marlaas.app.tui.screens")} == {
        f"marlaas.app.{at}" for at in BEFORE
    }
    assert "psutil" not in painted


async def test_a_view_that_is_opened_reads_no_style_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_full(home.database)
    read: list[str] = []
    real = Stylesheet.reparse

    def reparse(sheet: Stylesheet) -> None:
        read.append("all")
        real(sheet)

    monkeypatch.setattr(Stylesheet, "reparse", reparse)
    async with driving(home) as driver:
        for place in (2, 3, 1, 2):
            await driver.press(str(place))
        assert not read, "the theme is known before the first style is read"
        dark = driver.app.screen.styles.background
        driver.app.theme = "marlaas-light"
        await driver.settle()
        light = driver.app.screen.styles.background
        assert read == ["all"]
        await driver.press("6")
        assert driver.app.screen.styles.background == light != dark, "a view out of sight follows the theme"
        assert "-light-mode" in driver.app.classes


ENTRY = "import sys; from marlaas.app.cli.main import main; sys.exit(main())"


def read_until(terminal: int, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        seen += os.read(terminal, 65536)


@contextlib.contextmanager
def program(code: str = ENTRY, **options: Any) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """It, in a pseudo terminal of 80 by 24."""
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    ends: dict[str, Any] = {"stdin": other, "stdout": other, "stderr": other, "start_new_session": True}
    process: subprocess.Popen[bytes] = subprocess.Popen([sys.executable, "-P", "-c", code], **ends | options)
    os.close(other)
    try:
        yield terminal, process
    finally:
        process.kill()  # a test that fails does not wait for it
        process.wait()
        with contextlib.suppress(OSError):
            os.close(terminal)


def quits(terminal: int, process: subprocess.Popen[bytes]) -> None:
    os.write(terminal, b"q")
    read_until(terminal, b"\x1b[?1049l")  # leaves the alternate screen
    with contextlib.suppress(OSError):  # Linux says so when the other end is closed
        while os.read(terminal, 65536):
            pass
    assert process.wait() == 0


def test_paints_and_quits(home: Home, filling: Filling) -> None:
    filling.task(name="two-digit sums", made=3)
    with program(env=os.environ | {"TERM": "xterm-256color"}) as (terminal, process):
        read_until(terminal, b"two-digit sums")
        os.write(terminal, b"\r")
        read_until(terminal, b"trajectory 1 of 3")
        quits(terminal, process)


def test_errors_sent_to_a_file_do_not_take_the_screen_with_them(home: Home, filling: Filling) -> None:
    filling.task(name="two-digit sums", made=3)
    with program(stderr=subprocess.PIPE) as (terminal, process):
        read_until(terminal, b"two-digi")  # the plain list: Textual would draw into the file
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0 and b"\x1b" not in errors


def test_a_terminal_without_unicode_has_ascii(home: Home, filling: Filling) -> None:
    filling.task(name="two-digit sums", made=3)
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    with program(env=os.environ | plain) as (terminal, process):
        read_until(terminal, b"o waiting")  # and not “? waiting”
        quits(terminal, process)


OWNER = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
STARTED = {"with a terminal of its own": OWNER, "without one": ""} | {
    "deaf to hangups": "signal.signal(signal.SIGHUP, signal.SIG_IGN);"
}


@pytest.mark.parametrize("started", STARTED)
def test_ends_once_its_terminal_is_gone(home: Home, filling: Filling, started: str) -> None:
    filling.task(name="two-digit sums", made=3)
    heard = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL);"  # whatever started the tests
    with program(f"{heard} {STARTED[started]} {ENTRY}") as (terminal, process):
        read_until(terminal, b"two-digit sums")
        os.close(terminal)
        code = process.wait(40)  # a second where it is told; the rest is for a machine that is busy
        assert code == (128 + signal.SIGHUP if started == "deaf to hangups" else -signal.SIGHUP)


@pytest.mark.processes
def test_ctrl_c_in_a_game_leaves_only_the_game(home: Home, filling: Filling) -> None:
    filling.environment("guess")
    with program(f"{OWNER} {ENTRY}", env=os.environ | {"TERM": "xterm-256color"}) as (terminal, process):
        read_until(terminal, b"palette")
        os.write(terminal, b"4")
        read_until(terminal, b"Sums of whole numbers")
        os.write(terminal, b"P")
        read_until(terminal, b"Loading guess")
        read_until(terminal, b"you> ")
        seen = b""
        while b"\x1b[?1049h" not in seen:  # until the application has the screen again
            os.write(terminal, b"\x03")  # a program that is just about to wait for a key does not hear it
            while select.select([terminal], [], [], 1.0)[0] and b"\x1b[?1049h" not in seen:
                seen += os.read(terminal, 65536)
        assert b"Enter goes back" not in seen
        read_until(terminal, b"Sums of whole numbers")
        quits(terminal, process)
