"""``chat``: a conversation with a version in the terminal, and its input."""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
import sys
from dataclasses import replace
from itertools import takewhile

from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import load_settings

from .. import output
from ..reading import reading
from ..text.format import plain
from ..tui.chat.sampling_options import add_sampling, truncation
from .parser import Verbs, add_verb, arg
from .terminal import Waiting, has_terminal

# From a pipe, input is echoed after its prompt, so the output reads as played.

BLOCK = '"""'
"""Begins and ends a text of several lines."""


class Left(Exception):
    """The person leaves: ``wish`` is ``quit``, ``interrupt`` or another command."""

    def __init__(self, wish: str) -> None:
        super().__init__(wish)
        self.wish = wish


class Keyboard:
    """Reads standard input."""

    def __init__(self) -> None:
        self._terminal = sys.stdin is not None and has_terminal()
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        if self._terminal and not output.is_plain():  # it draws the line again
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - lines can then be edited, and earlier ones called back

    def text(self, prompt: str) -> str:
        """One line, or the block that it begins. Raises ``Left`` at the end of input and on Ctrl-C."""
        rows = self.line(prompt).split("\n")  # a terminal hands over pasted lines as one
        if rows[0].strip() != BLOCK:
            return "\n".join(rows)
        while BLOCK not in (row.strip() for row in rows[1:]):
            rows += self.line(f"{'.' * (len(prompt) - 1)} ").split("\n")
        return "\n".join(takewhile(lambda row: row.strip() != BLOCK, rows[1:]))

    def line(self, prompt: str) -> str:
        """One line without its end, in whole characters. Raises as ``text``."""
        # asyncio's handler would cancel a task, unable to react while this process reads the keyboard.
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


def run(home: Home, args: argparse.Namespace) -> int:
    """Talk with a version in plain lines, optionally with another or the bare base."""
    with Waiting(f"Loading {args.who}") as waiting:  # importing what talks takes a while by itself
        import asyncio

        from marlaas.engine.machine.lone_sampler import plan_alone

        from ..tui.chat.talking import ROOMY, cost_of, manner_of, side_of
        from .chat_session import converse

        with reading(home) as reader:
            versions = reader.versions() if reader else []
            sides = [side_of(versions, said) for said in dict.fromkeys((args.who, args.beside or args.who))]
            manner = manner_of(reader, sides[0]) if reader else ROOMY
        options = {"temperature": args.temperature, "max_tokens": args.max_tokens, "truncation": truncation(args)}
        manner = replace(manner, **{key: value for key, value in options.items() if value is not None})
        plan = plan_alone(load_settings(home))
        waiting.say(f"{cost_of(plan)} Starting it …")
        return asyncio.run(converse(home, plan, sides, manner, args.system, Keyboard(), waiting))


def register(verbs: Verbs) -> None:
    """Add the verb."""
    add_verb(
        verbs,
        "chat",
        run,
        "talk with a version of an adapter, or with the base",
        arg(
            "who",
            metavar="ID[@VERSION]|base",
            help="a task's number or name (default version: best, else last; ID/POLICY where it trains several),"
            " or base",
        ),
        arg("--beside", metavar="ID[@VERSION]|base", help="a version that gets each message as well"),
        arg("--system", metavar="TEXT", default="", help="a system message before the conversation"),
        add_sampling,
        epilog="Needs no engine: a sampler of its own runs while the conversation does. /new begins anew, /system TEXT"
        " also says who the model is, Ctrl-C ends an answer, /quit or the end of the input ends the program.",
    )
