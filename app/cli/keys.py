"""``keys``: the keys of the application, and the names under which they can be changed."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from .. import output
from .verbs import Verbs, add_verb


def register(verbs: Verbs) -> None:
    """Add the verb."""
    add_verb(
        verbs,
        "keys",
        run,
        "list the keys of the application, and how to change them",
        json=True,
        epilog="To change one, name it in app.toml in your folder for settings: [keys], then \"task.pause\" = 'f5'.",
    )


def run(args: argparse.Namespace) -> int:
    """Print one key a line."""
    from ..frame.preferences import preferences_file, read_preferences
    from ..keymap import known_keys

    chosen = read_preferences().keys
    keys = known_keys()
    if args.json:
        output.result_json([asdict(key) | {"keys": chosen.get(key.name, key.keys)} for key in keys])
        return output.OK
    rows = [[chosen.get(key.name, key.keys), key.what, key.name] for key in keys]
    output.result_table(["KEY", "DOES", "NAME"], rows)
    output.talk(f"Others are set under [keys] in {preferences_file()}.")
    return output.OK
