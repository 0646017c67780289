"""The options that say how a policy speaks to a person: ``--temperature`` and ``--max-tokens``."""

from __future__ import annotations

import argparse
import math

HOTTEST = 10.0
LONGEST = 131_072


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add both options; absent ones are None."""
    parser.add_argument(
        "--temperature", type=temperature, metavar="T", help="of the policy (default: the task's, or 1)"
    )
    parser.add_argument("--max-tokens", type=max_tokens, metavar="N", help="of a turn of the policy (likewise, or 256)")


def max_tokens(text: str) -> int:
    """Parse the tokens of one turn."""
    if not text.isascii() or not text.isdigit() or len(text) > 16 or not 0 < int(text) <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens from 1 to {LONGEST:,}")
    return int(text)


def temperature(text: str) -> float:
    """Parse the temperature; 0 is greedy."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= HOTTEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no temperature from 0 to {HOTTEST:g}")
    return value
