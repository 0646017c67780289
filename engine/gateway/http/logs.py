"""Requests as lines of JSON, and Prometheus metrics.

Text is cut ASCII: clients cannot forge a line or move a terminal's cursor.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec

from ..limits import Limits

LONGEST = 64 << 20
"""Bytes; one older log is kept."""
SHOWN = 8
"""Of a foreign key: another service may use it."""
SECRET = 37
"""Characters at a key's end, never shown."""
LONGEST_MODEL = 200
_OTHERS = re.compile(r"[^ -~]")
_KEY = re.compile(r"tml-[A-Za-z0-9_.-]{1,64}-[A-Za-z0-9_-]{43}")


class Line(msgspec.Struct, omit_defaults=True):
    """Facts of a finished request."""

    time: str
    route: str
    status: int = 0
    ms: float = 0.0
    key: str = ""
    agent: str = ""
    model: str = ""
    stream: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""
    sent: Any = None
    said: Any = None


class Log:
    """Writes lines to a file or standard error."""

    def __init__(self, limits: Limits) -> None:
        self.prompts = limits.log_prompts
        self._path = Path(limits.log) if limits.log else None
        self._file: TextIO | None = None

    def begin(self, route: str) -> tuple[Line, float]:
        return Line(datetime.now(UTC).isoformat(timespec="milliseconds"), route), time.monotonic()

    def end(self, line: Line, began: float) -> None:
        line.ms = round(1000 * (time.monotonic() - began), 1)
        line.key = shown_key(line.key)
        line.model = line.model[:LONGEST_MODEL]
        try:
            text = msgspec.json.encode(line).decode()
            # non-ASCII characters occur only in JSON's strings
            text = _OTHERS.sub(lambda found: json.dumps(found[0])[1:-1], text)
            print(text, file=self._open(), flush=True)
        except OSError as error:  # a full disk must not stop the answers
            print(f"The log of requests cannot be written: {error}.", file=sys.stderr)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> TextIO:
        if self._path is None:
            return sys.stderr
        if self._file is not None and self._file.tell() > LONGEST:
            self.close()
            if self._path.exists() and self._path.stat().st_size > LONGEST:  # else the other gateway has moved it
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8")
        return self._file


def shown_body(body: bytes) -> Any:
    """Compact JSON; text if not encodable, as with infinite numbers."""
    try:
        return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(body)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", "replace")


def shown_key(key: str) -> str:
    """Without its secret, as in `marlaas api key list`."""
    return key[:-SECRET] if _KEY.fullmatch(key) else key[:SHOWN]


Row = tuple[str, Mapping[str, str], float]
PREFIX = "marlaas_"
TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Requests:
    """Counts answers."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()

    def add(self, line: Line) -> None:
        route = ("route", line.route)
        self._counts["gateway_requests_total", (route, ("status", str(line.status)))] += 1
        self._counts["gateway_request_seconds_total", (route,)] += line.ms / 1000  # type: ignore[assignment]
        self._counts["gateway_tokens_total", (("kind", "prompt"),)] += line.prompt_tokens
        self._counts["gateway_tokens_total", (("kind", "completion"),)] += line.completion_tokens

    def rows(self, under_way: int) -> Iterable[Row]:
        yield from ((name, dict(labels), count) for (name, labels), count in sorted(self._counts.items()))
        yield "gateway_requests_under_way", {}, under_way


_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def text(rows: Iterable[Row]) -> str:
    """Rows in Prometheus's text format, grouped by name."""
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for name, labels, value in rows:
        inner = ",".join(f'{label}="{str(said).translate(_ESCAPED)}"' for label, said in labels.items())
        shown = f"{value:.15g}" if math.isfinite(value) else {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[str(value)]
        by_name[name].append(f"{PREFIX}{name}{f'{{{inner}}}' if inner else ''} {shown}\n")
    return "".join(
        f"# TYPE {PREFIX}{name} {'counter' if name.endswith('_total') else 'gauge'}\n{''.join(lines)}"
        for name, lines in by_name.items()
    )
