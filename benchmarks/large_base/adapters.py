"""Several adapters in one pass of llama.cpp, beside one pass for each: tokens a second on one core."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from marlaas.engine.base.model import BaseModel, load_base
from tools.random_base.make import make_base

from ..machinery.cores import all_cores, pinned
from ..report.figures import Row, Section, Series
from .adapters_sampling import Case, Side
from .half_billion_sampling import RANK, write_adapter

LARGE = (Case(1, 2), Case(1, 16), Case(8, 2), Case(8, 8), Case(32, 2))
SMALL = (Case(1, 8), Case(8, 1), Case(8, 8), Case(32, 2))
QUICK = (Case(1, 2), Case(8, 2), Case(32, 2))
OTHER = "one pass for each"
REMARKS = """\
The two sides say the same to the last bit. A pass of few rows over the large base is mostly reading its weights, which
all adapters then share; a pass of many rows is mostly products, so that with many conversations of each adapter less is
saved. On the shipped base, whose weights stay in the cache, showing each layer to Python costs a pass of one adapter
a tenth of a millisecond; what it saves is the change of an adapter, for which llama.cpp reserves its memory anew: one
to eight milliseconds.
"""


@dataclass(frozen=True)
class Base:
    """What is sampled from."""

    name: str
    base: BaseModel
    weights: str
    exact: bool
    tokens: int
    """Sampled for each conversation in a repetition."""


def measure(quick: bool) -> Section:
    """Takes about 8 minutes, or 2 when quick."""
    repetitions = 2 if quick else 5
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name, pinned(all_cores()[:1]):
        folder = Path(name)
        half = make_base(folder / "base", "qwen2.5", "0.5b")
        bases = [Base(f"0.5 B, {weights}", half, weights, exact=False, tokens=3) for weights in ("f32", "q8_0")]
        for one in bases[1:] if quick else bases:
            rows += _rows(one, folder, QUICK if quick else LARGE, repetitions)
        if not quick:
            rows += _rows(
                Base("shipped base", load_base("tiny"), "f32", exact=True, tokens=24), folder, SMALL, repetitions
            )
    return Section("adapters", "Several adapters in one pass of llama.cpp", method(repetitions), tuple(rows), REMARKS)


def _rows(one: Base, folder: Path, cases: tuple[Case, ...], repetitions: int) -> list[Row]:
    """Each case on both sides, in turn."""
    state = folder / f"{one.name}.state"
    write_adapter(one.base, state)
    conversations = max(case.conversations for case in cases)
    adapters = max(case.adapters for case in cases)
    sides = [
        Side(one.base, folder, state, one.weights, one.exact, conversations, adapters, together)
        for together in (True, False)
    ]
    rows = []
    for case in cases:
        for side in sides:
            side.begin(case)
        speeds = [[side.rate(case, one.tokens) for side in sides] for _ in range(repetitions + 1)][1:]
        for side in sides:
            side.end()
        ours, theirs = (Series(values) for values in zip(*speeds, strict=True))
        rows.append(Row(f"{one.name}: {case}", "tokens/s", ours, theirs, OTHER, higher_is_better=True))
    for side in sides:
        side.close()
    return rows


def method(repetitions: int) -> str:
    """What ran, with which settings."""
    return (
        f"The real sampler on llama.cpp, drawing included, with LoRAs of rank {RANK} on all linear layers, each in"
        " memory of its own; one core, one thread. *0.5 B* is a random base of that shape made by `tools.random_base`."
        " Conversations of an adapter share a prompt of 8 tokens, which is not timed, and are decoded together."
        f" {repetitions} repetitions after one that is not counted; the sides take turns. Ours puts rows of all"
        " adapters into one pass over the base; the other side is the same sampler with one pass for each adapter."
    )
