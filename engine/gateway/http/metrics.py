"""Prometheus metrics: the engine's figures, and counts of this process's requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

Row = tuple[str, Mapping[str, str], float]
PREFIX = "marlaas_"
TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Requests:
    """Counts answers."""

    def __init__(self) -> None:
        self._answered: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    def add(self, route: str, status: int, milliseconds: float, prompt_tokens: int, completion_tokens: int) -> None:
        self._answered[route, status] += 1
        self._seconds[route] += milliseconds / 1000  # type: ignore[assignment]
        self._tokens["prompt"] += prompt_tokens
        self._tokens["completion"] += completion_tokens

    def rows(self, under_way: int) -> Iterable[Row]:
        for (route, status), count in sorted(self._answered.items()):
            yield "gateway_requests_total", {"route": route, "status": str(status)}, count
        for route, seconds in sorted(self._seconds.items()):
            yield "gateway_request_seconds_total", {"route": route}, seconds
        for kind, tokens in sorted(self._tokens.items()):
            yield "gateway_tokens_total", {"kind": kind}, tokens
        yield "gateway_requests_under_way", {}, under_way


def text(rows: Iterable[Row]) -> str:
    """Rows in Prometheus's text format, grouped by name."""
    by_name: dict[str, list[str]] = {}
    for name, labels, value in rows:
        inner = ",".join(f'{label}="{_escaped(str(said))}"' for label, said in labels.items())
        shown = f"{{{inner}}}" if inner else ""
        by_name.setdefault(name, []).append(f"{PREFIX}{name}{shown} {_number(value)}\n")
    lines = []
    for name, found in by_name.items():
        lines.append(f"# TYPE {PREFIX}{name} {'counter' if name.endswith('_total') else 'gauge'}\n")
        lines += found
    return "".join(lines)


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isfinite(value):
        return f"{value:.15g}"
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
