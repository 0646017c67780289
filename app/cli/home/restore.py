"""``home restore``: a new home from a backup."""

from __future__ import annotations

import argparse
from pathlib import Path

from ... import output
from ...words.format import counted, size
from ..verbs import Verbs, add_verb, place_of


def register(family: Verbs) -> None:
    """Add the verb."""
    restore = add_verb(
        family,
        "restore",
        run,
        "make a new home from a backup: all of it, or nothing if anything of it is wrong",
        json=True,
        epilog="Restore only what you trust: plugins and the command under [notify] are programs that the engine runs.",
    )
    restore.add_argument("file", type=Path, metavar="FILE", help="what `marlaas home backup` wrote")


def run(args: argparse.Namespace) -> int:
    """Restore, and say how to go on."""
    import signal

    from ...home.backups import restore

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    restored = restore(args.file, place_of(args), output.talk)
    if args.json:
        output.result_json(
            {
                "home": str(restored.home),
                "tasks": restored.tasks,
                "files": restored.files,
                "size": restored.size,
                "missing": restored.missing,
            }
        )
        return output.OK
    output.result(str(restored.home))
    output.talk(f"{counted(restored.tasks, 'task')}, {counted(restored.files, 'file')}, {size(restored.size)}.")
    if restored.missing:
        lacking = counted(len(restored.missing), "state file")
        output.talk(f"Not there, because missing in the home when the backup was made: {lacking}.")
    output.talk(f"`marlaas --home {restored.home} home check` proves it, `engine start` goes on training.")
    return output.OK
