"""Tokens a second of the sampler beside plain llama.cpp and beside a torch loop, on one core.

Everything is measured in a child process that has one core and one thread; the sides take turns, case by case.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ..report.figures import Row, Section, Series
from .cases import GRID, STEPS, Case, Side

EXACT, FAST, OWN, PLAIN, TORCH = "marlaas", "marlaas, fast", "marlaas, torch", "plain llama.cpp", "torch loop"
MODES = (("exact", EXACT), ("fast", FAST), ('sampler = "torch"', OWN))
OURS_DRAW, TORCH_DRAW = "marlaas draws", "torch draws"
QUICK = (Case(1, 1), Case(64, 1), Case(64, 8), Case(64, 32))
Times = dict[tuple[str, Case | None], tuple[float, ...]]
"""Seconds of each repetition, by side and case."""
METHOD = """\
The shipped base (1.28 M parameters, vocabulary 288), LoRA of rank 16 on all linear layers, float32 weights, one core,
one thread. Prompts of {prompt} tokens, {tokens} sampled tokens for each sequence, nobody stops early; up to 8 sequences
share a prompt; the adapters' sequences take turns. Prompts are part of the time. {repetitions} repetitions after one
that is not counted; the sides take turns within each.

- **marlaas**: the worker class with its thread and event loop, temperature 1, log-probabilities recorded. *exact* (the
  default) computes attention in float32, so that the trainer's log-probabilities agree; *fast* in float16, as llama.cpp
  does by default, with half the memory. It holds 254 conversations; of 256, two wait. With `sampler = "torch"` the same
  worker class computes on torch, compiled where there is a C compiler. All have the rows of all adapters in one pass.
- **plain llama.cpp**: the same library by its low-level API, greedy, its default float16 attention, one call for all
  rows of an adapter, a memory for each sequence. It records no log-probabilities.
- **torch loop**: transformers and PEFT in float32 with a key-value cache, one batch for each adapter, temperature 1.
  It records no log-probabilities.
"""
REMARKS = """\
*exact* has float32 attention in the form that reads only what a sequence holds, which llama.cpp itself has in float16
alone. llama.cpp computes each prompt in a call of its own, because there a row's last bits depend on its call; on torch
all prompts that wait share a pass, which is why short answers and long prompts are still slower on llama.cpp. One
sequence costs a second row, because a batch of one would have other last bits than the same row in company. Of the
compiled passes of `sampler = "torch"` each reads the base's 2.5 MB in bfloat16 and 0.8 MB for every adapter, which
bounds few rows; 64 rows of one adapter are bound by their 190 million operations in float32, about a millisecond of a
core with AVX-512.
"""


def measure(quick: bool) -> Section:
    """Takes about 3 minutes, or half a minute when quick."""
    grid, repetitions = (QUICK, 2) if quick else (GRID, 5)
    core = max(os.sched_getaffinity(0))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _pin, (core,)) as process:
        times = process.submit(_times, (*grid, *STEPS), repetitions).result()
    rows = [row for case in grid for row in _rates(case, times)]
    rows += [row for case in STEPS for row in _steps(case, times)]
    drawing = Series(_milliseconds(times[OURS_DRAW, None])), Series(_milliseconds(times[TORCH_DRAW, None]))
    rows.append(Row("drawing 64 tokens at vocabulary 151,936", "ms", *drawing, other="torch"))
    example = grid[0]
    method = METHOD.format(prompt=example.prompt, tokens=example.tokens, repetitions=repetitions)
    return Section("sampler", "The sampler, beside plain llama.cpp and a torch loop", method, tuple(rows), REMARKS)


def _rates(case: Case, times: Times) -> list[Row]:
    name = f"{_count(case.sequences, 'sequence')}, {_count(case.adapters, 'adapter')}"
    name += " of mixed ranks" if case.mixed else ""
    name += f", prompts of {case.prompt}" if case.prompt != GRID[0].prompt else ""
    rates = {side: Series(tuple(case.sampled / each for each in times[side, case])) for side in _sides()}
    return [
        Row(f"{name}, {mode}", "tokens/s", rates[ours], rates[other], other, higher_is_better=True)
        for mode, ours in MODES
        for other in (PLAIN, TORCH)
    ]


def _steps(case: Case, times: Times) -> list[Row]:
    name = f"{case.sequences} episodes of {case.tokens} tokens, prompts of {case.prompt}"
    spent = {side: Series(_milliseconds(times[side, case])) for side in _sides()}
    goal = "well under 40 ms" if case.prompt < 100 else ""
    return [
        Row(f"{name}, {mode}", "ms", spent[ours], spent[other], other, goal=goal)
        for mode, ours in MODES
        for other in (PLAIN, TORCH)
    ]


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' if number > 1 else ''}"


def _sides() -> tuple[str, ...]:
    return EXACT, FAST, OWN, PLAIN, TORCH


def _milliseconds(seconds: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(each * 1e3 for each in seconds)


def _pin(core: int) -> None:
    """Before anything heavy is imported: thread pools read both when they are loaded."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    os.sched_setaffinity(0, {core})


def _times(cases: tuple[Case, ...], repetitions: int) -> Times:
    """The child's work."""
    from .files import Files
    from .ours import Ours
    from .plain_llama import Plain
    from .torch_loop import Torch

    times: dict[tuple[str, Case | None], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        sides: dict[str, Side] = {
            EXACT: Ours.on_llama(files, exact=True),
            FAST: Ours.on_llama(files, exact=False),
            OWN: Ours.on_torch(files),
            PLAIN: Plain(files),
            TORCH: Torch(files),
        }
        for case in cases:
            for repetition in range(repetitions + 1):
                for name, side in sides.items():
                    times[name, case].append(side.run(case, repetition))
        for side in sides.values():
            side.close()
    _draw(times, repetitions + 1)
    return {key: tuple(values[1:]) for key, values in times.items()}


def _draw(times: dict[tuple[str, Case | None], list[float]], repetitions: int) -> None:
    import time

    import numpy as np
    import torch

    from marlaas.engine.rollout.sampling import choose

    from .torch_loop import seconds_of_drawing

    random = np.random.default_rng(0)
    logits = random.normal(size=(64, 151_936)).astype(np.float32) * np.float32(3)
    temperatures, noise, generator = np.ones(64), random.random(64), torch.Generator().manual_seed(0)
    for _ in range(repetitions):
        began = time.perf_counter()
        choose(logits, temperatures, noise)
        times[OURS_DRAW, None].append(time.perf_counter() - began)
        times[TORCH_DRAW, None].append(seconds_of_drawing(torch.from_numpy(logits), generator))
