"""The torch sampler. Small bases use compiled passes that agree with torch's."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import torch

from ...devices.limits import LentCores, Loan
from ...errors import BaseModelError
from ...models.config import unsupported
from ...models.find import BaseModel, load_base
from ...models.kernels import library
from ...models.memory import SMALL, layer_bytes
from ..batching.context import SPARE, Context
from ..batching.sampler import BatchingSampler
from .context import TorchContext, TorchWeights
from .kernel.compare import disagreement
from .kernel.context import CompiledContext
from .kernel.library import NotCompiled, compiled

log = logging.getLogger(__name__)

MOST = 1024


def context_of(
    base: BaseModel,
    sequences: int,
    length: int,
    weights: TorchWeights,
    cache: str,
    threads: int = 1,
    cores: LentCores | None = None,
) -> Context:
    """A context for ``base``; compiled files stay in ``users_folder``, else ``cache``.

    With a ``cache``, bases of up to ``SMALL`` float32 bytes get compiled passes: at 60 MB and 64 rows torch takes 1.5
    times as long. Raises ``BaseModelError`` if the base cannot be read.
    """
    if cache and weights == "f32" and nbytes(base) <= SMALL:
        folder = users_folder() or Path(cache)
        try:
            path, opened = compiled(folder)
            reason = disagreement(path, base)
        except NotCompiled as error:
            reason = str(error)
        if not reason:
            return CompiledContext(base, sequences, length, opened, threads)
        log.warning("Passes are not compiled, torch computes them more slowly: %s", reason)
    return TorchContext(base, sequences, length, weights, cores)


def users_folder() -> Path | None:
    """The folder for compiled files of all homes; None: not writable."""
    from platformdirs import user_cache_path

    path = user_cache_path("marlaas", appauthor=False) / "passes"
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path if path.is_absolute() and os.access(path, os.W_OK) else None
    return None


def nbytes(base: BaseModel) -> int:
    """Bytes of all matrices in float32, including the output matrix."""
    return layer_bytes(base.config) + 4 * base.config.vocab_size * base.config.hidden_size


class TorchSampler(BatchingSampler):
    """``protocol.Sampler`` on torch, on the processor: matrices in float32 or bfloat16, the rest float32."""

    def __init__(
        self,
        base: str,
        sequences: int = 128,
        context: int = 512,
        threads: int = 1,
        weights: TorchWeights = "f32",
        loan: Loan | None = None,
        cache: str = "",
    ) -> None:
        """Load the base ``base``.

        ``sequences``: conversations (rounded up to even), of up to ``context`` tokens. A ``loan`` shares idle cores
        with a trainer. ``cache``: for compiled files. Raises ``BaseModelError``, also for a base that only llama.cpp
        should sample from.
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
        super().__init__(model, opened, length, cores)
