"""Chooses what computes a base: the decoder of this package, or transformers and PEFT for other architectures."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..base import PASS_BYTES, library, load_base, unsupported
from ..devices import Precision
from .decoder.compute import compute_on, nothing
from .decoder.decoder import Decoder
from .model import Model

log = logging.getLogger(__name__)


def load_model(
    folder: str,
    device: str = "cpu",
    room: int = PASS_BYTES,
    precision: Precision = "f32",
    settle: Callable[[], None] = nothing,
) -> Model[Any]:
    """Load the base in a Hugging Face folder onto a torch device; a pass over it may take ``room`` bytes.

    Our own decoder calls ``settle`` before each layer, where the number of threads may change. Raises
    ``BaseModelError`` if it cannot be loaded.
    """
    library()  # raises here if its setting is wrong
    base = load_base(folder)
    reason = unsupported(base.config)
    if not reason:
        return Decoder.of(base, replace(compute_on(device, precision), settle=settle), room)
    log.warning("The base in %s is trained through transformers and PEFT, which is slower: %s.", folder, reason)
    from .peft_model import PeftModel  # takes seconds, and the decoder does not need it

    return PeftModel(folder, device, room, precision)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGEST = 32 << 20
"""Bytes above which glibc always maps a block by itself."""


def keep_freed_memory() -> None:
    """Make this process keep freed memory.

    Every step frees tens of megabytes and asks for them again: otherwise there is a page fault for each four kilobytes,
    which takes a third of a step's time. Does nothing where the C library is not glibc.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(M_MMAP_THRESHOLD, LARGEST)
        tune(M_TRIM_THRESHOLD, (1 << 31) - 1)
        # Otherwise the trainer's thread has a heap of its own, in pieces of 64 MB, which is too small for its blocks.
        tune(M_ARENA_MAX, 1)
