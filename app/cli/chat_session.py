"""A conversation in plain lines.

Ctrl-C ends answers in progress; the message then counts as never sent. Loads numpy.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence

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
ENDS = {"length": " [cut at the limit]", "full": "[The conversation is full: /new begins another.]"}


async def converse(
    home: Home,
    plan: LonePlan,
    sides: Sequence[Side],
    manner: Manner,
    system: str,
    keyboard: Keyboard,
    waiting: Waiting,
) -> int:
    """Talk with one or more sides, on one sampler, until the end of input. Raises ``MarlaasError``."""
    async with talking(home, plan, sides) as lone:
        lone.rollout.check_thinking(manner.thinking)
        waiting.end()
        output.talk(f"You talk with {', and with '.join(side.title for side in sides)}. /help says more.")
        number, talks = 0, list[Talk]()
        while True:
            if not talks:
                number += 1
                talks = [side.talk(lone, f"chat/{number}") for side in sides]
            try:
                message = keyboard.text("you> ").strip()
            except Left as left:
                return output.INTERRUPTED if left.wish == "interrupt" else output.OK
            word, _, rest = message.partition(" ")
            match word:
                case "/quit":
                    return output.OK
                case "/new" | "/system":
                    for talk in talks:
                        await talk.leave()
                    talks = []
                    system = rest.strip() if word == "/system" else system
                case "/help":
                    output.result(HELP)
                case _ if message:
                    await _turn(sides, talks, message, manner, system)


async def _turn(sides: Sequence[Side], talks: Sequence[Talk], message: str, manner: Manner, system: str) -> None:
    """One side's failure stops no other. Ctrl-C cancels only the turn."""
    turn = asyncio.gather(
        *(talk.say(message, manner, lambda speech: None, system) for talk in talks), return_exceptions=True
    )
    loop = asyncio.get_running_loop()
    try:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # no handler can be set here
            loop.add_signal_handler(signal.SIGINT, turn.cancel)
        answers = await turn
    except asyncio.CancelledError:
        output.talk("Interrupted; the message counts as never sent.")
        return
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    width = max(len(side.label) for side in sides) + 1
    for side, answer in zip(sides, answers, strict=True):
        if isinstance(answer, Speech):
            texts = [f"[thinks] {answer.thinking}"] if answer.thinking else []
            texts.append(answer.text + ENDS.get(answer.ended, ""))
        elif isinstance(answer, MarlaasError) and not isinstance(answer, WorkerDied):
            texts = [f"[{answer}]"]
        else:
            raise answer
        for text in texts:
            for place, row in enumerate(plain(text).split("\n")):
                label = "" if place else f"{line(side.label)}>"
                output.quote(f"{pad(label, width)} {row}")
