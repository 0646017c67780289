"""``home backup``: writes all that a home holds into one file, while everything goes on."""

from __future__ import annotations

import argparse
from pathlib import Path

from ... import output
from ...words.format import counted, line, size
from ..verbs import Verbs, add_verb, home_of


def register(family: Verbs) -> None:
    """Add the verb."""
    backup = add_verb(
        family,
        "backup",
        run,
        "write a home into one file, while its engine trains on",
        json=True,
        epilog="It holds tasks, results, adapters, settings and plugins of one moment; not the base model, libraries of"
        " plugins, logs and what else is made again. `marlaas home restore` makes a home of it.",
    )
    backup.add_argument("file", type=Path, metavar="FILE", help="the file to write, outside of the home: marlaas.tar")
    backup.add_argument(
        "--force", action="store_true", help="replace the file where it exists, once the new one is whole"
    )


def run(args: argparse.Namespace) -> int:
    """Write the backup and say what is in it."""
    import signal
    from dataclasses import asdict

    from ...home.backups import back_up

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    backup = back_up(home_of(args), args.file.absolute(), args.force, output.talk)
    if args.json:
        output.result_json({**asdict(backup), "file": str(backup.file)})
        return output.OK
    for name in backup.missing:
        output.talk(f"Not in the backup, because it is missing in the home: {line(name)}")
    output.result(str(backup.file))
    output.talk(f"{counted(backup.files, 'file')}, {size(backup.size)}. `marlaas home restore` makes a home of it.")
    return output.OK
