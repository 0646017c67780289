"""A step at a vocabulary of 151,936 entries, beside TRL: where logits outweigh everything else.

A random base of 4 layers of width 256, prompts of about 256 tokens and answers of 200 flow into both sides, as whole
programs, one after the other; seconds a step flow out.
"""

from __future__ import annotations

from ..machinery.cores import all_cores
from ..report.figures import Section
from . import tables
from .random_bases import beside
from .runs import Arm, Case
from .trl_venv import TRL
from .workload import Workload

WORKLOAD = Workload(
    "vocabulary 151,936",
    preamble=212,
    max_tokens=200,
    wordy=True,
    environment="letters",
    groups=2,
    group_size=8,
    at_once=8,
)
ARMS = {
    "default settings": Arm(),
    "llama.cpp, q8_0": Arm(sampler="llama.cpp", weights="q8_0"),
    "llama.cpp, f32": Arm(sampler="llama.cpp", weights="f32"),
    "llama.cpp, f32, staleness 0": Arm(staleness=0, sampler="llama.cpp", weights="f32"),
    "torch sampler": Arm(sampler="torch"),
}
"""What the placement chooses here; eight bits; llama.cpp in float32; the synchronous algorithm; the other sampler."""
STEPS, SETTLED, REPETITIONS = 5, 2, 2
GOAL = "5 ×"


def measure(quick: bool) -> Section:
    """Run every arm; takes about 15 minutes, or 4 when quick."""
    steps, settled, repetitions = (3, 1, 1) if quick else (STEPS, SETTLED, REPETITIONS)
    title = f"A vocabulary of 151,936, beside TRL {TRL}"
    case = Case(WORKLOAD, all_cores(), steps, settled, repetitions, GOAL)
    return beside("large_vocabulary", title, method(), "bench", ARMS, case)


def method() -> str:
    """What ran, with which settings."""
    one = WORKLOAD
    return (
        f"{one.groups} prompts × {one.group_size} completions and one optimizer step each; a random base made by"
        " `tools.random_base`: Qwen2.5's layout, 4 layers of width 256, 151,936 tied embeddings;"
        f" {tables.settings()}. Prompts have about 256 tokens, a different preamble of common"
        f" words for each group, answers {one.max_tokens}: a random base does not end its turns. Replies are paid by"
        " the share of vowels in them, so that every group has unequal rewards. Our trainer keeps the"
        " base as the placement chooses, in every arm; with default settings so does the sampler.\n\n"
        "TRL computes in float32 and holds the logits of a whole pass: it gets passes of"
        f" {one.at_once} episodes (2 or 4 are no faster), and a"
        " C library that keeps freed memory, without which its steps take twice as long. Else as in the comparison on"
        " the shipped base: whole programs, pinned to all cores, arms in turn."
    )
