"""Results go to standard output, everything else to standard error.

Tables are plain aligned text, JSON is ASCII, errors are one sentence and a hint. Commands in messages name the given
home, so they can be typed as they are.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from marlaas.engine.errors import MarlaasError

from . import spoken
from .text.format import cells, clip, line, pad

NARROW, NARROW_NUMBER = 9, 12
"""Narrowest columns of text and of numbers at a narrow terminal."""
MOST_MISTAKES = 50
"""Printed mistakes of one command line."""
OK, FAILED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes, part of the interface."""


_HOME = ""
"""The ``--home`` of this command line, for commands in messages."""
_PLAIN = False
"""True for ears: no columns, no signs, no line that is drawn again."""


def mean_home(folder: str) -> None:
    """Commands in messages get ``--home FOLDER`` from here on; empty: they do not."""
    global _HOME
    _HOME = f" --home {shlex.quote(folder)}" if folder else ""


def mean_plain(plain: bool) -> None:
    """Lines are for ears from here on (``app/spoken.py``)."""
    global _PLAIN
    _PLAIN = plain


def is_plain() -> bool:
    """Whether lines are for ears."""
    return _PLAIN


def result(text: str) -> int:
    """Print a line of the answer; returns ``OK``."""
    print(_said(text), flush=True)
    return OK


def quote(text: str) -> None:
    """Print a line of the answer that others wrote."""
    print(text, flush=True)


def fact(name: str, value: str, width: int, mark: str = "  ") -> None:
    """Print a value after its name in ``width`` cells; ``mark`` stands before it, but not for ears."""
    if _PLAIN:
        print(spoken.fact(name, value), flush=True)
    else:
        print(f"{mark}{pad(name, width)} {value}".rstrip(), flush=True)


def talk(text: str) -> None:
    """Print a line for the person who waits."""
    options = (" --plain" if _PLAIN else "") + _HOME
    said = re.sub(r"`marlaas(?=`| [a-z])", lambda found: found[0] + options, _said(text))
    print(said, file=sys.stderr, flush=True)


def done(text: str) -> int:
    """Print the last line for the person who waits."""
    talk(text)
    return OK


def _said(text: str) -> str:
    return spoken.spoken(text) if _PLAIN else text


def complain(message: str, hint: str = "") -> None:
    """Print an error and how to mend it."""
    talk(f"marlaas: {line(message)}")
    if hint:
        talk(f"  {line(hint)}")


def refuse(message: str, hint: str = "") -> int:
    """Print an error that the person can mend; returns its exit code."""
    complain(message, hint)
    return USAGE


def complain_of(error: MarlaasError) -> None:
    """Print an error with all mistakes in it."""
    mistakes = error.mistakes
    for mistake in mistakes[:MOST_MISTAKES]:
        complain(mistake.message, mistake.hint)
        if not mistake.message.startswith(mistake.where):  # its end alone stands before the cause
            talk(f"  {line(mistake.where)}")
    if len(mistakes) > MOST_MISTAKES:
        talk(f"marlaas: {len(mistakes) - MOST_MISTAKES:,} more mistakes are not shown.")


def result_json(value: Any) -> int:
    """Print one JSON document; numbers that JSON does not know become null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False), flush=True)
    return OK


def json_line(value: Any) -> str:
    """A JSON document on one line."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def show(
    items: Sequence[Any],
    as_json: bool,
    headers: Sequence[str],
    row: Callable[[Any], Sequence[str]],
    right: Sequence[str] = (),
    empty: str = "",
    after: str = "",
) -> int:
    """Print rows as JSON or as a table; ``empty`` is for no rows, ``after`` follows a table."""
    if as_json:
        from .text.terms import with_new_names  # the whole catalogue

        return result_json([with_new_names(asdict(item)) for item in items])
    if empty and not items:
        return done(empty)
    result_table(headers, [row(item) for item in items], right)
    return done(after) if after else OK


def result_table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> int:
    """Print a table; columns in ``right`` are numbers. At a terminal, lines are cut to fit.

    For ears each row is a line of headings and values.
    """
    if _PLAIN:
        for cells in rows:
            print(spoken.row([line(header) for header in headers], [line(cell) for cell in cells]), flush=True)
        return OK
    for text in table(headers, rows, right, shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
        result(text)
    return OK


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = (), width: int | None = None
) -> list[str]:
    """The lines of a table, in ``width`` cells if given; every cell is made safe."""
    safe = [list(headers), *([line(cell) for cell in row] for row in rows)]
    widths = [max(cells(row[i]) for row in safe) for i in range(len(headers))]
    numeric = [header in right for header in headers]
    if width is None:
        return ["  ".join(map(pad, row, widths, numeric)).rstrip() for row in safe]
    widths = _fitted(widths, numeric, width)
    clipped = ([clip(text, widths[place]) for place, text in enumerate(row)] for row in safe)
    return [clip("  ".join(map(pad, row, widths, numeric)).rstrip(), width) for row in clipped]


def _fitted(widths: Sequence[int], numeric: Sequence[bool], width: int) -> list[int]:
    """Narrow the widest columns of text, then those of numbers."""
    found, room = list(widths), width - 2 * (len(widths) - 1)
    for kinds, least in (((False,), NARROW), ((False, True), NARROW_NUMBER)):
        places = [place for place, kind in enumerate(numeric) if kind in kinds]
        while sum(found) > room and places:
            widest = max(places, key=lambda place: found[place])
            if found[widest] <= least:
                break
            found[widest] -= 1
    return found


def tolerate_any_terminal() -> None:
    """Replace characters that the terminal's encoding lacks, and streams that were closed."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # else the next file would have the stream's number
            os.dup2(nowhere, number)
            if nowhere > 2:
                os.close(nowhere)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def silence_broken_pipe() -> None:
    """Drop all further output: the reader of standard output is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
