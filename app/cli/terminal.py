"""``marlaas`` alone: the terminal application, or the plain list where there is no terminal."""

from __future__ import annotations

import argparse
import sys

from marlaas.engine.paths import Home

from .. import output
from .verbs import home_of


def has_terminal() -> bool:
    """Whether somebody sits at both ends; Textual would wait for ever on a pipe."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def run(args: argparse.Namespace) -> int:
    """Open the terminal application."""
    if not has_terminal():
        from .main import main

        return main(["--home", str(home_of(args).root), "list"])
    return open_application(home_of(args))


def open_application(home: Home, demo: bool = False) -> int:
    """Run the application until it is quit."""
    from ..app import MarlaasApp

    application = MarlaasApp(home, demo=demo)
    application.run()
    if application.farewell:
        output.talk(application.farewell)
    return application.return_code or output.OK
