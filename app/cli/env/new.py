"""``env new``: writes a template of an environment into the plugins folder, and says what comes next."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ... import output
from ...home.environments.templates import SHAPES, write_template
from ..verbs import Verbs, add_verb, home_of


def register(family: Verbs) -> None:
    """Add the verb."""
    shapes = "\n".join(f"  {name:<8} {what}" for name, what in SHAPES.items())
    new = add_verb(family, "new", run, "write a template that runs at once", epilog=f"shapes:\n{shapes}")
    new.formatter_class = argparse.RawDescriptionHelpFormatter
    new.add_argument("name", metavar="NAME", help="of the environment and its file: letters, digits and _")
    new.add_argument("--shape", choices=tuple(SHAPES), default="single", help="what it does (default single)")
    new.add_argument("--to", type=Path, metavar="FOLDER", help="where to write (default: the home's plugins folder)")


def run(args: argparse.Namespace) -> int:
    """Write the files and say what comes next."""
    from marlaas.engine.daemon import control

    home = home_of(args)
    if args.to is None:
        control.make_home(home, notice=output.talk)
    folder = home.plugins if args.to is None else Path(os.path.expanduser(args.to))
    for path in write_template(args.name, args.shape, folder, home):
        output.result(str(path))
    served = folder.resolve() == home.plugins.resolve()
    name = args.name if served else str(folder / f"{args.name}.py")
    output.talk("It runs as it is. Next:")
    output.talk(f"  marlaas env check {name}")
    output.talk(f"  marlaas env play {name}")
    if served:
        output.talk(f'  marlaas submit TASK.toml    with environment = "{args.name}" in the task file')
    else:
        output.talk(f"To train on it, put it into {home.plugins}.")
    return output.OK
