"""The trainer beside transformers and PEFT, and beside what one core multiplies at most.

Both sides get the same groups, weights and loss, on one core, in turn; PEFT all 64 sequences in one padded batch, which
is its fastest. Operations are those of matrix products that really ran, counted by torch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from marlaas.engine.base.kernels import product
from marlaas.engine.base.model import load_base
from marlaas.engine.training.decoder.decoder import Decoder, compute_on
from marlaas.engine.training.group_pass import add_gradient
from marlaas.engine.training.inputs import PolicyConfig, TrainGroup
from marlaas.engine.training.memory.policy_memory import PolicyMemory, fresh
from marlaas.engine.training.model import Model
from marlaas.engine.training.peft_model import PeftModel
from marlaas.engine.training.torch_trainer import keep_freed_memory

from ..machinery.cores import all_cores, pinned
from ..machinery.operations import operations
from ..report.figures import Row, Section, Series
from .cases import CASES, Case, base_folder
from .stages import timed

CONFIG = PolicyConfig(rank=16, alpha=32.0, denominator=64.0)
WARM_UP = 3
UNLIMITED = 1 << 60
"""Bytes: nothing is computed twice to save memory."""
REMARKS = """\
What holds the tiny base's steps below 60 % of the rate: its products are small (160 columns, 16 in the adapters), and
of the time below only the linear layers multiply; attention, norms, positions and SwiGLU read and write memory. The
rate is that of AVX-512 kernels, 2.2 times what PyTorch's default library reaches on this processor (about 115 GFLOP/s a
core); of that one, the passes on the tiny base reach 90 to 100 %. Wide layers get beyond 60 % of the faster rate, too.
A base in bfloat16 costs agreement with the sampler; on a processor it is for a person to ask for (`precision`).

"""


def measure(quick: bool) -> Section:
    """All cases on one core, and the stages of the first."""
    repetitions = 3 if quick else 9
    keep_freed_memory()
    torch.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, pinned(all_cores()[:1]):
        for case in CASES[: 2 if quick else None]:
            rows += _compare(case, base_folder(case.base, Path(folder)), repetitions)
        stages = _stages(CASES[0], base_folder(CASES[0].base, Path(folder)))
    return Section(
        "trainer",
        "The trainer: forward and backward of one step",
        "64 episodes in 8 groups (the last case: 8 in one), LoRA of rank 16 on all linear layers, one core and "
        f"one thread; {repetitions} repetitions, in turn. *Theirs* is transformers with PEFT and autograd on PyTorch's "
        "default kernels, in padded batches of up to 4,096 tokens, its fastest. Tokens are random: no two answers are "
        "equal. The rate is that of a 1024 x 1024 float32 product on the same core in the same minute, by the fastest "
        "kernels there are; only products that really ran are counted.",
        tuple(rows),
        REMARKS + stages,
    )


def _compare(case: Case, folder: str, repetitions: int) -> list[Row]:
    ours, theirs = Decoder.of(load_base(folder)), PeftModel(folder, room=UNLIMITED)
    rounded = Decoder.of(load_base(folder), compute_on("cpu", "bf16"))
    groups = case.draw(ours.vocabulary)
    one_batch = [TrainGroup(0, tuple(s for group in groups for s in group.sequences))]
    our_pass, their_pass, halved = _pass(ours, groups), _pass(theirs, one_batch), _pass(rounded, groups)
    executed = operations(our_pass)
    for _ in range(WARM_UP):
        our_pass(), their_pass(), halved()
    our_times, their_times, shares, half_times = [], [], [], []
    for _ in range(repetitions):
        rate = _rate()
        our_times.append(_seconds(our_pass))
        their_times.append(_seconds(their_pass))
        half_times.append(_seconds(halved))
        shares.append(100.0 * executed / our_times[-1] / rate)
    milliseconds = Series(tuple(1e3 * t for t in our_times))
    return [
        Row(
            case.title,
            "ms",
            milliseconds,
            Series(tuple(1e3 * t for t in their_times)),
            "transformers + PEFT",
            goal="under 25 ms" if case is CASES[0] else "",
        ),
        Row(
            f"… share of the core's float32 rate ({executed / 1e9:.2f} GFLOP executed)",
            "%",
            Series(tuple(shares)),
            higher_is_better=True,
            goal="60 %",
        ),
        Row(
            f"… with the base in bfloat16 (log-probabilities off by up to {_disagreement(ours, rounded, groups):.3f})",
            "ms",
            Series(tuple(1e3 * t for t in half_times)),
            milliseconds,
            "ours in float32",
        ),
    ]


def _pass(model: Model[Any], groups: list[TrainGroup]) -> Callable[[], object]:
    """What a step runs before its optimizer: mounting included, which every step needs once."""
    layout = model.layout(CONFIG.rank)
    memory = PolicyMemory.of(CONFIG, layout, fresh(CONFIG, layout))

    def run() -> object:
        model.unmount()
        return add_gradient(model, memory, groups)

    return run


def _disagreement(exact: Decoder, rounded: Decoder, groups: list[TrainGroup]) -> float:
    """Largest difference of a log-probability between two precisions."""
    batches = list(exact.batches([groups]))
    ours, theirs = (
        torch.cat([model.logprobs(batch, (1.0,), adapted=False) for batch in batches]) for model in (exact, rounded)
    )
    return float((ours - theirs).abs().max())


def _rate() -> float:
    """Operations a second of a large product, by the faster of both kernels: the best of a few."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = 0.0
    for multiply in (torch.mm, product):
        best = max(best, *(2 * 1024**3 / _seconds(partial(multiply, left, right)) for _ in range(4)))
    return best


def _seconds(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


def _stages(case: Case, folder: str) -> str:
    """A table of the case's stages, in milliseconds, the median step of several."""
    model = Decoder.of(load_base(folder))
    run = _pass(model, case.draw(model.vocabulary))
    for _ in range(WARM_UP):
        run()
    steps: list[tuple[float, dict[str, float]]] = []
    for _ in range(15):
        with timed() as seconds:
            steps.append((_seconds(run), seconds))
    total, seconds = sorted(steps, key=lambda step: step[0])[len(steps) // 2]
    lines = [f"| {piece} | {1e3 * spent:.2f} |" for piece, spent in seconds.items()]
    rest = total - sum(seconds.values())
    return "\n".join(
        [
            f"One step of {case.title} by stage, median of {len(steps)} steps, in milliseconds:",
            "",
            "| stage | ms |",
            "|---|---|",
            *lines,
            f"| loss, additions and the rest | {1e3 * rest:.2f} |",
            f"| all | {1e3 * total:.2f} |",
        ]
    )
