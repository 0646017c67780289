"""Whether compiled passes over a base are right and gain time: beside those of torch, on the base itself."""

from __future__ import annotations

from collections.abc import Sequence
from time import thread_time

import numpy as np

from ....base import BaseModel, linear_shapes
from ...batching.context import Arrays, Context, Handles, Logits
from ..context import TorchContext
from .context import CompiledContext
from .library import Library

PARTS = np.array([3, 17, 6, 9, 2, 8, 4], np.int32)
"""Tokens with which each of some sequences begins: unequal, and some more than a vector."""
LENGTH = 32
RANK, ALPHA = 3, 6.0
TOLERANCE = 1e-3
"""Largest gap of two logits, as a share of the largest. Sums of float32 in another order differ by about a millionth of
it, a wrong pass by all of it."""
TURNS = 3
"""How often each way computes; the best counts."""


def refusal(base: BaseModel, compiled: Library, threads: int = 1) -> str:
    """Why compiled passes should not be used for this base, as a clause; empty where they should.

    ``threads`` as torch has been told. Takes the time of some ten passes of torch. Raises ``BaseModelError`` where the
    base cannot be read.
    """
    count = len(PARTS)
    torchs, ours = TorchContext(base, count, LENGTH), CompiledContext(base, count, LENGTH, compiled, threads)
    tokens = np.random.default_rng(1).integers(0, ours.vocabulary, (count, LENGTH)).astype(np.int32)
    adapters = [_adapter(base, seed) for seed in (0, 1)]
    every = range(count)

    def handles(context: Context) -> Handles:
        loaded = [context.load_adapter(adapter, ALPHA) for adapter in adapters]
        return np.resize(np.array(loaded, np.int64), count)

    theirs, own = handles(torchs), handles(ours)
    expected, found = _answers(torchs, theirs, tokens, every), _answers(ours, own, tokens, every)
    if not np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max():  # NaN is not
        return "their results differ from torch's"
    lone = np.concatenate([_answers(ours, own, tokens, [number]) for number in every])
    if not np.array_equal(np.sort(lone, axis=None), np.sort(found, axis=None)):
        return "a row's last bits depend on other rows"
    seconds = [
        min(_seconds(context, used, tokens) for _ in range(TURNS)) for context, used in ((torchs, theirs), (ours, own))
    ]
    return "" if seconds[1] < seconds[0] else "torch is faster"


def _answers(context: Context, handles: Handles, tokens: np.ndarray, chosen: Sequence[int]) -> Logits:
    """The logits after each token of the beginnings of some sequences, and after one more of each."""
    sequences, counts = np.array(chosen, np.int32), PARTS[list(chosen)]
    rows = np.repeat(sequences, counts)
    positions = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    context.use(handles[rows])
    begun = context.decode(tokens[rows, positions], positions, rows, np.ones(len(rows), np.int8)).copy()
    context.use(handles[sequences])
    wanted = np.ones(len(sequences), np.int8)
    return np.concatenate([begun, context.decode(tokens[sequences, counts], counts, sequences, wanted)])


def _seconds(context: Context, handles: Handles, tokens: np.ndarray) -> float:
    begun = thread_time()
    _answers(context, handles, tokens, range(len(PARTS)))
    return thread_time() - begun


def _adapter(base: BaseModel, seed: int) -> Arrays:
    """Random, on all linear layers of all blocks."""
    random, adapter = np.random.default_rng(seed), {}
    for module, (out, into) in linear_shapes(base.config).items():
        if module != "lm_head":
            adapter[f"{module}.lora_A"] = random.normal(0, into**-0.5, (RANK, into)).astype(np.float32)
            adapter[f"{module}.lora_B"] = random.normal(0, RANK**-0.5, (out, RANK)).astype(np.float32)
    return adapter
