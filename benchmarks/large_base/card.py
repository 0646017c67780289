"""A card: tokens a second sampled and trained under many adapters, beside its measured limits; many tasks end to end.

    python -m benchmarks gpu                                    on the first card, in under ten minutes; published
    python -m benchmarks.large_base.card --device cpu --shape mini          tries the script itself; published nowhere

Parts share one clock: what has no time left is not measured, and the remarks say so.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from tools.random_base.families import SHAPES

from ..report.figures import Row, Section, Unmeasurable
from ..report.tables import table
from .card_sampling import PROMPT, REPLY, sampling
from .card_stage import CONVERSATIONS, RANK, Stage, staged
from .card_tasks import end_to_end
from .card_training import CASE, training

SECONDS = 540.0
COUNTS = (1, 8, 32)
SAMPLING, TRAINING = 15.0, 20.0
"""Seconds for each number of adapters."""
START = 60.0
"""Seconds without which no further sampler is started: vLLM takes most of them to start."""
RESERVED = 240.0
"""Seconds that samplers leave for the training and for whole tasks, whose engine starts its workers anew."""


def measure(quick: bool) -> Section:
    """On the first card that marlaas may use, in half of the time when quick. Raises ``Unmeasurable`` without one."""
    return run("0.5b", "card", 0.5 * SECONDS if quick else SECONDS)


def run(shape: str, device: str, seconds: float, tasks: int = 32) -> Section:
    """All parts on a base of random weights of that shape; ``device`` is ``card`` or ``cpu``."""
    with staged(shape, device, seconds) as stage:
        part = seconds / SECONDS
        rows: list[Row] = []
        remarks = list(stage.remarks)
        for kind in stage.kinds:
            if stage.clock.left > START * part + RESERVED * part:
                rows += asyncio.run(sampling(stage, kind, COUNTS, SAMPLING * part))
            else:
                remarks.append(f"There was no time left for {kind}.")
        if stage.clock.left > RESERVED * part:
            rows += asyncio.run(training(stage, COUNTS, TRAINING * part))
        else:
            remarks.append("There was no time left for training.")
        if stage.clock.left > RESERVED * part / 4:
            found, remark = end_to_end(stage, tasks)
            rows += found
        else:
            remark = "There was no time left for whole tasks."
        words = " ".join(word for word in (*remarks, remark) if word)
        return Section("gpu", f"On a card: {stage.name}", method(stage), tuple(rows), words)


def method(stage: Stage) -> str:
    """What ran."""
    config = stage.base.config
    limits = "could not be measured"
    if stage.rates is not None:
        limits = f"{stage.rates.matrix / 1e12:.2f} Tflop/s and {stage.rates.bandwidth / 1e9:,.0f} GB/s"
    return (
        f"{stage.name}; its limits, measured just before: {limits}. A base of random weights of the shape of Qwen2.5 "
        f"({config.layers} layers, {config.hidden_size} wide, {config.vocab_size:,} tokens), LoRA of rank {RANK} on "
        f"all linear layers. Sampling: up to {CONVERSATIONS} conversations, prompts of {PROMPT} and replies of {REPLY} "
        f"tokens, one wave after another. Training: {CASE.title}, {CASE.groups} groups a policy and step, the base in "
        f"{stage.precision}; tokens are counted in full for each sequence. *Fused* trains all policies in shared "
        "passes, *time-sliced* one after another. Tasks: two steps of 4 groups of 8 each, through the whole engine."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print, publish nothing."""
    words = argparse.ArgumentParser(
        prog="python -m benchmarks.large_base.card", description=str(__doc__).split("\n")[0]
    )
    words.add_argument("--shape", choices=SHAPES, default="0.5b")
    words.add_argument("--device", choices=("card", "cpu"), default="card")
    words.add_argument("--seconds", type=float, default=SECONDS, help="for everything (default: %(default)s)")
    words.add_argument("--tasks", type=int, default=32, help="of the end-to-end part (default: %(default)s)")
    options = words.parse_args(arguments)
    try:
        section = run(options.shape, options.device, options.seconds, options.tasks)
    except Unmeasurable as missing:
        print(missing, file=sys.stderr)
        return 1
    print(f"{table(section)}\n\n{section.method}\n\n{section.remarks}".strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
