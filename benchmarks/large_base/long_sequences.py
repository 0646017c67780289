"""One long sequence in training and in sampling: seconds and memory of a pass, in tiles and with every score held.

A base of the width of Qwen2.5-0.5B with two layers; each pass is a process of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from marlaas.engine.devices import Precision
from marlaas.engine.devices.measuring import measure as measure_device
from tools.random_base.families import SHAPES
from tools.random_base.make import make_base

from ..report.figures import Row, Section, Series
from .long_pass import Stage, Way, measured

LENGTHS = {2048: 3, 8192: 2, 32_768: 1}
"""Tokens of a sequence, and repetitions: the longest takes minutes."""
SHAPE = replace(SHAPES["0.5b"], layers=2)
ROWS = 4096
"""Of the vocabulary, which is small: here it is not the output head that is measured."""
SQUARE = {
    ("training", "f32"): 170.0,
    ("sampling", "f32"): 70.0,
    ("training", "bf16"): 30.0,
    ("sampling", "bf16"): 30.0,
}
"""About how many bytes the passes that hold every score take for each pair of tokens."""
SPARE = 1.3
METHOD = """\
A random base made by `tools.random_base` in the width of Qwen2.5-0.5B ({hidden}, {heads} heads of 64), with {layers}
layers and {rows:,} tokens. One sequence: the trainer goes forward and backward over a prompt and an answer of half the
tokens each, with a LoRA of rank 16; the torch sampler reads all of it as a prompt. Each pass is the first of a process
of its own with one thread, turn by turn (repetitions: {repetitions}); seconds are of processor time, memory is the peak
of the pass beyond what the base took before it. *Every score held* is attention as it is computed for short sequences;
it is left out where it would take more memory than is free."""
REMARKS = """\
Memory grows with the number of tokens. In the trainer that is a vector of the base's width for each layer, and what the
attention part of one layer keeps. Time still grows with the square: of the products of a training pass over 32,768
tokens at this width, attention has three quarters, so the rate of products over tiles of 32 to 512 tokens bounds it.

"""


def measure(quick: bool) -> Section:
    """All lengths; takes about 23 minutes, or 2 with the shortest two when quick."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name:
        folder = Path(name)
        make_base(folder, "qwen2.5", SHAPE, rows=ROWS)
        kinds: tuple[Precision, ...] = ("f32", "bf16") if measure_device("cpu").gain > 1.0 else ("f32",)
        stages: tuple[Stage, ...] = ("training", "sampling")
        for stage in stages:
            for weights in kinds[:1] if quick else kinds:
                for tokens, repetitions in (*LENGTHS.items(),)[:2] if quick else LENGTHS.items():
                    rows += rows_of(folder, stage, weights, tokens, 1 if quick else repetitions)
    often = ", ".join(f"{repetitions} of {tokens:,} tokens" for tokens, repetitions in LENGTHS.items())
    method = METHOD.format(
        hidden=SHAPE.hidden, heads=SHAPE.heads, layers=SHAPE.layers, rows=ROWS, repetitions="one" if quick else often
    ).replace("\n", " ")
    return Section("long_sequences", "One long sequence", method, tuple(rows), REMARKS)


def rows_of(folder: Path, stage: Stage, weights: Precision, tokens: int, repetitions: int) -> list[Row]:
    """Seconds and memory of one stage and length."""
    both = SPARE * SQUARE[stage, weights] * tokens**2 < psutil.virtual_memory().available
    ways: tuple[Way, ...] = ("tiles", "square") if both else ("tiles",)
    turns = [[measured(folder, stage, weights, tokens, way) for way in ways] for _ in range(repetitions)]
    ours, *theirs = zip(*turns, strict=True)
    what = f"{stage} in {'float32' if weights == 'f32' else 'bfloat16'}, {tokens:,} tokens"
    return [
        _row(f"{what}: time", "s", [[one.seconds for one in side] for side in (ours, *theirs)]),
        _row(f"{what}: memory", "MB", [[one.megabytes for one in side] for side in (ours, *theirs)]),
    ]


def _row(what: str, unit: str, sides: Sequence[Sequence[float]]) -> Row:
    ours, *theirs = (Series(tuple(side)) for side in sides)
    return Row(what, unit, ours, theirs[0] if theirs else None, "every score held" if theirs else "")
