"""The worker class on llama.cpp: a ``BatchingSampler`` over a ``LlamaContext``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...base import BaseConfig, halves_memory, layers_on_card, load_base, nearest, parameters, plain_layers
from ...devices import LentCores, Loan
from ..batching.pace import Pace, pace_of
from ..batching.sampler import FIRST, SPARE, BatchingSampler
from .context import give_back
from .model import ALL, Opened, base_file, fewer, open_base

MOST = 256 - SPARE
"""llama.cpp's own limit on sequences (LLAMA_MAX_SEQ), less the spare ones."""
LEAST = 8
"""Fewest conversations that are tried where memory is short: a group of the usual size."""
ON_CARD = Pace(rows=256, tokens=1)
"""Pace on a card, where a call costs the same for one row as for many."""


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
        devices: Sequence[str] = (),
        memory: int = 0,
        mixes: bool = True,
        loan: Loan | None = None,
        first: int = FIRST,
    ) -> None:
        """Load the base model called ``base``; files made from it are kept in the folder ``cache``.

        Up to ``sequences`` conversations (rounded up to an even number) of up to ``context`` tokens (llama.cpp rounds
        up to a multiple of 256) are held at once. On the processor there is memory for ``first`` of them, of 256
        tokens, and for more and longer ones as they are asked for. With 0, and on a card, there is for all at once, or
        for fewer where there is less memory than that takes: ``limits`` says so. ``weights`` says how matrices are
        stored, by ``precision.PRECISIONS``; ``gguf`` names a file of the user's to be taken instead. ``exact`` keeps
        attention in float32, and memory, too, where matrices are. ``mixes`` lets rows of all versions share a call on
        the processor, where the file and the installed llama.cpp allow it; the results are the same.

        It computes on the cards called ``devices`` (see ``cards``), with as many layers there as ``memory`` bytes of
        each hold (0: all of them), where the last bits of a row depend on the others; without any, on ``threads``
        cores, which a ``loan`` gives to a trainer while there is nothing to do. Raises ``BaseModelError`` or
        ``ConfigError``.
        """
        model = load_base(base)
        count = min(max(sequences + sequences % 2, 2), MOST)
        length = min(context, model.config.context_length)
        file = base_file(model, Path(cache), weights, gguf, threads)
        room, size = memory * len(devices), file.path.stat().st_size
        layers = layers_on_card(model.config, size, count + SPARE, length, exact, room) if room else ALL
        mixes = mixes and plain_layers(file.path, file.names)
        counts = [number + SPARE for number in fewer(count, min(count, LEAST))]
        first = min(first + first % 2, count)
        begin = first + SPARE if first else 0
        layers_tried = _choices(model.config, layers)
        half = halves_memory(nearest(8 * size / parameters(model)) if gguf else weights)
        opened = open_base(file, counts, length, threads, exact, devices, layers_tried, mixes, begin, half)
        llama = opened.context
        give_back()  # what writing the file and loading it took
        pace = ON_CARD if opened.layers else pace_of(llama.weights, llama.mixes)
        cores = LentCores(loan) if loan else None
        super().__init__(model, llama, length, pace, cores=cores, first=0 if opened.layers else first)
        self._limits = replace(self._limits, note=_note(opened, counts[0], length, devices))


def _choices(config: BaseConfig, layers: int) -> tuple[int, ...]:
    """Numbers of layers on cards to try, the planned one first."""
    planned = config.layers + 1 if layers == ALL else layers
    return tuple(dict.fromkeys(part for part in (planned, planned // 2) if part))


def _note(opened: Opened, wanted: int, length: int, devices: Sequence[str]) -> str:
    """What is smaller than was wanted, in a sentence, or nothing."""
    if not opened.refused:
        return ""
    held = opened.context.sequences - SPARE
    fewer = f"{held} conversations of {length} tokens instead of {wanted - SPARE}"
    where = f", with {opened.layers or 'no'} layers on the card" if devices else ""
    return f"Memory was short: the sampler holds {fewer}{where}. {opened.refused}"
