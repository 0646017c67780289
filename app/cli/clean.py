"""``clean``: what a home keeps in lost+found, and, where that is asked for, its removal."""

from __future__ import annotations

import argparse

from .. import output
from ..words.format import size
from .verbs import Verbs, add_verb, home_of


def register(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "clean",
        run,
        "show what is in the home's lost+found, and remove it with --yes",
        json=True,
        epilog="Files come there when a version turned out to be damaged or gone; nothing there is ever used again.",
    )
    parser.add_argument("--yes", action="store_true", help="remove it; this cannot be undone")


def run(args: argparse.Namespace) -> int:
    """List the folders, by task; an engine may run meanwhile."""
    import shutil

    from marlaas.engine.adapters import lost_files

    found = lost_files(home_of(args).lost)
    for one in found if args.yes else ():
        shutil.rmtree(one.folder)
    if args.json:
        folders = [{"folder": str(one.folder), "files": one.files, "bytes": one.size} for one in found]
        output.result_json({"lost": folders, "removed": args.yes})
        return output.OK
    for one in found:
        output.result(f"{one.folder}: {one.files} {'file' if one.files == 1 else 'files'}, {size(one.size)}")
    if not found:
        output.talk("lost+found is empty.")
    elif args.yes:
        output.talk(f"Removed: {size(sum(one.size for one in found))}.")
    else:
        output.talk("`marlaas clean --yes` removes them; this cannot be undone.")
    return output.OK
