"""The two workloads of the comparison with TRL: which prompts, and which hyper-parameters both sides train with.

A seed flows in, rows flow out; both sides read the same rows in the same order. Every preamble is drawn anew, so that
no two groups share more of a prompt than a few tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

GROUPS, GROUP_SIZE = 8, 8
EPISODES = GROUPS * GROUP_SIZE
RANK, ALPHA = 16, 32.0
LEARNING_RATE, BETAS, CLIP_NORM = 5e-4, (0.9, 0.95), 1.0
"""marlaas's defaults; the betas are not a setting there."""
TEMPERATURE = 1.0
DIGITS = 4
PLUGIN = Path(__file__).resolve().parent / "plugins" / "sums"


@dataclass(frozen=True)
class Workload:
    """One kind of prompt."""

    name: str
    preamble: int
    """Characters of the system message; 0 for none. The base has one token for each."""
    max_tokens: int
    graded: bool
    """Whether half-right replies are paid for: the base cannot add after a preamble that it has never seen the like
    of, and without unequal rewards there would be nothing to train."""


SHORT = Workload("prompts of 13 tokens", 0, 8, False)
LONG = Workload("prompts of 256 tokens", 241, 6, True)


def write_rows(workload: Workload, steps: int, seed: int, folder: Path) -> None:
    """Write ``train.jsonl`` with a row for each group, in order, and one more row in ``eval.jsonl``."""
    rows = [json.dumps(row) for row in draw(workload, steps * GROUPS + 1, seed)]
    (folder / "train.jsonl").write_text("\n".join(rows[:-1]) + "\n", encoding="utf-8")
    (folder / "eval.jsonl").write_text(rows[-1] + "\n", encoding="utf-8")


def draw(workload: Workload, count: int, seed: int) -> Iterator[dict[str, str]]:
    """Different rows, each a sum with a preamble of its own."""
    rng = Random(seed)
    low, high = 10 ** (DIGITS - 1), 10**DIGITS - 1
    seen: set[tuple[int, int]] = set()
    while len(seen) < count:
        a, b = rng.randint(low, high), rng.randint(low, high)
        if (a, b) not in seen:
            seen.add((a, b))
            preamble = "".join(rng.choices("0123456789 ", k=workload.preamble))
            yield {"preamble": preamble, "prompt": f"{a}+{b}=", "answer": str(a + b)}
