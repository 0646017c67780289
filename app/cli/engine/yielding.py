"""``engine yield`` and ``engine resume``: leave the machine to others at once, and take it back.

Where no engine runs, the next one carries it out.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from ... import output
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.home import Home


def register(family: Verbs) -> None:
    """Add both to the family ``engine``."""
    leave = add_verb(
        family,
        "yield",
        leave_machine,
        "free cards and memory within seconds and keep them free; running tasks wait at their last commit",
        epilog="Another `yield` sets another end. It outlives the engine: one that starts meanwhile yields as well.",
    )
    leave.add_argument(
        "--for", dest="span", type=_span, metavar="TIME", help="90s, 30m, 2h, 1d (else until `marlaas engine resume`)"
    )
    add_verb(family, "resume", take_back, "take the machine back that was yielded; tasks go on from their last commit")


def _span(text: str) -> float:
    from marlaas.engine.errors import ConfigError

    from ...words.durations import seconds

    try:
        return seconds(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def leave_machine(args: argparse.Namespace) -> int:
    """Yield, and wait until the workers have ended."""
    from marlaas.engine.store import YIELDED, Yielding

    from ...words.yielding import yielding_text

    home, now = home_of(args), time.time()
    until = None if args.span is None else now + args.span
    yielding = Yielding(YIELDED, until)
    if (refused := _ask(home, "yield", until=until)) is None:
        from marlaas.engine.fleet import state

        output.talk(f"No engine serves {home.root}, so it holds nothing of the machine.")
        output.talk(f"The next one begins {state(yielding, now)}; `marlaas engine resume` takes that back.")
        return output.OK
    if refused:
        output.complain(refused)
        return output.USAGE
    output.talk(yielding_text(yielding, now))
    return output.OK


def take_back(args: argparse.Namespace) -> int:
    """End a yield."""
    from ...home.yielding import why_tasks_wait

    home = home_of(args)
    if (refused := _ask(home, "resume_engine")) is None:
        output.talk(f"No engine serves {home.root}; the next one yields nothing.")
        return output.OK
    if refused:
        output.complain(refused)
        return output.USAGE
    output.talk(why_tasks_wait(home) or "The engine has the machine; tasks go on from their last commit.")
    return output.OK


def _ask(home: Home, kind: str, **arguments: Any) -> str | None:
    """Tell the engine of a home, or leave it to the next one.

    Returns why the engine refuses, empty where it does not, and None where none runs. Raises ``EngineUnreachable``
    where one runs and does not answer.
    """
    from marlaas.engine.daemon import create_database, holder
    from marlaas.engine.store import command

    from ...home.commands import unanswered, wait_for_outcomes
    from ...reading.opening import opened

    create_database(home)
    sent = command(home.database, kind, **arguments)
    if holder(home.lock) is None:
        return None
    with opened(home) as reader:
        outcome = wait_for_outcomes(reader, [sent]).get(sent)
    if outcome is None:
        raise unanswered()
    return outcome
