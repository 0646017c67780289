"""``env reload``: asks the engine to read a plugin again and to start it anew, whatever it thinks of it."""

from __future__ import annotations

import argparse

from ... import output
from ...words.format import line
from ..verbs import Verbs, add_verb, home_of


def register(family: Verbs) -> None:
    """Add the verb."""
    reload = add_verb(
        family,
        "reload",
        run,
        "read a plugin again and start its processes anew",
        epilog="Edits are noticed by themselves. This is for what a plugin read elsewhere, and for one that rests"
        " because it failed too often: it is tried again at once. Groups under way end on the process that they have.",
    )
    reload.add_argument("name", metavar="NAME", help="a plugin, or one of its environments")


def run(args: argparse.Namespace) -> int:
    """Send the command and wait for the outcome."""
    from marlaas.engine.daemon import control
    from marlaas.engine.errors import ConfigError, EngineUnreachable
    from marlaas.engine.store import command

    from ...home.commands import unanswered, wait_for_outcomes
    from ...reading.opening import opened
    from ...words.environments.facts import plugin_of
    from .show import found

    home = home_of(args)
    if not control.alive(home):
        raise EngineUnreachable(f"No engine serves {home.root}.", "`marlaas engine start` starts one.")
    plugin = plugin_of(found(home, args.name)[0])
    with opened(home) as reader:
        sent = command(home.database, "reload", None, plugin=plugin)
        outcomes = wait_for_outcomes(reader, [sent])
    if sent not in outcomes:
        raise unanswered(f"the plugin {plugin}")
    if outcomes[sent]:
        raise ConfigError(outcomes[sent])
    output.talk(f"The plugin {line(plugin)} was read again; it serves.")
    return output.OK
