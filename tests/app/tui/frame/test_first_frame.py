"""The first frame has the first view's lines at the same places, and the terminal is afterwards as before."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from marlaas.app.app import MarlaasApp
from marlaas.app.text.format import cells
from marlaas.app.tui.frame.first_frame import ENTER, LEAVE, lines_of
from marlaas.engine.home.paths import Home

from ...driving import SIZES, driving
from ...filling import NOW, Filling, fill_full, fill_hostile

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


@pytest.mark.parametrize("size", [SMALL, *SIZES])
async def test_the_table_stands_where_it_will_stand(home: Home, size: tuple[int, int]) -> None:
    filling = fill_full(home.database)
    filling.task(name="shop", state="paused", reason="It paused: no reply was read.")
    first = lines_of(home, "marlaas", *size, NOW)
    async with driving(home, size) as driver:
        view = driver.text().splitlines()
    assert first[0].startswith(" marlaas") and len(first) > 5
    assert [line.rstrip(BAR) for line in first[2:]] == [line.rstrip(BAR) for line in view[2 : len(first)]]


@pytest.mark.parametrize("size", [SMALL, *SIZES])
def test_foreign_text_gives_the_terminal_no_orders(home: Home, size: tuple[int, int]) -> None:
    fill_hostile(home.database)
    for line in lines_of(home, "marlaas", *size, NOW):
        assert all(character.isprintable() for character in line) and cells(line) <= size[0]


def test_an_empty_home_has_a_first_line_alone(home: Home) -> None:
    assert [line.split() for line in lines_of(home, "marlaas demo", 80, 24, NOW)] == [
        ["marlaas", "demo", "opening", "…"],
        [],
    ]


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
