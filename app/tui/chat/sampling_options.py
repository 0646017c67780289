"""Options of a policy's speech: temperature, length, truncation."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marlaas.engine.samplers.sampling import Truncation


@dataclass(frozen=True)
class SamplingOption:
    """An option of the command line and of the chat's settings."""

    name: str
    kind: type[int] | type[float]
    low: float
    high: float
    metavar: str
    about: str
    label: str
    what: str

    def parse(self, text: str) -> Any:
        """Raises ``ArgumentTypeError``."""
        value: float = math.nan
        if self.kind is float or (text.isascii() and text.isdigit() and len(text) <= 16):
            try:
                value = self.kind(text)
            except ValueError:
                value = math.nan
        if not self.low <= value <= self.high:
            raise argparse.ArgumentTypeError(f"{text!r} is no {self.what}")
        return value


OPTIONS = (
    SamplingOption(
        "temperature", float, 0, 10, "T", "of the policy (default: the task's, or 1)", "Temperature (0 is greedy)",
        "temperature from 0 to 10",
    ),
    SamplingOption(
        "max_tokens", int, 1, 131_072, "N", "of a turn of the policy (likewise, or 256)", "Tokens of an answer",
        "number of tokens from 1 to 131,072",
    ),
    SamplingOption(
        "top_p", float, 0.001, 1, "P", "draw from the likeliest that have P together",
        "Likeliest tokens with this sum of probabilities (top-p; 1 is all)", "probability from 0.001 to 1",
    ),
    SamplingOption(
        "top_k", int, 0, 1_000_000, "K", "draw from the K likeliest tokens",
        "This many of the likeliest tokens (top-k; 0 is all)", "number of tokens from 0 (all) to 1,000,000",
    ),
    SamplingOption(
        "min_p", float, 0, 1, "P", "draw from tokens P times as likely as the likeliest",
        "Tokens this likely relative to the likeliest (min-p; 0 is all)", "probability from 0 to 1",
    ),
)  # fmt: skip


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the options; absent ones are None."""
    for option in OPTIONS:
        flag = f"--{option.name.replace('_', '-')}"
        parser.add_argument(flag, type=option.parse, metavar=option.metavar, help=option.about)


def truncation(args: argparse.Namespace) -> Truncation:
    """The truncation of the options; none given: no truncation."""
    from marlaas.engine.samplers.sampling import Truncation

    given = {name: getattr(args, name) for name in ("top_k", "top_p", "min_p") if getattr(args, name) is not None}
    return Truncation(**given)
