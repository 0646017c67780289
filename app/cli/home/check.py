"""``home check``: proves from the database and the files that nothing was lost or doubled."""

from __future__ import annotations

import argparse

from ... import output
from ...words.format import plain
from ..verbs import Verbs, add_verb, home_of


def register(family: Verbs) -> None:
    """Add the verb."""
    check = add_verb(
        family,
        "check",
        run,
        "prove that nothing in a home was lost, doubled or damaged; an engine may run meanwhile",
        json=True,
        epilog="Exit code 1 where something is wrong or was lost. What cannot be known, because files were given up"
        " for room, is counted.",
    )
    for option, takes in (("--updates", {"action": "store_true"}), ("--base", {}), ("--threads", {})):
        check.add_argument(option, help=argparse.SUPPRESS, **takes)  # type: ignore[arg-type]


def run(args: argparse.Namespace) -> int:
    """Check and print what was found; exit 1 unless the home is sound."""
    from marlaas.engine.errors import ConfigError

    from ...home.checking import check_home

    home = home_of(args)
    if args.updates or args.base or args.threads:
        raise ConfigError(
            "`home check` no longer makes updates again: --updates, --base and --threads are gone since 0.2.0.",
            "`marlaas home check` checks the database, the steps and the files.",
        )
    if not home.database.exists():
        raise ConfigError(f"There is no home at {home.root}.", "Give another --home; `marlaas submit` makes one.")
    report = check_home(home.root, output.talk)
    if args.json:
        names = ("problems", "lost", "spare", "proven", "unknown")
        output.result_json({"ok": report.sound, **{name: getattr(report, name) for name in names}})
    else:
        for text in report.lines():
            output.result(plain(text).replace("\n", " "))
    return output.OK if report.sound else output.FAILED
