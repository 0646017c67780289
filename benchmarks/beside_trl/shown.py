"""Examples and pairs beside TRL's ``SFTTrainer`` and ``DPOTrainer``: same base, rows, order and settings.

Both sides are whole programs. The losses of the first steps say whether both do the same work.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from marlaas.engine.home.paths import Home
from marlaas.engine.rollout.conversation import Order
from marlaas.engine.rollout.demonstrations import parts_of, turns_of
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.store.queries.reader import Reader
from marlaas.plugins.conversations import conversation_of
from marlaas.plugins.data import row_at

from ..machinery.cores import all_cores
from ..real.base import smollm2
from ..report.figures import Row, Section, Series
from .marlaas_side import command
from .trl_venv import TRL, ensure_trl

SCRIPT = Path(__file__).with_name("trl_shown.py")
BATCH, RATE, SKIPPED = 8, 1e-4, 2
TEXT = "the sea was calm and a small boat with two sailors moved slowly along the coast while birds cried above"
TASK = """\
tenant = "bench"
name = "shown"
kind = "{kind}"
steps = {steps}
data = {{ path = "rows.jsonl" }}
train = {{ learning_rate = {rate}, groups_per_step = {batch} }}
eval = {{ every = 0, prompts = 1 }}
"""


Outcome = tuple[Sequence[float], Sequence[float], Sequence[float]]
"""Losses, seconds and margins of a run's steps; examples have no margins."""


def measure(quick: bool) -> Section:
    """Run both kinds; takes about 20 minutes, or 5 when quick."""
    python, base, steps, repetitions = ensure_trl(), smollm2(), 4 if quick else 8, 1 if quick else 3
    rows, remarks = [], []
    for kind in ("sft", "dpo"):
        ours, theirs = [], []
        for seed in range(repetitions):
            with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name:
                write_rows(Path(name), kind, steps, seed, Renderer(base))
                theirs.append(_trl(python, base, Path(name), kind, steps))
                ours.append(_marlaas(base, Path(name), kind, steps))
        means = [Series(tuple(fmean(run[1][SKIPPED:]) for run in side)) for side in (ours, theirs)]
        rows.append(Row(f"a step of {BATCH} {NOUNS[kind]}", "s", means[0], means[1], f"TRL {TRL}", goal="2 ×"))
        pairs = zip(ours[0][0], theirs[0][0], strict=False)
        apart = max(abs(a - b) for a, b in pairs)
        curve = ", ".join(f"{loss:.4f}" for loss in ours[0][0][:4])
        remarks.append(f"- `{kind}`: the losses begin {curve}; the largest difference to TRL's is {apart:.4f}.")
        if kind == "dpo":
            ends = [fmean(side[0][2][-2:]) for side in (ours, theirs)]
            remarks.append(f"- `dpo`: the margin of the last two steps is {ends[0]:.4f}, TRL's {ends[1]:.4f}.")
    return Section(
        name="shown",
        title=f"Examples and pairs, beside TRL {TRL}",
        method=(
            f"SmolLM2-135M in float32, rank 16 on all linear layers, {BATCH} rows a step, {steps} steps, of which the"
            f" first {SKIPPED} are not counted; prompts of 20 to 60 and replies of 10 to 60 words; all cores. Both"
            " sides are whole programs, one after the other, and take the same rows in the same order."
        ),
        rows=tuple(rows),
        remarks="\n".join(remarks),
    )


NOUNS = {"sft": "conversations", "dpo": "pairs"}


def write_rows(folder: Path, kind: str, steps: int, seed: int, renderer: Renderer) -> None:
    """``rows.jsonl`` for us, and ``ordered.jsonl``, the rows of our steps in their order, for TRL.

    TRL counts the line's end after a reply as a part of it: of examples it gets our tokens.
    """
    draw, count = Random(seed), BATCH * steps * 2

    words = TEXT.split()

    def text(least: int, most: int) -> str:
        return " ".join(draw.choice(words) for _ in range(draw.randint(least, most)))

    def row() -> dict[str, Any]:
        prompt = [{"role": "user", "content": text(20, 60)}]
        reply, other = ([{"role": "assistant", "content": text(10, 60)}] for _ in "ab")
        if kind == "sft":
            return {"prompt": prompt, "completion": reply}
        return {"prompt": prompt, "chosen": reply, "rejected": other}

    rows = [row() for _ in range(count)]
    lines = [json.dumps(one | {"split": split}) for one, split in [*((r, "train") for r in rows), (row(), "eval")]]
    (folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    chosen = [rows[row_at("train", 0, index, count)] for index in range(BATCH * steps)]
    ordered = [json.dumps(tokens_of(renderer, one) if kind == "sft" else one) for one in chosen]
    (folder / "ordered.jsonl").write_text("\n".join(ordered), encoding="utf-8")


def tokens_of(renderer: Renderer, row: dict[str, Any]) -> dict[str, list[int]]:
    """As TRL takes rows that are tokens already."""
    messages, _ = conversation_of(row)
    (part,) = parts_of(turns_of(renderer, messages), 0, Order())
    shown = part.trajectory("", None, False)
    return {"input_ids": shown.tokens.tolist(), "completion_mask": shown.mask.tolist()}


def _trl(python: Path, base: Path, folder: Path, kind: str, steps: int) -> Outcome:
    outcome = folder / "outcome.json"
    words = [kind, str(base), str(folder / "ordered.jsonl"), str(outcome), str(steps), str(BATCH), str(RATE)]
    done = subprocess.run([str(python), "-P", str(SCRIPT), *words], capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise RuntimeError(f"TRL ended with code {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
    said = json.loads(outcome.read_text(encoding="utf-8"))
    ends = [said["begun"], *said["ends"]]
    return (said["losses"], [after - before for before, after in pairwise(ends)], said["margins"])


def _marlaas(base: Path, folder: Path, kind: str, steps: int) -> Outcome:
    home, cores = Home(folder / "home").create(), all_cores()
    home.config.write_text(f'base = {json.dumps(str(base))}\n[training]\nprecision = "f32"\n', encoding="utf-8")
    task = folder / "task.toml"
    task.write_text(TASK.format(kind=kind, steps=steps, rate=RATE, batch=BATCH), encoding="utf-8")
    try:
        command(home, cores, "submit", str(task))
        command(home, cores, "wait", "1")
        with Reader(home.database) as reader:
            made = reader.steps(1)
    finally:
        with suppress(RuntimeError):
            command(home, cores, "engine", "stop")
    losses, seconds, margins = (
        [step.metrics.get(name, 0.0) for step in made] for name in ("loss", "seconds", "margin")
    )
    return losses, seconds, margins
