"""``extend``: more steps, or another priority, for tasks; the engine is asked, and started if need be."""

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
        "give tasks more steps, or another priority; one that runs or is done goes on from its last commit",
        epilog="More steps for a task that has begun need a constant learning rate: one that falls would rise again.",
    )
    add_tasks(extend)
    extend.add_argument("--steps", type=more, metavar="N", help="how many more")
    extend.add_argument("--priority", type=int, metavar="N", help="place among the tenant's tasks; higher goes first")


def more(text: str) -> int:
    """An argument that is a number of steps to add."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps to add")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Ask the engine for each task; refusals are reported, and the other tasks are extended all the same."""
    from marlaas.engine.errors import ConfigError

    from ...reading.opening import find_task, reading

    if args.steps is None and args.priority is None:
        raise ConfigError("Nothing is to change.", "Give --steps or --priority.")
    home, refused = home_of(args), False
    with reading(home) as reader:
        for number in chosen(args, reader):
            assert reader is not None
            changes = []
            if args.steps is not None:
                steps = find_task(reader, number).steps + args.steps
                changes.append(("extend", {"steps": steps}, f"{steps:,} steps"))
            if args.priority is not None:
                changes.append(("priority", {"priority": args.priority}, f"priority {args.priority}"))
            for kind, arguments, has in changes:
                outcome = ask(home, reader, kind, number, **arguments)
                refused |= bool(outcome)
                if outcome:
                    output.complain(f"Task {number}: {outcome}")
                else:
                    output.talk(f"Task {number} has {has}.")
    return output.USAGE if refused else output.OK
