"""How values are written: numbers, sizes, times, safe lines."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from marlaas.engine.errors import ConfigError

# Foreign text passes ``plain`` or ``line`` before it meets a terminal: escape sequences, bidirectional overrides, half
# characters.

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves
    r"|\x1b[\]PX^_][^\x00-\x1f\x7f-\x9f]*(?:\x1b\\|\x07|\x9c)"  # OSC, DCS, …: titles, clipboard
    r"|\x9b[0-?]*[ -/]*[@-~]"  # CSI as one character
    r"|\x1b(?![\[\]PX^_])[ -/]*[0-~]"  # the short ones: reset, charset
    r"|\x1b(?P<open>[\[\]PX^_])"  # the beginning of one that does not end: what follows is text
)
_LINE_ENDS = re.compile(r"\r\n?|\x0b|\x0c|\x85|\u2028|\u2029")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f"  # control characters, tab and newline excepted
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # direction, joiners that show nothing
    "\U000e0000-\U000e007f]"  # tags
)
_HALVES = re.compile("[\ud800-\udfff]")
BARS = "▁▂▃▄▅▆▇"
"""None fills its cell, so neighbouring lines stay apart."""


def plain(text: str) -> str:
    """``text`` without what a terminal obeys; newlines stay, tabs become spaces.

    The beginning of an unfinished sequence is escaped: a terminal would hide all that follows.
    """
    text = _ESCAPES.sub(lambda found: f"\\x1b{found['open']}" if found["open"] else "", text)
    text = _LINE_ENDS.sub("\n", text)
    text = _INVISIBLE.sub("", text).replace("\t", "    ")
    return _HALVES.sub("\ufffd", text)


def line(text: str, width: int | None = None) -> str:
    """One safe line of at most ``width`` cells."""
    if width is not None:
        text = text[: 20 * width + 200]  # the rest cannot be seen, and may be megabytes to clean
    flat = " ".join(plain(text).split())
    return flat if width is None else clip(flat, width)


def clip(text: str, width: int) -> str:
    """Cut to ``width`` cells, with an ellipsis at the end."""
    if cells(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        used += _cells(character)
        if used > width - 1:
            break
        kept.append(character)
    return "".join(kept) + "…" if width > 0 else ""


def clip_start(text: str, width: int) -> str:
    """Cut to ``width`` cells from the end, with an ellipsis at the start."""
    return clip(text[::-1], width)[::-1]


def pad(text: str, width: int, right: bool = False) -> str:
    """Fill with spaces to ``width`` cells."""
    spaces = " " * max(0, width - cells(text))
    return spaces + text if right else text + spaces


def cells(text: str) -> int:
    """Terminal cells of a text."""
    return len(text) if text.isascii() else sum(map(_cells, text))


@lru_cache(4096)  # bars and sparklines consist of few characters, and thousands are drawn every second
def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def excerpt(text: str, characters: int, lines: int) -> str:
    """Safe text of at most this length, with the size of the rest."""
    shown = plain(text[:characters])
    kept = shown.split("\n", lines)[:lines]
    if len(text) <= characters and len(kept) == shown.count("\n") + 1:
        return shown
    left_out = max(1, len(text) - sum(map(len, kept)) - len(kept) + 1)
    return "\n".join([*kept, f"… {left_out:,} more characters"])


def number(value: float | None, digits: int = 3) -> str:
    """``-`` for None, few digits, exponents if needed."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return f"{value:.1e}"


def score(value: float | None) -> str:
    """Always two decimals, so that columns compare."""
    if value is None:
        return "-"
    return f"{value:z.2f}" if math.isfinite(value) and abs(value) < 1000 else number(value)


def advantage(value: float) -> str:
    """With a sign; ``0.00`` if two decimals do not show it."""
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"


