"""``home check``: proves from the database and the files alone that nothing was lost or doubled."""

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
        epilog="Exit code 1 where something is wrong or was lost. What cannot be known, because files or tokens were"
        " given up for room, is counted.",
    )
    check.add_argument(
        "--updates", action="store_true", help="also make every optimizer step again and compare; takes minutes"
    )
    check.add_argument("--base", metavar="NAME", default="", help="the base for --updates (default: the home's)")
    check.add_argument("--threads", type=int, default=1, metavar="N", help="cores for --updates (default: 1)")


def run(args: argparse.Namespace) -> int:
    """Check and print what was found; exit 1 unless the home is sound."""
    from marlaas.engine.errors import ConfigError, StoreError

    from ...audit.audit import Unchecked, audit

    home = home_of(args)
    if not home.database.exists():
        raise ConfigError(f"There is no home at {home.root}.", "Give another --home; `marlaas submit` makes one.")
    try:
        report = audit(home.root, args.base, args.updates, args.threads, output.talk)
    except Unchecked as error:
        raise StoreError(str(error), "`marlaas engine start` brings an older database up to date.") from error
    if args.json:
        output.result_json(
            {
                "ok": report.sound,
                "problems": report.problems,
                "lost": report.lost,
                "spare": report.spare,
                "proven": dict(report.proven),
                "unknown": dict(report.unknown),
            }
        )
    else:
        for text in report.lines():
            output.result(plain(text).replace("\n", " "))
    return output.OK if report.sound else output.FAILED
