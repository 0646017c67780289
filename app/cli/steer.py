"""``pause``, ``resume`` and ``cancel``: asks the engine, and reports what it answered."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import output
from .verbs import Verbs, add_verb, home_of, task_number

if TYPE_CHECKING:
    from marlaas.engine.store.reader import Reader

ANSWER_SECONDS = 30.0
_SUMMARIES = {
    "pause": "pause tasks; nothing is lost",
    "resume": "go on with paused tasks",
    "cancel": "end tasks for good; their adapters stay",
}
_PAST = {"pause": "paused", "resume": "resumed", "cancel": "cancelled"}


def register(verbs: Verbs) -> None:
    """Add the three verbs."""
    for kind, summary in _SUMMARIES.items():
        verb = add_verb(verbs, kind, run, summary)
        verb.set_defaults(kind=kind)
        verb.add_argument("tasks", type=task_number, nargs="+", metavar="ID")


def run(args: argparse.Namespace) -> int:
    """Send one command per task and wait for the outcomes."""
    from marlaas.engine.daemon import control
    from marlaas.engine.errors import EngineUnreachable
    from marlaas.engine.store.submissions import command

    from .reading import find_task, reading

    home, numbers = home_of(args), list(dict.fromkeys(args.tasks))
    with reading(home) as reader:
        for number in numbers:
            find_task(reader, number)
        assert reader is not None
        if not control.alive(home):
            raise EngineUnreachable(f"No engine serves {home.root}.", "`marlaas engine start` starts one.")
        sent = {command(home.database, args.kind, number): number for number in numbers}
        outcomes = wait_for_outcomes(reader, list(sent))
    for identifier, number in sent.items():
        if identifier not in outcomes:
            raise EngineUnreachable(
                f"The engine has not answered for task {number} within {ANSWER_SECONDS:g} s.",
                "It will carry the command out when it gets to it; `marlaas engine status` shows its state.",
            )
        if outcomes[identifier]:
            output.complain(f"Task {number}: {outcomes[identifier]}")
        else:
            output.talk(f"Task {number} {_PAST[args.kind]}.")
    return output.USAGE if any(outcomes.values()) else output.OK


def wait_for_outcomes(
    reader: Reader,
    commands: list[int],
    timeout: float = ANSWER_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[int, str]:
    """Outcomes by command; those not carried out in time are missing. Empty text is success."""
    deadline = clock() + timeout
    while True:
        outcomes = reader.command_outcomes(commands)
        if len(outcomes) == len(commands) or clock() > deadline:
            return outcomes
        sleep(0.1)
