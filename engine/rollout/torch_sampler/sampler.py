"""The worker class on torch: a ``BatchingSampler`` over a ``TorchContext``, or over compiled passes."""

from __future__ import annotations

import torch

from ...base import library, load_base, unsupported
from ...devices import LentCores, Loan
from ...errors import BaseModelError
from ..batching.pace import ENOUGH, Pace, large
from ..batching.riding import SEATS
from ..batching.sampler import FIRST, SPARE, BatchingSampler
from .context import TorchWeights
from .kernel.choice import context_of

MOST = 1024
"""Most conversations at the same time."""
SMALL, LARGE = Pace(rows=128, tokens=4), Pace(rows=128, tokens=1, enough=ENOUGH)
"""More rows make products faster, whatever their versions; few tokens in a row let new turns join soon, and with a base
that is read from main memory for each token, one takes long enough."""


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
        """Load the base model called ``base``, its matrices as ``weights`` says.

        Up to ``sequences`` conversations (rounded up to an even number) of up to ``context`` tokens are held at once,
        in the memory of ``first`` unless they need more. With a ``loan``, passes that need not be alike take a
        trainer's cores while that has nothing to do, and the other way round. What is compiled for a small base is kept
        in the folder ``cache``; without one nothing is compiled. Raises ``BaseModelError``, also for a base that only
        llama.cpp should sample from.
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
        cores, spare = LentCores(loan, torch.set_num_threads) if loan else None, SPARE + SEATS
        opened = context_of(model, count + spare, length, weights, cache, threads, cores)
        pace = LARGE if large(opened.weights) else SMALL
        super().__init__(model, opened, length, pace, spare, cores, first + first % 2)
