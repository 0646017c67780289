"""Chooses the library that multiplies rows with the base's matrices in float32 on the processor, once in a process.

PyTorch's default library (MKL) does not use AVX-512 on processors not made by Intel; oneDNN, which PyTorch also
includes, does: on an AMD Zen 5 core it multiplies at 245 GFLOP/s instead of 110. PyTorch's own switch for it holds for
all threads of a process, and is meant for bfloat16. It is not used: ``product`` calls oneDNN by name, which then
computes in true float32 (log-probabilities have to agree with the sampler's), and a probe makes sure of it.

Only products with the base go through here. Attention and adapters call torch, and so the default library: oneDNN takes
a third of a millisecond to prepare each new shape, which many small products of ever new shapes do not earn back.

What it prepares is code. Where there is no memory for that, it either refuses every new shape in that thread for good,
or the process ends by a signal. So a process with a limit on its address space does not use it, and one in which it has
failed goes on without it.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from pathlib import Path
from threading import Event
from typing import Literal

import torch
from torch import Tensor

from ..devices import ONEDNN, address_space
from ..errors import ConfigError

log = logging.getLogger(__name__)

Library = Literal["mkl", "onednn"]
"""``mkl`` stands for PyTorch's default library, which is another one where PyTorch was built without MKL."""

VARIABLE = "MARLAAS_KERNELS"
"""Environment variable that names the library; unset or empty: chosen by the processor."""
TOLERANCE = 1e-5
"""Largest relative error in the probe: float32 has about 1e-6, bfloat16 more than 1e-3."""

REMEMBERED = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""Limits of shapes whose code oneDNN, and PyTorch for it, keep. Their default, 1024, took 550 MB; this takes 120."""
_failed = Event()


@cache
def library() -> Library:
    """The library of this process: the same answer each time. Raises ``ConfigError`` where the variable is wrong."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "mkl":
        return "mkl"
    if wanted == "onednn":
        if not _right():
            raise ConfigError(f"oneDNN does not multiply in float32 here, but {VARIABLE} is onednn.", "Unset it.")
        return "onednn"
    if wanted:
        raise ConfigError(f"{VARIABLE} is {wanted!r}: there are mkl and onednn.", "Set it to one of them, or unset it.")
    if not onednn_is_faster():
        return "mkl"
    if _right():
        return "onednn"
    log.warning("oneDNN does not multiply in float32 on this processor; PyTorch's default library does it.")
    return "mkl"


def product(left: Tensor, right: Tensor, bias: Tensor | None = None, room: Tensor | None = None) -> Tensor:
    """The product (n, m) of (n, k) and (k, m), both float32, plus ``bias`` (m,); perhaps stored in ``room`` (n, m)."""
    result = _tried(left, right, bias)
    if result is not None:
        return result
    return torch.mm(left, right, out=room) if bias is None else torch.addmm(bias, left, right, out=room)


def add_product(sums: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``product(left, right)`` to ``sums``."""
    result = _tried(left, right, None)
    if result is not None:
        sums.add_(result)
    else:
        sums.addmm_(left, right)


def by_onednn(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """``product`` through oneDNN, in float32 on a processor."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.T, bias, "none", [], "")
    return result


def _tried(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor | None:
    """The product by oneDNN; None where it is not used."""
    if left.device.type != "cpu" or library() != "onednn" or _failed.is_set() or address_space() is not None:
        return None
    try:
        return by_onednn(left, right, bias)
    except RuntimeError as error:
        if str(error) not in ONEDNN:
            raise
        log.warning("oneDNN has no memory for a product; from now on PyTorch's default library multiplies.")
        _failed.set()
        return None


def onednn_is_faster() -> bool:
    """Whether oneDNN is faster than MKL, which does not use AVX-512 on processors not made by Intel."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        return "GenuineIntel" not in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return True


def _right() -> bool:
    """Whether oneDNN exists here, may run code that it compiles, and keeps all 24 bits of float32 factors."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    os.environ.update(REMEMBERED | os.environ)  # read at its first use
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.rand(64, 64, generator=generator) + 1.0 for _ in range(2))
    exact = left.double() @ right.double()
    try:
        return bool(((by_onednn(left, right) - exact).abs() / exact).max() < TOLERANCE)
    except RuntimeError:
        return False
