"""The torch sampler. For a small base it uses compiled passes, if they agree with those of torch."""

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
from ...models.memory import SMALL
from ...models.weights import linear_shapes
from ..batching.context import SPARE, Context
from ..batching.sampler import BatchingSampler
from .context import TorchContext, TorchWeights
from .kernel.compare import disagreement
from .kernel.context import CompiledContext
from .kernel.library import NotCompiled, compiled

log = logging.getLogger(__name__)

MOST = 1024
"""Most concurrent conversations."""


def context_of(
    base: BaseModel,
    sequences: int,
    length: int,
    weights: TorchWeights,
    cache: str,
    threads: int = 1,
    cores: LentCores | None = None,
) -> Context:
    """A context for ``base``; what is compiled is kept in ``users_folder``, else in ``cache``.

    Bases of up to ``SMALL`` bytes in float32 are compiled for, if there is a ``cache``: with 60 MB torch takes one and
    a half times as long with 64 rows. Passes on torch may borrow ``cores``. Raises ``BaseModelError`` if the base
    cannot be read.
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
    ) -> None:
        """Load the base model called ``base``, its matrices as ``weights``.

        ``sequences``: concurrent conversations (rounded up to even), of up to ``context`` tokens. With a ``loan``,
        passes use a trainer's idle cores, and vice versa. ``cache``: the folder for compiled files. Raises
        ``BaseModelError``, also for a base that only llama.cpp should sample from.
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
