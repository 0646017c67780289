"""``env prompts``: what the model would be asked, before anything is trained; needs no engine and no model."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from ... import output
from ..verbs import Verbs, add_verb, home_of
from .config import add_config

COUNT, MOST = 3, 100


def register(family: Verbs) -> None:
    """Add the verb."""
    prompts = add_verb(family, "prompts", run, "show the first prompts of an environment", json=True)
    prompts.add_argument("name", metavar="NAME", help="an environment, or the path of a plugin (./my_env.py)")
    add_config(prompts)
    prompts.add_argument("-n", type=count, default=COUNT, metavar="N", help=f"how many (default {COUNT})")


def count(text: str) -> int:
    """An argument that is a number of prompts."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {MOST}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Play the first training instances up to their first question."""
    from ...home.environments.peeking import peeked, prompt_lines
    from .config import typed

    home = home_of(args)
    config = typed(args.config, peeked(home, args.name, {}, count=0).info.parameters) if args.config else {}
    seen = peeked(home, args.name, config, args.n)
    if args.json:
        asks = [asdict(ask) for ask in seen.asks]
        output.result_json({"environment": seen.info.name, "prompts": asks, "problem": seen.problem})
    else:
        for number, ask in enumerate(seen.asks):
            output.result(f"{'' if not number else chr(10)}instance {number}")
            for row in prompt_lines(ask):
                output.quote(f"  {row}")
    if seen.problem:
        output.complain(seen.problem)
    return output.FAILED if seen.problem else output.OK
