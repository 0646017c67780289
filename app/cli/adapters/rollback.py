"""``adapters rollback``: asks the engine to let a task go on from an earlier version, and says what that voids."""

from __future__ import annotations

import argparse

from ... import output
from ...home.commands import ask
from ...words.format import line
from ..choosing import adapter_of
from ..verbs import ADAPTER, Verbs, add_verb, home_of


def register(family: Verbs) -> None:
    """Add the verb."""
    rollback = add_verb(
        family,
        "rollback",
        run,
        "let a task that does not run continue from an earlier version; later steps become void",
        json=True,
        epilog="Later versions lose their files and scores; export first what you want to keep. Other policies of the"
        " task stay where they are. The task is queued and goes on by itself. A version that was kept without its"
        " optimizer's moments begins with a new optimizer.",
    )
    rollback.add_argument("adapter", metavar="ID|NAME", help=ADAPTER)
    rollback.add_argument("--version", metavar="N|best|last", help="the version to go on from")


def run(args: argparse.Namespace) -> int:
    """Start the engine if need be, which alone writes versions; roll back, and report the step."""
    from marlaas.engine.errors import AdapterError, ConfigError
    from marlaas.engine.submission import choose

    from ...home.references import arguments, owner
    from ...lists.queue_lines import learner, learners
    from ...reading.opening import reading

    home = home_of(args)
    with reading(home) as reader:
        if reader is None:
            raise AdapterError(f"There is no adapter {args.adapter!r}.", "Nothing was ever trained in this home.")
        adapter, which = adapter_of(args)
        if which is None:
            raise ConfigError("No version is given to go on from.", f"Write {adapter}@12, or --version 12.")
        version = choose(reader.versions(), adapter, which)
        before = reader.task(version.task)
        outcome = ask(home, reader, "rollback", version.task, **arguments(version))
    if outcome:
        output.complain(outcome)
        return output.USAGE
    made = learners(before)[learner(before, version.policy)].step if before else 0
    lost = max(0, made - version.number)
    if args.json:
        output.result_json({"task": version.task, "version": version.name, "step": version.number, "void": lost})
        return output.OK
    steps = f"{lost} later step{' is' if lost == 1 else 's are'} void"
    output.talk(f"Task {owner(version)} goes on from version {version.number} ({line(version.name)}); {steps}.")
    return output.OK
