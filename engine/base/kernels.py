"""Chooses the fastest kernels for float32 matrix products that are still float32. Called once, before any product.

PyTorch's default library (MKL) leaves AVX-512 unused on processors not made by Intel; oneDNN, which PyTorch also holds,
does not: on an AMD Zen 5 core it multiplies at 245 GFLOP/s instead of 110. PyTorch reaches for it only where float32
products may be computed in bfloat16. They must not here (log-probabilities have to agree with the sampler's), so oneDNN
is first held to instructions that have no bfloat16; what it then does is true float32, and a probe makes sure of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

log = logging.getLogger(__name__)

INSTRUCTIONS = "AVX512_CORE"
"""The newest set without bfloat16 or tiles (AMX)."""
TOLERANCE = 1e-5
"""Relative; float32 stays around 1e-6 in the probe, bfloat16 is beyond 1e-3."""


def choose_float32_kernels() -> bool:
    """Route products through oneDNN where it helps; returns whether it does. Cheap to call again."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if _made_by_intel():
        return False
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", INSTRUCTIONS)  # read at its first use in this process
    _allow_onednn(True)
    if _precise():
        return True
    _allow_onednn(False)
    log.warning("float32 products through oneDNN are not precise enough on this processor; MKL computes them.")
    return False


@contextmanager
def small_products() -> Iterator[None]:
    """Inside, the default library multiplies: oneDNN prepares each new shape for a third of a millisecond, which many
    small products of ever new shapes do not earn back."""
    before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    if before != "bf16":  # the default library multiplies anyway
        yield
        return
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before  # type: ignore[attr-defined]


def _made_by_intel() -> bool:
    """MKL uses all of such a processor: as fast as oneDNN on large products, twice as fast on those of 8 rows."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def _allow_onednn(allowed: bool) -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16" if allowed else "ieee"  # type: ignore[attr-defined]


def _precise() -> bool:
    """Whether products are float32 indeed: the probe's factors need all 24 bits."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.rand(64, 64, generator=generator) + 1.0 for _ in range(2))
    exact = left.double() @ right.double()
    return bool(((left @ right - exact).abs() / exact).max() < TOLERANCE)
