"""A conversation in plain lines.

Ctrl-C ends answers in progress; the message then counts as never sent. Loads numpy.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Sequence

from marlaas.engine.errors import MarlaasError, WorkerDied
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.lone_sampler import LonePlan
from marlaas.engine.rollout.talk import Manner, Speech, Talk

from .. import output
from ..text.format import line, pad, plain
from ..tui.chat.talking import Side, talking
from .chat import Keyboard, Left
from .terminal import Waiting

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
        self._home = home
        self._plan = plan
        self._sides = sides
        self._manner = manner
        self._system = system
        self._keyboard = keyboard
        self._waiting = waiting
        self._width = max(len(side.label) for side in sides) + 1

    async def run(self) -> int:
        """Run until the end of input. Raises ``MarlaasError``."""
        async with talking(self._home, self._plan, self._sides) as lone:
            lone.rollout.check_thinking(self._manner.thinking)
            self._waiting.end()
            output.talk(f"You talk with {', and with '.join(side.title for side in self._sides)}. /help says more.")
            code, number = None, 0
            while code is None:
                number += 1
                talks = [side.talk(lone, f"chat/{number}") for side in self._sides]
                code = await self._conversation(talks)
                for talk in talks:
                    await talk.leave()
            return code

    async def _conversation(self, talks: Sequence[Talk]) -> int | None:
        """Returns the exit code; None: another one begins."""
        while True:
            try:
                said = self._keyboard.text("you> ").strip()
            except Left as left:
                return output.INTERRUPTED if left.wish == "interrupt" else output.OK
            word, _, rest = said.partition(" ")
            match word:
                case "/quit":
                    return output.OK
                case "/new":
                    return None
                case "/system":
                    self._system = rest.strip()
                    return None
                case "/help":
                    output.result(HELP)
                case _ if said:
                    await self._turn(talks, said)

    async def _turn(self, talks: Sequence[Talk], said: str) -> None:
        """One side's failure stops no other. Ctrl-C cancels only the turn."""
        saying = (talk.say(said, self._manner, lambda speech: None, self._system) for talk in talks)
        turn = asyncio.gather(*saying, return_exceptions=True)
        loop = asyncio.get_running_loop()
        try:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # no handler can be set here
                loop.add_signal_handler(signal.SIGINT, turn.cancel)
            answers = await turn
        except asyncio.CancelledError:
            output.talk("Interrupted; the message counts as never sent.")
            return
        finally:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.remove_signal_handler(signal.SIGINT)
        for side, answer in zip(self._sides, answers, strict=True):
            if isinstance(answer, BaseException) and (
                isinstance(answer, WorkerDied) or not isinstance(answer, MarlaasError)
            ):
                raise answer
            for text in self._texts(answer):
                for place, row in enumerate(plain(text).split("\n")):
                    label = "" if place else f"{line(side.label)}>"
                    output.quote(f"{pad(label, self._width)} {row}")

    def _texts(self, answer: Speech | MarlaasError) -> Iterator[str]:
        """Thinking stands in brackets."""
        if isinstance(answer, MarlaasError):
            yield f"[{answer}]"
            return
        if answer.thinking:
            yield f"[thinks] {answer.thinking}"
        ends = {"length": " [cut at the limit]", "full": "[The conversation is full: /new begins another.]"}
        yield answer.text + ends.get(answer.ended, "")
