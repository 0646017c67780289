"""``extend``: more steps for tasks that wait, run or are done; the engine is asked, and started if need be."""

from __future__ import annotations

import argparse

from ... import output
from ...home.commands import ask
from ..choosing import add_tasks, chosen
from ..verbs import Verbs, add_verb, home_of


def register(verbs: Verbs) -> None:
    """Add the verb."""
    extend = add_verb(
        verbs,
        "extend",
        run,
        "give tasks more steps; one that is done goes on from its last commit",
        epilog="A task that has begun needs a constant learning rate: one that falls would rise again.",
    )
    add_tasks(extend)
    extend.add_argument("--steps", type=more, required=True, metavar="N", help="how many more")


def more(text: str) -> int:
    """An argument that is a number of steps to add."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps to add")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Ask the engine for each task; refusals are reported, and the other tasks are extended all the same."""
    from ...reading.opening import find_task, reading

    home, refused = home_of(args), False
    with reading(home) as reader:
        for number in chosen(args, reader):
            assert reader is not None
            steps = find_task(reader, number).steps + args.steps
            outcome = ask(home, reader, "extend", number, steps=steps)
            refused |= bool(outcome)
            if outcome:
                output.complain(f"Task {number}: {outcome}")
            else:
                output.talk(f"Task {number} has {steps:,} steps.")
    return output.USAGE if refused else output.OK
