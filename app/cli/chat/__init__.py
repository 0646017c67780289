"""``chat``: talk with a version of an adapter in plain lines, beside another one or the bare base if asked for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ... import output
from ...chat.sampling_options import add_sampling, truncation
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from ..waiting import Waiting


def register(verbs: Verbs) -> None:
    """Add the verb."""
    chat = add_verb(
        verbs,
        "chat",
        run,
        "talk with a version of an adapter, or with the base",
        epilog="Needs no engine: a sampler of its own runs while the conversation does. /new begins anew, /system TEXT"
        " also says who the model is, Ctrl-C ends an answer, /quit or the end of the input ends the program.",
    )
    chat.add_argument(
        "who",
        metavar="ID[@VERSION]|base",
        help="a task's number or name (default version: best, else last; ID/POLICY where it trains several), or base",
    )
    chat.add_argument("--beside", metavar="ID[@VERSION]|base", help="a version that gets each message as well")
    chat.add_argument("--system", metavar="TEXT", default="", help="a system message before the conversation")
    add_sampling(chat)


def run(args: argparse.Namespace) -> int:
    """Talk until the person has enough."""
    from ..waiting import Waiting

    with Waiting(f"Loading {args.who}") as waiting:  # importing what talks takes a while by itself
        return _talk(args, waiting)


def _talk(args: argparse.Namespace, waiting: Waiting) -> int:
    import asyncio
    from dataclasses import replace

    from marlaas.engine.fleet import plan_alone
    from marlaas.engine.home import load_settings

    from ...chat.talking import ROOMY, cost_of, manner_of, side_of
    from ...reading.opening import reading
    from ..keyboard import Keyboard
    from .session import Chat

    home = home_of(args)
    with reading(home) as reader:
        versions = reader.versions() if reader else []
        sides = [side_of(versions, said) for said in dict.fromkeys((args.who, args.beside or args.who))]
        wanted = {
            "temperature": args.temperature,
            "max_tokens": args.max_tokens,
            "truncation": truncation(args),
        }
        manner = manner_of(reader, sides[0]) if reader else ROOMY
    manner = replace(manner, **{key: value for key, value in wanted.items() if value is not None})
    plan = plan_alone(load_settings(home))
    waiting.say(f"{cost_of(plan)} Starting it …")
    chat = Chat(home, plan, sides, manner, args.system, Keyboard(), waiting)
    try:
        return asyncio.run(chat.run())
    except KeyboardInterrupt:
        return output.INTERRUPTED
