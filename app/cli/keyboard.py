"""The person at the keyboard, or the script in a pipe: prompts out, lines in.

On a terminal lines can be edited, and Ctrl-C is heard at once. From a pipe what was read is printed behind its prompt,
so that what comes out reads as it was played. Knows nothing of environments.
"""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from itertools import takewhile

from .. import output
from ..words.format import plain
from .terminal import has_terminal

BLOCK = '"""'
"""A line of just this begins a text of several lines, and another one ends it."""


class Left(Exception):
    """The person wants to stop: ``wish`` is ``quit``, ``interrupt``, or the other thing that they want."""

    def __init__(self, wish: str) -> None:
        super().__init__(wish)
        self.wish = wish


class Keyboard:
    """Reads standard input."""

    def __init__(self) -> None:
        self._terminal = sys.stdin is not None and has_terminal()
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        if self._terminal and not output.is_plain():  # it draws the line anew
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - lines can then be edited, and earlier ones called back

    def text(self, prompt: str) -> str:
        """One line, or the block that it begins. Raises ``Left`` at the end of the input and on Ctrl-C."""
        rows = self.line(prompt).split("\n")  # a terminal hands over pasted lines as one
        if rows[0].strip() != BLOCK:
            return "\n".join(rows)
        while BLOCK not in (row.strip() for row in rows[1:]):
            rows += self.line(f"{'.' * (len(prompt) - 1)} ").split("\n")
        return "\n".join(takewhile(lambda row: row.strip() != BLOCK, rows[1:]))

    def line(self, prompt: str) -> str:
        """One line without its end, in whole characters only. Raises as ``text`` does."""
        # asyncio's own handler would cancel a task, which cannot react while this process waits for the keyboard.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            typed = input(prompt) if self._terminal else _from_pipe(prompt)
        except EOFError:
            output.result("")
            raise Left("quit") from None
        except KeyboardInterrupt:
            output.result("")
            raise Left("interrupt") from None
        finally:
            signal.signal(signal.SIGINT, before)
        return typed.encode("utf-8", "replace").decode()


def _from_pipe(prompt: str) -> str:
    sys.stdout.write(prompt)
    sys.stdout.flush()
    typed = sys.stdin.readline() if sys.stdin is not None else ""  # whoever started this process may have closed it
    if not typed:
        raise EOFError
    typed = typed.removesuffix("\n").removesuffix("\r")
    output.result(plain(typed))
    return typed
