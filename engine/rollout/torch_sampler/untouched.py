"""Zeros that take no memory until they are written: for key and value memory, of which most is seldom used."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch
from torch import Tensor


def untouched(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of zeros in pages that the system gives at the first write to each; it begins at a page.

    ``torch.zeros`` writes its zeros, and so has all of its pages at once.
    """
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    pages = mmap.mmap(-1, max(1, math.prod(shape) * dtype.itemsize), **private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # else the first token of a sequence may take two megabytes in each layer
        with contextlib.suppress(OSError):  # a kernel without large pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype, count=math.prod(shape)).view(shape)
