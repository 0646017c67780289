"""Where the time of a trainer's step goes: the decoder's pieces, timed from outside for as long as a block lasts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any
from unittest.mock import patch

from marlaas.engine.training.decoder import attention, decoder, decoder as passes, layer, linear

PIECES: tuple[tuple[str, Any, str], ...] = (
    ("packing", decoder, "packed_batches"),
    ("mounting the adapter", decoder, "adapted"),
    ("indices and masks", passes, "_place"),
    ("linear layers, forward", linear.Linear, "forward"),
    ("linear layers, backward, with the adapters' gradients", linear.Linear, "backward"),
    ("attention, forward", attention, "attention"),
    ("attention, backward", attention, "attention_backward"),
    ("norms", layer, "rms_norm"),
    ("norms", layer, "rms_norm_backward"),
    ("rotary positions", layer, "rotate"),
    ("SwiGLU", layer, "swiglu"),
    ("SwiGLU", layer, "swiglu_backward"),
    ("output head", passes, "token_scores"),
    ("output head", passes, "token_scores_backward"),
)
"""What it is, where its function is looked up, and by which name."""


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Yields seconds by piece, which grow while the block runs."""
    seconds: dict[str, float] = defaultdict(float)
    with ExitStack() as stack:
        for piece, owner, name in PIECES:
            stack.enter_context(patch.object(owner, name, _clock(getattr(owner, name), piece, seconds)))
        yield seconds


def _clock(function: Callable[..., Any], piece: str, seconds: dict[str, float]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        started = perf_counter()
        result = function(*args, **kwargs)
        if piece == "packing":  # a generator, which works only when asked
            result = list(result)
        seconds[piece] += perf_counter() - started
        return result

    return wrapper
