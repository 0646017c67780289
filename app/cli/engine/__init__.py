"""``engine start | stop | drain | run``; ``status``, and ``yield | resume`` from ``yielding``."""

from __future__ import annotations

import argparse

from ... import output
from ...words.format import line
from ..verbs import Verbs, add_family, add_verb, home_of
from . import status, yielding

STOP_SECONDS = 60.0


def register(verbs: Verbs) -> None:
    """Add the family."""
    family = add_family(verbs, "engine", "start, stop and see the engine")
    add_verb(family, "start", start, "start an engine in the background; does nothing where one runs")
    add_verb(family, "stop", stop, "ask the engine to stop; tasks go on from their last step when one starts again")
    add_verb(family, "drain", drain, "have the engine finish the steps under way and stop; nothing begun is lost")
    yielding.register(family)
    add_verb(family, "status", status.run, "say whether an engine runs, and what its workers do", json=True)
    add_verb(family, "run", run, "run the engine in the foreground")


def start(args: argparse.Namespace) -> int:
    """Start an engine and wait until it serves."""
    from marlaas.engine.daemon import control

    from ...home.cluster.standing import last_event, warning_since
    from ...home.yielding import why_tasks_wait

    home = home_of(args)
    before = last_event(home)
    control.ensure_running(home, notice=output.talk)
    if sentence := warning_since(home, before):
        output.talk(line(sentence))
    output.talk(f"An engine serves {home.root}. Files dropped into {home.plugins} are served at once.")
    if waits := why_tasks_wait(home):
        output.talk(waits)
    return output.OK


def stop(args: argparse.Namespace) -> int:
    """Stop the engine and wait until it has ended."""
    from marlaas.engine.daemon import control

    home = home_of(args)
    if control.stop(home, STOP_SECONDS):
        output.talk("The engine has stopped; tasks go on from their last step when one starts again.")
    else:
        output.talk(f"No engine serves {home.root}.")
    return output.OK


def drain(args: argparse.Namespace) -> int:
    """Drain the engine and wait until it has ended; whoever breaks the wait off leaves it draining."""
    from marlaas.engine.daemon import control

    home = home_of(args)
    if control.drain(home, output.talk):
        output.talk("The engine has stopped between steps; tasks go on when one starts again.")
    else:
        output.talk(f"No engine serves {home.root}.")
    return output.OK


def run(args: argparse.Namespace) -> int:
    """Be the engine."""
    from marlaas.engine.daemon import main

    return main.run(home_of(args))
