"""The options that say how a policy speaks to a person: temperature, length, and which tokens may be drawn."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marlaas.engine.samplers.sampling import Truncation

HOTTEST = 10.0
LONGEST = 131_072
MOST_KEPT = 1_000_000
LEAST_SHARE = 0.001


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the options; absent ones are None."""
    parser.add_argument(
        "--temperature", type=temperature, metavar="T", help="of the policy (default: the task's, or 1)"
    )
    parser.add_argument("--max-tokens", type=max_tokens, metavar="N", help="of a turn of the policy (likewise, or 256)")
    parser.add_argument("--top-p", type=top_p, metavar="P", help="draw from the likeliest that have P together")
    parser.add_argument("--top-k", type=top_k, metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument("--min-p", type=min_p, metavar="P", help="draw from tokens P times as likely as the likeliest")


def truncation(args: argparse.Namespace) -> Truncation:
    """Which tokens may be drawn, as the options say; all of them if none is given."""
    from marlaas.engine.samplers.sampling import WHOLE, Truncation

    return Truncation(
        WHOLE.top_k if args.top_k is None else args.top_k,
        WHOLE.top_p if args.top_p is None else args.top_p,
        WHOLE.min_p if args.min_p is None else args.min_p,
    )


def max_tokens(text: str) -> int:
    """Parse the tokens of one turn."""
    if not text.isascii() or not text.isdigit() or len(text) > 16 or not 0 < int(text) <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens from 1 to {LONGEST:,}")
    return int(text)


def top_k(text: str) -> int:
    """Parse how many of the likeliest tokens may be drawn; 0 is all."""
    if not text.isascii() or not text.isdigit() or len(text) > 16 or int(text) > MOST_KEPT:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens from 0 (all) to {MOST_KEPT:,}")
    return int(text)


def top_p(text: str) -> float:
    """Parse a probability above 0; 1 is all."""
    return _share(text, LEAST_SHARE)


def min_p(text: str) -> float:
    """Parse a probability; 0 is all."""
    return _share(text, 0.0)


def _share(text: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no probability from {least:g} to 1")
    return value


def temperature(text: str) -> float:
    """Parse the temperature; 0 is greedy."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= HOTTEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no temperature from 0 to {HOTTEST:g}")
    return value
