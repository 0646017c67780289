"""Spans and moments of time as people type them, in seconds."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

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


def moment(text: str, now: float) -> float:
    """The seconds since 1970 of a text, in local time: 12h (ago), 22:30, 2026-11-28 or 2026-11-28 08:00.

    A time of day is the last one before ``now``. Raises ``ConfigError``.
    """
    if re.fullmatch(r"(\d+[smhd])+", text.lower()):
        return now - seconds(text)
    today = datetime.fromtimestamp(now)
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}", text):
            hour, minute = map(int, text.split(":"))
            found = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
            found -= timedelta(days=found > today)
        else:
            found = datetime.fromisoformat(text)
        return found.timestamp()
    except (ValueError, OverflowError):
        raise ConfigError(f"{text!r} is no moment.", "Write 12h, 22:30, 2026-11-28 or '2026-11-28 08:00'.") from None
