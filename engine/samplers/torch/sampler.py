"""The torch sampler, which uses the compiled kernel if that is correct and faster."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from time import thread_time

import numpy as np
import torch

from ...devices.limits import LentCores, Loan
from ...errors import BaseModelError
from ...models.config import unsupported
from ...models.find import BaseModel, load_base
from ...models.kernels import library
from ...models.memory import SMALL
from ...models.weights import linear_shapes
from ..batching.context import Arrays, Context, Handles, Logits
from ..batching.requests import ENOUGH, Pace, large
from ..batching.sampler import FIRST, SPARE, BatchingSampler
from .context import TorchContext, TorchWeights
from .kernel.context import CompiledContext
from .kernel.library import Library, NotCompiled, compiled

# Compares compiled passes with those of torch, on the base itself: are they correct and faster?

PARTS = np.array([3, 17, 6, 9, 2, 8, 4], np.int32)
"""First tokens of some sequences: unequal numbers, some more than a vector."""
LENGTH = 32
RANK, ALPHA = 3, 6.0
TOLERANCE = 1e-3
"""Largest gap of two logits, as a share of the largest. Another order of float32 sums changes about a millionth, a
wrong pass everything."""
TURNS = 3
"""Runs of each way; the best counts."""


def refusal(base: BaseModel, compiled: Library, threads: int = 1) -> str:
    """Why compiled passes should not be used for this base, as a clause; empty if they should.

    Takes the time of about ten passes of torch. Raises ``BaseModelError`` if the base cannot be read.
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
    if not np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max():  # also catches NaN
        return "their results differ from torch's"
    lone = np.concatenate([_answers(ours, own, tokens, [number]) for number in every])
    if not np.array_equal(np.sort(lone, axis=None), np.sort(found, axis=None)):
        return "a row's last bits depend on other rows"
    seconds = [
        min(_seconds(context, used, tokens) for _ in range(TURNS)) for context, used in ((torchs, theirs), (ours, own))
    ]
    return "" if seconds[1] < seconds[0] else "torch is faster"


def _answers(context: Context, handles: Handles, tokens: np.ndarray, chosen: Sequence[int]) -> Logits:
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
    random, adapter = np.random.default_rng(seed), {}
    for module, (out, into) in linear_shapes(base.config).items():
        if module != "lm_head":
            adapter[f"{module}.lora_A"] = random.normal(0, into**-0.5, (RANK, into)).astype(np.float32)
            adapter[f"{module}.lora_B"] = random.normal(0, RANK**-0.5, (out, RANK)).astype(np.float32)
    return adapter


# Chooses the context of a torch sampler: compiled passes for a small base, if possible.

log = logging.getLogger(__name__)

USED = "used"
"""The verdict for compiled passes; any other text is the reason against them."""


def context_of(
    base: BaseModel,
    sequences: int,
    length: int,
    weights: TorchWeights,
    cache: str,
    threads: int = 1,
    cores: LentCores | None = None,
) -> Context:
    """A context for ``base``; verdicts are kept in ``cache``, compiled files in ``users_folder``, else also there.

    Bases of up to ``SMALL`` bytes in float32 are compiled for, if there is a ``cache``: with 60 MB torch takes one and
    a half times as long with 64 rows. Passes on torch may borrow ``cores``. Raises ``BaseModelError`` if the base
    cannot be read.
    """
    if cache and weights == "f32" and nbytes(base) <= SMALL:
        try:
            library, name = compiled(users_folder() or Path(cache))
            file = Path(cache, f"{name}-{base.fingerprint}-{threads}.verdict")
            if not (reason := verdict(file, base, library, threads)):
                return CompiledContext(base, sequences, length, library, threads)
        except NotCompiled as error:
            reason = str(error)
        log.warning("Passes are not compiled, torch computes them more slowly: %s", reason)
    return TorchContext(base, sequences, length, weights, cores)


def users_folder() -> Path | None:
    """The folder for compiled files of all homes of a user; None if it cannot be written."""
    from platformdirs import user_cache_path

    path = user_cache_path("marlaas", appauthor=False) / "passes"
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path if path.is_absolute() and os.access(path, os.W_OK) else None
    return None


def nbytes(base: BaseModel) -> int:
    """Of all matrices in float32, including the output matrix."""
    config = base.config
    linear = sum(out * into for module, (out, into) in linear_shapes(config).items() if module != "lm_head")
    return 4 * (linear + config.vocab_size * config.hidden_size)


def verdict(path: Path, base: BaseModel, library: Library, threads: int) -> str:
    """Why ``library`` is not used for ``base``; empty if it is.

    The verdict is kept in ``path``, because a home's bits must not change with a new measurement.
    """
    with contextlib.suppress(OSError):
        if text := path.read_text("utf-8", "replace").strip():
            return "" if text == USED else text
    reason = refusal(base, library, threads)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished.write_text(f"{reason or USED}\n", "utf-8")
        unfinished.replace(path)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)
    return reason


# The worker class on torch: a ``BatchingSampler`` over a ``TorchContext``, or over compiled passes.

MOST = 1024
"""Most concurrent conversations."""
SMALL_PACE, LARGE_PACE = Pace(rows=128, tokens=4), Pace(rows=128, tokens=1, enough=ENOUGH)
"""More rows make products faster, for any versions. Few consecutive tokens let new turns join soon."""


class TorchSampler(BatchingSampler):
    """``protocol.Sampler`` on torch, on the processor: the base's matrices in float32 or bfloat16, the rest float32."""

    def __init__(
        self,
        base: str,
        sequences: int = 128,
        context: int = 512,
        threads: int = 1,
        weights: TorchWeights = "f32",
        loan: Loan | None = None,
        cache: str = "",
        first: int = FIRST,
    ) -> None:
        """Load the base model called ``base``, its matrices as ``weights``.

        ``sequences``: concurrent conversations (rounded up to even), of up to ``context`` tokens; ``first`` of them
        have memory from the start. With a ``loan``, passes use a trainer's idle cores, and vice versa. ``cache``: the
        folder for compiled files. Raises ``BaseModelError``, also for a base that only llama.cpp should sample from.
        """
        torch.set_num_threads(threads)
        library()  # an error in it shows here
        model = load_base(base)
        reason = unsupported(model.config)
        if reason:
            raise BaseModelError(
                f"The torch sampler is not for the base in {model.path}: {reason}.",
                'Set `sampler = "llama.cpp"` under [rollout] in marlaas.toml.',
            )
        count = min(max(sequences + sequences % 2, 2), MOST)
        length = min(context, model.config.context_length)
        cores = LentCores(loan, torch.set_num_threads) if loan else None
        opened = context_of(model, count + SPARE, length, weights, cache, threads, cores)
        pace = LARGE_PACE if large(opened.weights) else SMALL_PACE
        super().__init__(model, opened, length, pace, cores=cores, first=first + first % 2)
