"""Somebody in front of the program who has never used it: presses no key before the screen has named it.

What is typed into a field (letters and backspace) needs no name, but a field that the screen shows.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from marlaas.engine.home.paths import Home

from ...end_to_end.conftest import Lab
from ...end_to_end.terminal import Terminal, terminal

Size = tuple[int, int]
"""Columns and rows of the terminal."""

BACKSPACE = "\x7f"
_KEYS = {"enter": ("⏎|enter", "\r"), "esc": ("esc", "\x1b"), "tab": ("tab", "\t"), "ctrl+s": (r"\^s|ctrl\+s", "\x13")}
"""How the screen names a key, and what the terminal sends for it; a letter is named by itself."""
_EDITOR = """#!{python}
import pathlib, sys

path = pathlib.Path(sys.argv[-1])
edit = min(pathlib.Path({edits!r}).glob(path.stem + "-*"))
path.write_text(edit.read_text())
edit.unlink()
"""


class Person:
    """Reads the screen, and does what stands there."""

    def __init__(self, screen: Terminal) -> None:
        self._screen = screen
        self._learnt: set[tuple[str, str]] = set()
        self.reads = screen.until_like

    @property
    def screen(self) -> str:
        """What stands on the screen at this moment."""
        return self._screen.text()

    def sees(self, *wanted: str) -> None:
        """Waits until the screen shows all of these; a sentence may go on in the next line."""

        def shown(text: str) -> bool:
            sentences = " ".join(text.split())
            return all(each in text or each in sentences for each in wanted)

        self._screen.until_so(shown, str(wanted))

    def sees_no_more(self, text: str) -> None:
        """Waits until this has gone from the screen."""
        self._screen.until_so(lambda shown: text not in shown, f"the end of {text!r}")

    def presses(self, key: str, does: str) -> None:
        """A key, as soon as the screen says what it does (``⏎ open``, ``enter opens``, ``Yes (y)``), or where the help
        has said it."""
        name, sent = _KEYS.get(key, (re.escape(key), key))
        if (key, does) not in self._learnt:
            self.reads(rf"(?<!\S)(?:{name}) (?:\S+ )?(?i:{re.escape(does)})|(?i:{re.escape(does)}) \((?:{name})\)")
        self._screen.press(sent)

    def types(self, text: str, into: str) -> None:
        """Letters, once the screen asks for them."""
        self.sees(into)
        self._screen.press(text)

    def learns(self, key: str, does: str) -> None:
        """Looks a key up in the help, whose frame says how it is scrolled and closed."""
        self.presses("?", "help")
        self.sees("keys of")
        named, moves = re.escape(key), re.escape(does)  # “p pause”, or “moving” above “arrows or h j k l”
        line = rf"(?<!\S){named} (?:\S+, )?{moves}|\s{moves}\s[^;]*\s{named}\s"
        while not re.search(line, before := self.reads(rf"(?s).*(?:{line}|j k scroll).*")[0]):
            self.presses("j", "scroll")
            self._screen.until_so(before.__ne__, f"more help, with {key} {does}")
        self._learnt.add((key, does))
        self.presses("esc", "close")
        self.sees_no_more("keys of")

    def opens(self, view: str) -> None:
        """A view, by the number before its name in the line at the top."""
        self.presses(self.reads(rf"(?<!\S)(\d) {view}")[1], view)

    def finds(self, name: str) -> None:
        """In the queue: the cursor on a task, or on a sweep."""
        self.presses("/", "filter")
        self.types(name, "esc clear filter")
        self.presses("enter", "to the list")
        self.reads(r"\d of \d")
        self.sees("palette", "/ filter")

    def leaves(self) -> str:
        """Quits; what the program says at the end."""
        self.sees("palette")
        if "q quit" not in self.screen:
            self.learns("q", "quit")
        self.presses("q", "quit")
        assert self._screen.end() == 0
        return self.screen


@contextlib.contextmanager
def person(home: Home, size: Size, *words: str, environment: Mapping[str, str] | None = None) -> Iterator[Person]:
    """Somebody who has just started ``marlaas WORDS`` on a home, with these variables of the environment."""
    with terminal(home, *words, columns=size[0], rows=size[1], environment=environment) as screen:
        yield Person(screen)


def edits(lab: Lab, monkeypatch: pytest.MonkeyPatch, plugin: str, *texts: str) -> None:
    """``EDITOR`` is somebody who saves these texts of a plugin, one each time that it opens."""
    folder = lab.home.root / "edits"
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{plugin}-{number}").write_text(text)
    script: Path = folder.with_name("editor")
    script.write_text(_EDITOR.format(python=sys.executable, edits=str(folder)))
    script.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", str(script))