def count(value: int) -> str:
    """A count: 950, 12.3k, 4.5M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit * 10 or (abs(value) >= limit and unit != "k"):
            return f"{value / limit:.1f}{unit}"
    return str(value)


def counted(value: int, what: str) -> str:
    """A count of things: 1 group, 8 groups."""
    return f"{value} {what}" if value == 1 else f"{value} {what}s"


def size(value: float) -> str:
    """Bytes: 812 MB, 1.4 GB."""
    for limit, unit, decimals in ((1e12, "TB", 1), (1e9, "GB", 1), (1e6, "MB", 0), (1e3, "kB", 0)):
        if value >= limit:
            return f"{value / limit:.{decimals}f} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float | None) -> str:
    """A span of time: 0.4 s, 41 s, 3 min 20 s, 2 h 05 min, 3 d 4 h."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = int(max(0.0, seconds))
    if seconds < 10 and seconds != whole:
        return f"{max(0.0, seconds):.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def short_duration(seconds: float) -> str:
    """A span of time in five cells: 41s, 3m20, 2h05, 3d04."""
    whole = int(max(0.0, seconds)) if math.isfinite(seconds) else 0
    for large, small, unit in ((86400, 3600, "d"), (3600, 60, "h"), (60, 1, "m")):
        if whole >= large:
            return f"{whole // large}{unit}{whole % large // small:02}"
    return f"{whole}s"


def ago(then: float, now: float) -> str:
    """How long ago, in whole units."""
    return f"{duration(float(int(max(0.0, now - then))))} ago"


def share(value: float) -> str:
    """A fraction as a percentage."""
    return f"{100 * value:.0f} %" if math.isfinite(value) else "-"


def bar(part: int, whole: int, width: int) -> str:
    """A progress bar."""
    filled = 0 if whole <= 0 else round(width * min(1.0, max(0.0, part / whole)))
    return BARS[-1] * filled + BARS[0] * (width - filled)


def sparkline(values: Sequence[float], width: int) -> str:
    """The last ``width`` values as bars; values within 0 to 1 keep that scale."""
    shown = [value for value in values if math.isfinite(value)][-width:]
    if not shown:
        return ""
    low, high = min(0.0, *shown), max(1.0, *shown) if max(shown) > 0 else max(shown)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((value - low) / span * len(BARS)))] for value in shown)


def short_path(path: Path) -> str:
    """With ``~`` for the person's folder."""
    try:
        return line(f"~/{path.relative_to(Path.home())}")
    except ValueError:
        return line(str(path))


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LONGEST = 366 * 86_400
"""Seconds."""


def seconds(text: str) -> float:
    """Seconds of 90s, 30m, 2h, 1h30m or 1d. Raises ``ConfigError``."""
    parts = re.findall(r"(\d{1,9})([smhd])", text.lower())
    span = sum(int(number) * UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text.lower() or not 0 < span <= LONGEST:
        raise ConfigError(f"{text!r} is no span of time.", "Write 90s, 30m, 2h or 1h30m; a year is the longest.")
    return float(span)


def moment(text: str, now: float) -> float:
    """Unix time of a local 12h (ago), 22:30, 2026-11-28 or 2026-11-28 08:00.

    A time of day is the last one before ``now``. Raises ``ConfigError``.
    """
    from datetime import datetime, timedelta  # the parser of verbs loads this module

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


EVENTS = "events"
"""The source of events, which is no file."""
_NO_EVENT = (
    "Nothing has happened yet.\n\n"
    "The engine writes down what tasks, workers and environments go through; `marlaas engine start` starts one, and"
    " ] shows what it said itself."
)


def headline(source: str, task: int | None, count: int, place: int | None, others: Sequence[str]) -> str:
    """The head in one line; ``place`` counts from 0, None on the newest line."""
    about = "events of all tasks" if source == EVENTS and task is None else line(source, 40)
    if task is not None:
        about = f"{about} of task {task}"
    many = "1 line" if count == 1 else f"{count:,} lines"
    follows = "follows" if place is None else f"line {place + 1:,}; G goes on following"
    return f"{about} · {many} · {follows}" + (f"   ] {line(' '.join(others), 200)}" if others else "")


def nothing(source: str, task: int | None, filtered: bool) -> str:
    """Why there are no lines, and how to mend it."""
    if filtered:
        return "No line passes the filter; esc in it clears it."
    if task is not None:
        return f"No event is about task {task} yet. o shows those of all tasks."
    return _NO_EVENT if source == EVENTS else "Nothing is written here yet."
