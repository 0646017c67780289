"""``chat``: a conversation with a version in the terminal, and the line that one types."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from marlaas.engine.errors import MarlaasError, WorkerDied
from marlaas.engine.fleet import LonePlan, LoneSampler
from marlaas.engine.home import Home, load_settings
from marlaas.engine.rollout import Manner, Speech, Talk

from .. import output
from ..chat.sampling_options import add_sampling, truncation
from ..chat.talking import Side, talking
from ..reading.opening import reading
from ..words.format import line, pad, plain
from .parser import Verbs, add_verb, arg, home_of
from .tasks import Waiting
from .terminal import has_terminal

# The person at the keyboard, or the script in a pipe: prompts out, lines in.
#
# On a terminal lines can be edited, and Ctrl-C is heard at once. From a pipe what was read is printed behind its
# prompt, so that what comes out reads as it was played. Knows nothing of environments.

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


# A conversation in plain lines: each message to all sides at once, each answer under the name of its side.
#
# Ctrl-C ends the answers that are under way; the message then counts as never said.

HELP = '/new begins anew, /system TEXT also says who the model is, /quit ends. """ begins and ends several lines.'


class Chat:
    """A conversation with one or more sides, on one sampler."""

    def __init__(
        self,
        home: Home,
        plan: LonePlan,
        sides: Sequence[Side],
        manner: Manner,
        system: str,
        keyboard: Keyboard,
        waiting: Waiting,
    ) -> None:
        """``waiting`` ends once somebody answers."""
        self._home = home
        self._plan = plan
        self._sides = sides
        self._manner = manner
        self._system = system
        self._keyboard = keyboard
        self._waiting = waiting
        self._width = max(len(side.label) for side in sides) + 1
        self._place = 0

    async def run(self) -> int:
        """Until the end of the input. Raises ``MarlaasError``."""
        async with talking(self._home, self._plan, self._sides) as lone:
            lone.rollout.check_thinking(self._manner.thinking)
            self._waiting.end()
            output.talk(f"You talk with {', and with '.join(side.title for side in self._sides)}. /help says more.")
            talks = self._anew(lone)
            while True:
                try:
                    said = self._keyboard.text("you> ").strip()
                except Left as left:
                    return output.INTERRUPTED if left.wish == "interrupt" else output.OK
                word, _, rest = said.partition(" ")
                if word == "/quit":
                    return output.OK
                if word == "/system":
                    self._system = rest.strip()
                if word in ("/new", "/system"):
                    for talk in talks:
                        await talk.leave()
                    talks = self._anew(lone)
                elif word == "/help":
                    output.result(HELP)
                elif said:
                    await self._turn(talks, said)

    def _anew(self, lone: LoneSampler) -> list[Talk]:
        self._place += 1
        return [side.talk(lone, f"chat/{self._place}") for side in self._sides]

    async def _turn(self, talks: Sequence[Talk], said: str) -> None:
        """Say it to all sides; what one of them cannot answer, the others do."""
        saying = (talk.say(said, self._manner, lambda speech: None, self._system) for talk in talks)
        turn = asyncio.gather(*saying, return_exceptions=True)
        try:
            with _interrupting(turn):
                answers = await turn
        except asyncio.CancelledError:
            output.talk("Interrupted; the message counts as never sent.")
            return
        for side, answer in zip(self._sides, answers, strict=True):
            if isinstance(answer, WorkerDied) or (
                isinstance(answer, BaseException) and not isinstance(answer, MarlaasError)
            ):
                raise answer
            for row in self._rows(side, answer):
                output.quote(row)

    def _rows(self, side: Side, answer: Speech | MarlaasError) -> Iterator[str]:
        """An answer under its side's name; thinking is in brackets, which tell it from the answer without colours."""
        if isinstance(answer, MarlaasError):
            yield from self._labelled(side.label, f"[{answer}]")
            return
        if answer.thinking:
            yield from self._labelled(side.label, f"[thinks] {answer.thinking}")
        ends = {"length": " [cut at the limit]", "full": "[The conversation is full: /new begins another.]"}
        yield from self._labelled(side.label, answer.text + ends.get(answer.ended, ""))

    def _labelled(self, label: str, text: str) -> Iterator[str]:
        first, *others = plain(text).split("\n")
        yield f"{pad(f'{line(label)}>', self._width)} {first}"
        yield from (f"{' ' * self._width} {row}" for row in others)


@contextlib.contextmanager
def _interrupting(turn: asyncio.Future[list[Speech | BaseException]]) -> Iterator[None]:
    """While the block runs, Ctrl-C cancels the turn and nothing else, where a signal handler can be set."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, turn.cancel)
    except (NotImplementedError, RuntimeError, ValueError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


# ``chat``: talk with a version of an adapter in plain lines, beside another one or the bare base if asked for.


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


def run(args: argparse.Namespace) -> int:
    """Talk until the person has enough."""

    with Waiting(f"Loading {args.who}") as waiting:  # importing what talks takes a while by itself
        return _talk(args, waiting)


def _talk(args: argparse.Namespace, waiting: Waiting) -> int:
    import asyncio

    from marlaas.engine.fleet import plan_alone

    from ..chat.talking import ROOMY, cost_of, manner_of, side_of

    home = home_of(args)
    with reading(home) as reader:
        versions = reader.versions() if reader else []
        sides = [side_of(versions, said) for said in dict.fromkeys((args.who, args.beside or args.who))]
        wanted = {
            "temperature": args.temperature,
            "max_tokens": args.max_tokens,
            "truncation": truncation(args),
        }
        manner = manner_of(reader, sides[0]) if reader else ROOMY
    manner = replace(manner, **{key: value for key, value in wanted.items() if value is not None})
    plan = plan_alone(load_settings(home))
    waiting.say(f"{cost_of(plan)} Starting it …")
    chat = Chat(home, plan, sides, manner, args.system, Keyboard(), waiting)
    try:
        return asyncio.run(chat.run())
    except KeyboardInterrupt:
        return output.INTERRUPTED
