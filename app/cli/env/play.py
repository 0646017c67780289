"""``env play``: a person plays an environment in the terminal, or watches a policy play it, or both share a game."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ... import output
from ...chat.sampling_options import add_sampling, truncation
from ..verbs import Verbs, add_verb, home_of
from .config import add_config
from .rows import add_rows

if TYPE_CHECKING:
    from ..waiting import Waiting

LARGEST = 1 << 53
"""Largest instance number or seed that can be sent to a plugin."""


def register(family: Verbs) -> None:
    """Add the verb."""
    play = add_verb(
        family,
        "play",
        run,
        "play an environment yourself, or let a policy play it",
        epilog="Needs no engine. Prompts, tools, results, rewards and errors are shown as the episode goes; /help says"
        " what can be typed. From a pipe it reads line by line what you would type, also between two episodes, and"
        " ends with the input.",
    )
    play.add_argument("name", metavar="NAME", help="an environment, or the path of a plugin (./my_env.py)")
    add_config(play)
    add_rows(play)
    play.add_argument("--split", choices=("train", "eval", "test"), default="train", help="whose instances")
    play.add_argument("--index", type=_whole, default=0, metavar="N", help="the first instance (default 0)")
    play.add_argument("--seed", type=_whole, default=0, metavar="S", help="the run's seed (default 0)")
    play.add_argument(
        "--as", dest="mine", action="append", default=[], metavar="AGENT", help="an agent that you play beside policies"
    )
    who = play.add_mutually_exclusive_group()
    who.add_argument(
        "--policy",
        metavar="TASK[/POLICY][@VERSION]",
        help="the newest version of a task's adapter plays, or that one; of several policies each as in training",
    )
    who.add_argument("--base", action="store_true", help="the home's base model plays, without an adapter")
    play.add_argument(
        "--agent",
        dest="agents",
        action="append",
        nargs=2,
        default=[],
        metavar=("AGENT", "POLICY"),
        help="who plays one agent, as for --policy, or base: --agent second 17/player@12",
    )
    add_sampling(play)


def run(args: argparse.Namespace) -> int:
    """Play until the person has enough."""
    from ..waiting import Waiting

    with Waiting(f"Loading {args.name}") as waiting:  # importing what plays takes a while by itself
        return _play(args, waiting)


def _play(args: argparse.Namespace, waiting: Waiting) -> int:
    import asyncio

    from marlaas.engine.errors import ConfigError

    from ..keyboard import Keyboard
    from .players import Speaking
    from .session import Wish, play

    agents, others = {agent: words for agent, words in args.agents}, "base" if args.base else args.policy or ""
    watches, cut = bool(agents or others), truncation(args)
    if args.mine and not watches:
        raise ConfigError("--as needs somebody who plays the other agents.", "Add --policy TASK or --base.")
    for agent in args.mine:
        if agent in agents:
            raise ConfigError(f"You and {agents[agent]} cannot both play the agent {agent!r}.", "Keep one of them.")
    wish = Wish(
        environment=args.name,
        config=tuple(args.config),
        rows=args.rows,
        split=args.split,
        index=args.index,
        seed=args.seed,
        mine=tuple(args.mine),
        policies=Speaking(others, agents, args.temperature, args.max_tokens, cut) if watches else None,
    )
    try:
        code = asyncio.run(play(home_of(args), wish, Keyboard(), waiting))
    except KeyboardInterrupt:
        code = output.INTERRUPTED
    if code == output.INTERRUPTED:
        waiting.say("Interrupted; nothing of it goes on.")
    return code


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 16 or int(text) >= LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {LARGEST - 1:,}")
    return int(text)
