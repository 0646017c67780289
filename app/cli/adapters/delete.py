"""``adapters delete``: asks the engine to take adapter versions from the disk, and says what went."""

from __future__ import annotations

import argparse

from ... import output
from ...home.commands import ask
from ...words.format import line, size
from ..choosing import adapter_of
from ..verbs import ADAPTER, Verbs, add_verb, home_of


def register(family: Verbs) -> None:
    """Add the verb."""
    delete = add_verb(
        family,
        "delete",
        run,
        "delete the adapters of a finished task; this cannot be undone",
        json=True,
        epilog="Scores and trajectories stay. Export first what you want to keep.",
    )
    delete.add_argument("adapter", metavar="ID|NAME", help=ADAPTER)
    delete.add_argument("--version", metavar="N|best|last", help="only this version (default: all of the task)")


def run(args: argparse.Namespace) -> int:
    """Start the engine if need be, which alone writes versions; delete, and report names and bytes."""
    from marlaas.engine.errors import AdapterError
    from marlaas.engine.submission import choose, named_by

    from ...home.references import arguments
    from ...reading.opening import reading

    home = home_of(args)
    with reading(home) as reader:
        if reader is None:
            raise AdapterError(f"There is no adapter {args.adapter!r}.", "Nothing was ever trained in this home.")
        versions = reader.versions()
        adapter, which = adapter_of(args)
        one = which is not None or any(version.name == adapter for version in versions)
        if one:
            doomed = [choose(versions, adapter, which)]
        else:
            doomed = [version for version in named_by(versions, adapter) if version.state == "committed"]
        if not doomed:
            raise AdapterError(f"Adapter {args.adapter!r} has no version on disk.", "There is nothing to delete.")
        number = doomed[0].task
        wanted = arguments(doomed[0])
        if not one:
            wanted.pop("version")
        if len({version.policy for version in doomed}) > 1:
            wanted.pop("policy")
        outcome = ask(home, reader, "delete", number, **wanted)
    if outcome:
        output.complain(outcome)
        return output.USAGE
    total = sum(version.size for version in doomed)
    if args.json:
        output.result_json({"task": number, "deleted": [version.name for version in doomed], "bytes": total})
        return output.OK
    for version in doomed:
        output.result(f"{line(version.name)}: {size(version.size)}")
    output.talk(f"Deleted {len(doomed)} version{'s' if len(doomed) > 1 else ''} of task {number}: {size(total)}.")
    return output.OK
