"""The worker class on llama.cpp: settings flow in, a ``BatchingSampler`` over a ``LlamaContext`` comes out."""

from __future__ import annotations

from pathlib import Path

from ...base.model import load_base
from ..batching.pace import pace_of
from ..batching.sampler import SPARE, BatchingSampler
from .base_file import base_file
from .context import LlamaContext

MOST = 256 - SPARE
"""llama.cpp's own limit on sequences (LLAMA_MAX_SEQ), less the spare ones."""


class LlamaSampler(BatchingSampler):
    """``protocol.Sampler`` on llama.cpp."""

    def __init__(
        self,
        base: str,
        cache: str,
        sequences: int = 128,
        context: int = 512,
        threads: int = 1,
        exact: bool = False,
        weights: str = "f32",
        gguf: str = "",
    ) -> None:
        """Load the base model called ``base``; files made from it are kept in the folder ``cache``.

        ``sequences`` conversations (rounded up to an even number) of up to ``context`` tokens (llama.cpp rounds up to
        a multiple of 256) are held at once. ``weights`` says how matrices are stored, by ``precision.PRECISIONS``;
        ``gguf`` names a file of the user's to be taken instead. ``exact`` keeps memory and attention in float32, up to
        twice as slow. Raises ``BaseModelError`` or ``ConfigError``.
        """
        model = load_base(base)
        count = min(max(sequences + sequences % 2, 2), MOST)
        length = min(context, model.config.context_length)
        file = base_file(model, Path(cache), weights, gguf, threads)
        llama = LlamaContext(file, count + SPARE, length, threads, exact)
        super().__init__(model, llama, length, pace_of(llama.weights, exact))
