"""``home new``: an empty home, at the default place or where ``--home`` says."""

from __future__ import annotations

import argparse
from pathlib import Path

from ... import output
from ..verbs import Verbs, add_verb, place_of


def register(family: Verbs) -> None:
    """Add the verb."""
    add_verb(
        family,
        "new",
        run,
        "make an empty home at --home, with its settings and a folder for environments",
        json=True,
        epilog="All other verbs refuse a --home that is none, so that a mistyped one is noticed. The default place"
        " needs no such step: the first task that is submitted makes a home there.",
    ).add_argument("folder", nargs="?", help=argparse.SUPPRESS)  # where people first write it: told how, below


def run(args: argparse.Namespace) -> int:
    """Make it; one that is there already stays as it is."""
    from marlaas.engine.daemon import control
    from marlaas.engine.errors import ConfigError
    from marlaas.engine.home import Home, check_folder, command_for, is_home

    if args.folder is not None:
        meant = command_for(Home(Path(args.folder)), "home new")
        raise ConfigError("The folder of a new home stands behind --home.", f"Write `{meant}`.")
    home = place_of(args)
    check_folder(home)
    there = is_home(home.root)
    control.make_home(home, notice=output.talk)
    if args.json:
        output.result_json({"home": str(home.root), "plugins": str(home.plugins), "new": not there})
        return output.OK
    output.result(str(home.root))
    if there:
        output.talk("It is a home already; nothing was changed.")
        return output.OK
    output.talk(f"Environments go into {home.plugins}, settings into {home.config}.")
    output.talk(f"`{command_for(home, 'submit FILE')}` adds a task; `export MARLAAS_HOME={home.root}` spares --home.")
    return output.OK
