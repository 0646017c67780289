"""``pause``, ``resume``, ``retry`` and ``cancel``: asks the engine, and reports what it answered."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ... import output
from ..choosing import add_tasks, chosen, named
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from ...reading.home_reader import HomeReader

NAMED = 20
"""Tasks named one by one in a message; of more only the number is given."""
_SUMMARIES = {
    "pause": "pause tasks; nothing is lost",
    "resume": "go on with paused tasks",
    "retry": "put failed or cancelled tasks back into the queue; they go on from their last commit",
    "cancel": "end tasks; their adapters stay",
}


def register(verbs: Verbs) -> None:
    """Add the verbs."""
    for kind, summary in _SUMMARIES.items():
        verb = add_verb(verbs, kind, run, summary)
        verb.set_defaults(kind=kind)
        add_tasks(verb)


def run(args: argparse.Namespace) -> int:
    """Send one command per task, all at once, and wait for the outcomes."""
    from marlaas.engine.submission import PAST

    from ...home.commands import steer
    from ...reading.opening import reading

    home = home_of(args)
    with reading(home) as reader:
        numbers = chosen(args, reader)
        assert reader is not None
        if args.family:
            numbers = _able(reader, args.kind, numbers, named(args, reader))
        outcomes = steer(home, reader, args.kind, numbers)
    for number, outcome in outcomes.items():
        if outcome:
            output.complain(f"Task {number}: {outcome}")
    done = [number for number, outcome in outcomes.items() if not outcome]
    if len(done) > NAMED:
        output.talk(f"{len(done):,} tasks {PAST[args.kind]}.")
    else:
        for number in done:
            output.talk(f"Task {number} {PAST[args.kind]}.")
    return output.USAGE if any(outcomes.values()) else output.OK


def _able(reader: HomeReader, kind: str, numbers: Sequence[int], alone: Sequence[int]) -> list[int]:
    """The tasks that were named, and of a sweep those in a state from which the verb works: its members differ."""
    from marlaas.engine.errors import ConfigError
    from marlaas.engine.submission import PAST, TRANSITIONS

    states = {task.id: task.state for task in reader.tasks()}
    able = [
        number
        for number in numbers
        if number in alone or TRANSITIONS[kind].get(states[number], states[number]) != states[number]
    ]
    if not able:
        found = ", ".join(sorted({states[number] for number in numbers}))
        raise ConfigError(f"None of these tasks can be {PAST[kind]}: they are {found}.")
    return able
