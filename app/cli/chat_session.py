"""A conversation in plain lines: each message to all sides at once, each answer under the name of its side.

Ctrl-C ends the answers that are in progress; the message then counts as never sent. Loads numpy.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Sequence

from marlaas.engine.errors import MarlaasError, WorkerDied
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.lone_sampler import LonePlan, LoneSampler
from marlaas.engine.rollout.talk import Manner, Speech, Talk

from .. import output
from ..text.format import line, pad, plain
from ..tui.chat.talking import Side, talking
from .chat import Keyboard, Left
from .tasks import Waiting

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
    """While the block runs, Ctrl-C cancels the turn and nothing else, if a signal handler can be set."""
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
