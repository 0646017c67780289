"""The timeline: a row for each stage on its device and each worker, a cell for each stretch of time, darker if busier.

Pure; knows neither the store nor widgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from marlaas.engine.store import STAGES, WORKER, StageSample

from ...words.format import clip, line, pad, share, short_duration
from ...words.tasks import FRESH_SECONDS
from .pane import Line

GRAINS = (1, 5, 15, 60, 300, 3600)
"""Seconds of a cell, from short to long. After an hour samples are kept by the minute, after a day by the hour."""
LABEL, SHARE = 18, 6
"""Cells of a row left and right of its timeline."""
MOST_WORKERS = 4
"""Environment workers that have a row: the busiest ones."""
IDLE = 0.005
_SHADES = "░▒▓█"
_STYLES = {"rollout": "$text-primary", "environment": "$text-accent", "training": "$text-success"}
_WORKER_STYLE = "$text-muted"


@dataclass(frozen=True)
class Row:
    """One stage on one device."""

    stage: str
    device: str
    cells: tuple[float | None, ...]
    """Share of the time in which it was busy, oldest first; None where no engine ran."""

    @property
    def label(self) -> str:
        """Stage and device, or the name of a worker."""
        worker = self.stage.startswith(WORKER)
        return f"  {line(self.stage[len(WORKER) :])}" if worker else line(f"{self.stage} {self.device}")

    @property
    def newest(self) -> float | None:
        """How busy the stage was in the newest cell."""
        return self.cells[-1] if self.cells else None


def rows(spans: Sequence[StageSample], until: float, grain: int, count: int) -> list[Row]:
    """The rows: the spans, spread over the ``count`` cells that end with the cell of ``until``."""
    first = math.ceil(until / grain) - count
    busy: dict[tuple[str, str], list[float]] = {}
    wall: dict[tuple[str, str], list[float]] = {}
    for span in spans:
        key = (span.stage, span.device)
        sums = busy.setdefault(key, [0.0] * count), wall.setdefault(key, [0.0] * count)
        begun, ended = span.begun, span.begun + span.wall
        for cell in range(max(int(begun // grain), first), min(int(ended // grain), first + count - 1) + 1):
            covered = min(ended, (cell + 1) * grain) - max(begun, cell * grain)
            if covered > 0:
                sums[0][cell - first] += span.share * covered
                sums[1][cell - first] += covered
    busiest = sorted((key for key in busy if key[0].startswith(WORKER)), key=lambda key: -sum(busy[key]))
    shown = [key for key in busy if key not in busiest[MOST_WORKERS:] and any(wall[key])]
    return [
        Row(*key, _settled(key[0], [b / w if w > 0 else None for b, w in zip(busy[key], wall[key], strict=True)]))
        for key in sorted(shown, key=_rank)
    ]


def _settled(stage: str, cells: list[float | None]) -> tuple[float | None, ...]:
    """The cells with no value above 1: a worker that reports more than all of its time was busy in the cells before."""
    if stage not in ("rollout", "training"):
        return tuple(cells)
    settled: list[float | None] = []
    late = 0.0
    for cell in reversed(cells):
        told = None if cell is None else cell + late
        late = 0.0 if told is None else max(0.0, told - 1.0)
        settled.append(None if told is None else min(1.0, told))
    return tuple(reversed(settled))


def _rank(key: tuple[str, str]) -> tuple[int, str, str]:
    """A sort key: workers come below their stage."""
    stage = "environment" if key[0].startswith(WORKER) else key[0]
    return (STAGES.index(stage) if stage in STAGES else len(STAGES), "" if stage == key[0] else key[0], key[1])


def lines(shown: Sequence[Row], grain: int, since: float) -> list[Line]:
    """A line for each row, and the axis, whose right end was ``since`` seconds ago."""
    if not shown:
        return [(("Nothing was measured here in this time.", "$text-muted"),)]
    texts: list[Line] = []
    for row in shown:
        label = pad(clip(row.label, LABEL - 1), LABEL)
        now = "" if row.newest is None else share(row.newest)
        texts.append(
            (
                (label, "$text-muted"),
                ("".join(map(shade, row.cells)), _STYLES.get(row.stage, _WORKER_STYLE)),
                (pad(now, SHARE, right=True), ""),
            )
        )
    return [*texts, ((axis(len(shown[0].cells), grain, since), "$text-muted"),)]


def shade(value: float | None) -> str:
    """The character of a cell: a space where no engine ran, a dot where it had nothing to do."""
    if value is None:
        return " "
    if value < IDLE:
        return "·"
    return _SHADES[min(len(_SHADES) - 1, int(value * len(_SHADES)))]


def axis(count: int, grain: int, since: float) -> str:
    """The axis: how long ago its left end, middle and right end were."""
    right = "now" if since < FRESH_SECONDS else f"{short_duration(since)} ago"
    left, middle = (f"-{short_duration(since + grain * cells)}" for cells in (count, count // 2))
    text = pad(left, count // 2) + middle
    return " " * LABEL + (pad(text, count - len(right)) + right if len(text) + len(right) < count else right)
