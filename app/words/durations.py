"""Spans of time as people type them, in seconds."""

from __future__ import annotations

import re

from marlaas.engine.errors import ConfigError

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LONGEST = 366 * 86_400
"""Seconds; for a longer time one asks for no end."""


def seconds(text: str) -> float:
    """The seconds of a text: 90s, 30m, 2h, 1h30m or 1d. Raises ``ConfigError``."""
    parts = re.findall(r"(\d{1,9})([smhd])", text.lower())
    span = sum(int(number) * UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text.lower() or not 0 < span <= LONGEST:
        raise ConfigError(f"{text!r} is no span of time.", "Write 90s, 30m, 2h or 1h30m; a year is the longest.")
    return float(span)
