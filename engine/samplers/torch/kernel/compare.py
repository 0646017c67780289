"""Compares compiled passes with torch's, in a process that may crash; keeps the result."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ....models.find import BaseModel, load_base
from ....models.weights import linear_shapes
from ...batching.context import Arrays, Context, Handles, Logits
from ...sampling import choose
from ..context import TorchContext
from .context import CompiledContext
from .library import SECONDS, Library

PARTS = np.array([3, 17, 6, 9, 2, 8, 4], np.int32)
"""First tokens, some more than a vector."""
LENGTH = 32
THREADS = 2
"""Of the first call, which has enough rows."""
RANK, ALPHA = 3, 6.0
TOLERANCE = 1e-3
"""Of two logits, as a share of the largest. Another order of sums changes a millionth."""
AGREES = "agrees"
DIFFERS = "Their results differ from torch's."
DEPENDS = "A row's last bits depend on other rows."
DRAWS = "The tokens that they draw differ from numpy's."
CRASHES = tuple(-each for each in (signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE))


def disagreement(library: Path, base: BaseModel) -> str:
    """Why not to use ``library``, as a sentence; empty: use it.

    Kept: results of the comparison and crashes. A comparison that fails otherwise is made again by the next sampler.
    """
    file = library.with_name(f"{library.stem}-{base.fingerprint}.verdict")
    with contextlib.suppress(OSError):
        if text := file.read_text("utf-8", "replace").strip():
            return "" if text == AGREES else text
    command = [sys.executable, "-P", "-m", __name__, str(library), str(base.path)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"They could not be compared with torch's: {error}."
    text = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode in CRASHES:
        text = f"What the C compiler makes ends with {done.returncode}."
    elif done.returncode or text not in (AGREES, DIFFERS, DEPENDS, DRAWS):
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"They could not be compared with torch's: the process ended with {done.returncode}: {last}"
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        unfinished.write_text(f"{text}\n", "utf-8")
        unfinished.replace(file)
    return "" if text == AGREES else text


def compare(base: BaseModel, compiled: Library) -> str:
    """As ``disagreement``, in this process."""
    count = len(PARTS)
    torchs, ours = TorchContext(base, count, LENGTH), CompiledContext(base, count, LENGTH, compiled, THREADS)
    tokens = np.random.default_rng(1).integers(0, ours.vocabulary, (count, LENGTH)).astype(np.int32)
    adapters = [_adapter(base, seed) for seed in (0, 1)]

    def answers(context: Context, handles: Handles, chosen: Sequence[int]) -> Logits:
        sequences, counts = np.array(chosen, np.int32), PARTS[list(chosen)]
        rows = np.repeat(sequences, counts)
        positions = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
        context.use(handles[rows])
        begun = context.decode(tokens[rows, positions], positions, rows, np.ones(len(rows), np.int8)).copy()
        context.use(handles[sequences])
        wanted = np.ones(len(sequences), np.int8)
        return np.concatenate([begun, context.decode(tokens[sequences, counts], counts, sequences, wanted)])

    theirs, own = (
        np.resize(np.array([way.load_adapter(each, ALPHA) for each in adapters], np.int64), count)
        for way in (torchs, ours)
    )
    expected, found = answers(torchs, theirs, range(count)), answers(ours, own, range(count))
    if not np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max():  # also catches NaN
        return DIFFERS
    lone = np.concatenate([answers(ours, own, [number]) for number in range(count)])
    same = np.array_equal(np.sort(lone, axis=None), np.sort(found, axis=None))
    if not same:
        return DEPENDS
    heats, noise = np.ones(len(found)), np.linspace(0.05, 0.95, len(found))
    (tokens, expected), (drawn, found) = (draw(found, heats, noise, None) for draw in (choose, ours.choose))
    return "" if (tokens == drawn).all() and np.allclose(found, expected, rtol=TOLERANCE) else DRAWS


def _adapter(base: BaseModel, seed: int) -> Arrays:
    random, adapter = np.random.default_rng(seed), {}
    for module, (out, into) in linear_shapes(base.config).items():
        if module != "lm_head":
            adapter[f"{module}.lora_A"] = random.normal(0, into**-0.5, (RANK, into)).astype(np.float32)
            adapter[f"{module}.lora_B"] = random.normal(0, RANK**-0.5, (out, RANK)).astype(np.float32)
    return adapter


if __name__ == "__main__":
    torch.set_num_threads(1)  # samplers of other tasks compute next to it
    print(compare(load_base(sys.argv[2]), Library(Path(sys.argv[1]))) or AGREES)
