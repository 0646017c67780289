"""Products of rows with the base's matrices on the processor: in float32, and with factors in bfloat16.

The library for float32 is chosen once in a process.

PyTorch's default library (MKL) does not use AVX-512 on processors not made by Intel; oneDNN, which PyTorch also
includes, does: on an AMD Zen 5 core it multiplies at 245 GFLOP/s instead of 110. PyTorch's own switch for it holds for
all threads of a process, and is meant for bfloat16. It is not used: ``product`` calls oneDNN by name, which then
computes in true float32 (log-probabilities have to agree with the sampler's), and a probe makes sure of it.

Only products with the base go through here. Attention and adapters call torch, and so the default library: oneDNN takes
a third of a millisecond to prepare each new shape, which many small products of ever new shapes do not earn back.

What it prepares is code. Where there is no memory for that, it either refuses every new shape in that thread for good,
or the process ends by a signal. So a process with a limit on its address space does not use it, and one in which it has
failed goes on without it.

Processors with AMX or AVX-512 BF16 multiply bfloat16 several times as fast as float32. Sums are float32 in any case.
What differs is what is rounded: ``bfloat16_product`` rounds the result, too, and is the fastest; ``widened_product``
rounds the factors alone. A logit of 20 is off by up to 0.06 once it is rounded, so an output head takes the second.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
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


def bfloat16_product(left: Tensor, right: Tensor) -> Tensor:
    """float32 (n, m) of bfloat16 (n, k) and (k, m): float32 sums, rounded to bfloat16 and widened again.

    Each value is off by up to 1/256 of itself. For sums that are added to something larger, as those of a decoder's
    layers; never for logits.
    """
    return torch.mm(left, right).float()


def add_bfloat16_product(sums: Tensor, left: Tensor, right: Tensor, scale: float = 1.0) -> None:
    """Add ``scale`` times ``bfloat16_product(left, right)`` to ``sums``, float32 (n, m)."""
    sums.add_(torch.mm(left, right), alpha=scale)


def widened_product(left: Tensor, right: Tensor, room: Tensor | None = None) -> Tensor:
    """float32 (n, m) of (n, k) and (k, m), each in float32 or bfloat16; perhaps stored in ``room`` (n, m).

    Factors are rounded to bfloat16, where this processor has instructions for that; sums and result are float32.
    Factors that are in bfloat16 already lose nothing.

    Sets PyTorch's switch for this, which holds for all threads of the process, and sets it back: to be called only in a
    process's computing thread, beside which nothing multiplies.
    """
    left, right = left.float(), right.float()
    if _failed.is_set() or address_space() is not None or not _widens_right():
        return product(left, right, room=room)
    try:
        with _rounding_factors():
            return torch.mm(left, right, out=room)
    except RuntimeError as error:
        _give_up(error)
        return product(left, right, room=room)


@cache
def _widens_right() -> bool:
    """Whether the switch of ``widened_product`` leaves sums and results in float32 here."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    left, right = (factor.bfloat16().float() for factor in positive_factors(256, 512, 512))
    try:
        with _rounding_factors():
            return relative_error(torch.mm(left, right), left, right) < TOLERANCE
    except RuntimeError:
        return False


def positive_factors(rows: int, inner: int, columns: int) -> tuple[Tensor, Tensor]:
    """(rows, inner) and (inner, columns) between 1 and 2, always the same: no sum of their products is small."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(rows, inner, generator=generator) + 1.0, torch.rand(inner, columns, generator=generator) + 1.0


def relative_error(found: Tensor, left: Tensor, right: Tensor) -> float:
    """The largest relative error of a product of positive factors."""
    exact = left.double() @ right.double()
    return float(((found - exact).abs() / exact).max())


@contextmanager
def _rounding_factors() -> Iterator[None]:
    """Let PyTorch round float32 factors of products to bfloat16, in all threads."""
    switch = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    try:
        yield
    finally:
        switch.fp32_precision = before


def _tried(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor | None:
    """The product by oneDNN; None where it is not used."""
    if left.device.type != "cpu" or library() != "onednn" or _failed.is_set() or address_space() is not None:
        return None
    try:
        return by_onednn(left, right, bias)
    except RuntimeError as error:
        _give_up(error)
        return None


def _give_up(error: RuntimeError) -> None:
    """Use oneDNN no more, if it has no memory for its code; raise any other error."""
    if str(error) not in ONEDNN:
        raise error
    log.warning("oneDNN has no memory for a product; from now on PyTorch's default library multiplies.")
    _failed.set()


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
    left, right = positive_factors(64, 64, 64)
    try:
        return relative_error(by_onednn(left, right), left, right) < TOLERANCE
    except RuntimeError:
        return False
