"""The workloads of the comparisons with TRL: which prompts, and which hyper-parameters both sides train with.

A seed flows in, rows flow out; both sides read the same rows in the same order. Every preamble is drawn again, so that
no two groups share more of a prompt than a few tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .. import PLUGINS

RANK, ALPHA = 16, 32.0
LEARNING_RATE, BETAS, CLIP_NORM = 5e-4, (0.9, 0.95), 1.0
"""marlaas's defaults; the betas are not a setting there."""
TEMPERATURE = 1.0
DIGITS = 4
WORDS = ("the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are", "as", "with")
"""Of longer preambles, for bases that have a token for each."""


@dataclass(frozen=True)
class Workload:
    """One kind of prompt, and the base that answers it."""

    name: str
    preamble: int
    """Characters of the system message, or words where ``wordy``; 0 for none."""
    max_tokens: int
    graded: bool = False
    """Whether half-right replies are paid for: the base cannot add after a preamble that it has never seen the like
    of, and without unequal rewards there would be nothing to train."""
    wordy: bool = False
    environment: str = "sums"
    """A folder of ``plugins``; both sides pay with its ``grading.py``."""
    base: str = "tiny"
    """As ``marlaas.toml`` names it."""
    groups: int = 8
    group_size: int = 8
    at_once: int = 64
    """Episodes of one forward and backward pass of TRL, which holds the logits of them all."""

    @property
    def episodes(self) -> int:
        """Of one step."""
        return self.groups * self.group_size

    @property
    def plugin(self) -> Path:
        """Where the environment lies."""
        return PLUGINS / self.environment


SHORT = Workload("prompts of 13 tokens", 0, 8)
LONG = Workload("prompts of 256 tokens", 241, 6, graded=True)


def write_rows(workload: Workload, steps: int, seed: int, folder: Path, held_out: int = 1) -> None:
    """Write ``train.jsonl`` with a row for each group, in order, and ``held_out`` more rows in ``eval.jsonl``."""
    rows = [json.dumps(row) for row in draw(workload, steps * workload.groups + held_out, seed)]
    (folder / "train.jsonl").write_text("\n".join(rows[:-held_out]) + "\n", encoding="utf-8")
    (folder / "eval.jsonl").write_text("\n".join(rows[-held_out:]) + "\n", encoding="utf-8")


def draw(workload: Workload, count: int, seed: int) -> Iterator[dict[str, str]]:
    """Different rows, each a sum with its own preamble."""
    rng = Random(seed)
    low, high = 10 ** (DIGITS - 1), 10**DIGITS - 1
    seen: set[tuple[int, int]] = set()
    while len(seen) < count:
        a, b = rng.randint(low, high), rng.randint(low, high)
        if (a, b) not in seen:
            seen.add((a, b))
            letters, between = (WORDS, " ") if workload.wordy else ("0123456789 ", "")
            preamble = between.join(rng.choices(letters, k=workload.preamble))
            yield {"preamble": preamble, "prompt": f"{a}+{b}=", "answer": str(a + b)}
