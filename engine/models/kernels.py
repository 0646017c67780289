"""Products, element-wise pieces and attention of a decoder block on the processor."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..devices.limits import address_space
from ..errors import ConfigError

# The element-wise pieces of a decoder block, each forward with its backward. Pure functions of tensors.
#
# What a backward needs from its forward is returned next to the result. T is tokens, H the hidden size, I the inner
# size of the feed-forward part, D the size of a head.


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Views of both halves of the last axis; ``chunk`` takes ten times as long."""
    middle = x.shape[-1] // 2
    return x[..., :middle], x[..., middle:]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x / rms(x) · weight over the last axis (Zhang and Sennrich, arXiv 1910.07467, eq. 4).

    Returns the result, x / rms(x), and 1 / rms(x) with a last axis of 1.
    """
    size = x.shape[-1]
    mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().mul_(1.0 / size)
    inverse = mean_square.add_(eps).rsqrt_()
    unit = x * inverse
    return unit * weight, unit, inverse


def rms_norm_backward(grad: Tensor, unit: Tensor, inverse: Tensor, weight: Tensor) -> Tensor:
    """Gradient by x, for the last two results of ``rms_norm``."""
    scaled = grad * weight
    along = (scaled * unit).sum(-1, keepdim=True).div_(unit.shape[-1])
    return scaled.addcmul_(unit, along, value=-1.0).mul_(inverse)


def swiglu(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """silu(gate) · up for ``gate_up`` (T, 2 I), gates first (Shazeer, arXiv 2002.05202). Also returns silu(gate)."""
    gate, up = halves(gate_up)
    opened = torch.nn.functional.silu(gate)
    return opened * up, opened


def swiglu_backward(grad: Tensor, gate_up: Tensor, opened: Tensor | None) -> Tensor:
    """Gradient by ``gate_up`` (T, 2 I) from that by the result (T, I); ``opened`` is silu(gate), if it was kept."""
    gate, up = halves(gate_up)
    if opened is None:
        opened = torch.nn.functional.silu(gate)
    result = torch.empty_like(gate_up)
    by_gate, by_up = halves(result)
    torch.mul(grad, opened, out=by_up)
    torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=by_gate)
    return result


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the halves of each head against each other (Su et al., arXiv 2104.09864; halves as Hugging Face has them).

    ``x`` (T, heads, D); ``cosine`` and ``sine`` (T, 1, D/2). With the sine negated it is its own backward.
    """
    first, second = halves(x)
    turned = torch.empty_like(x, memory_format=torch.contiguous_format)
    left, right = halves(turned)
    torch.mul(first, cosine, out=left).addcmul_(second, sine, value=-1.0)
    torch.mul(second, cosine, out=right).addcmul_(first, sine)
    return turned


# Attention in tiles on the processor: memory grows with the number of tokens, not with its square.
#
# FlashAttention (Dao et al., arXiv 2205.14135): scores are computed tile by tile, with a running maximum and sum for
# each query, and again in the backward pass, from the logarithm of that sum. PyTorch has such a kernel. Keys may be
# attended to in parts: ``merged`` joins two parts into one softmax, and with the joint result and sums
# ``attend_backward`` gives each part's share of the gradients (FlashAttention-2, arXiv 2307.08691, section 3.1).
#
# Shapes: B groups of R heads with one key head; n queries, m keys, D head size. Strides are free but for the last
# axis.


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Results (B, R, n, D) and the logarithms of the softmax's sums, float32 (B, R, n).

    ``q`` is (B, R, n, D), keys and values (B, m, D). With ``causal``, query i sees keys 0 … i, and n is m.
    """
    k, v = (part[:, None].expand(-1, q.shape[1], -1, -1) for part in (k, v))
    found: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, scale=scale
    )
    return found


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, scale: float, causal: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q (B, R, n, D), and by these keys and values (B, m, D) in float32, for ``grad`` by the results.

    ``out`` and ``sums`` are those of the whole softmax, of which these keys may be a part.
    """
    k, v = (part[:, None].expand(-1, q.shape[1], -1, -1) for part in (k, v))
    by_q, by_k, by_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, sums, 0.0, causal, scale=scale
    )
    return by_q, by_k.sum(1, dtype=torch.float32), by_v.sum(1, dtype=torch.float32)


def merged(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Results and sums over the keys of both, each as ``attend`` returns it; results in float32."""
    share = torch.sigmoid(other[1] - one[1])[..., None]
    return torch.lerp(one[0].float(), other[0].float(), share), torch.logaddexp(one[1], other[1])


@cache
def tiles() -> bool:
    """True if this PyTorch has kernels for attention in tiles."""
    return hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward")


# Products of rows with the base's matrices on the processor: in float32, and with factors in bfloat16.
#
# The library for float32 is chosen once in a process.
#
# PyTorch's default library (MKL) does not use AVX-512 on processors not made by Intel; oneDNN, which PyTorch also
# includes, does: on an AMD Zen 5 core it multiplies at 245 GFLOP/s instead of 110. PyTorch's own switch for it holds
# for all threads of a process, and is meant for bfloat16. It is not used: ``product`` calls oneDNN by name, which
# then computes in true float32 (log-probabilities have to agree with the sampler's), and a probe makes sure of it.
#
# Only products with the base go through here. Attention and adapters call torch, and so the default library: oneDNN
# takes a third of a millisecond to prepare each new shape, which many small products of ever new shapes do not earn
# back.
#
# What it prepares is code. If there is no memory for that, it either refuses every new shape in that thread for
# good, or the process ends by a signal. So a process with a limit on its address space does not use it.
#
# Processors with AMX or AVX-512 BF16 multiply bfloat16 several times as fast as float32. Sums are float32 in any
# case. What differs is what is rounded: ``bfloat16_product`` rounds the result, too, and is the fastest;
# ``widened_product`` rounds the factors alone. A logit of 20 is off by up to 0.06 once it is rounded, so an output
# head takes the second.

log = logging.getLogger(__name__)

Library = Literal["mkl", "onednn"]
"""``mkl`` stands for PyTorch's default library, which is another one where PyTorch was built without MKL."""

VARIABLE = "MARLAAS_KERNELS"
"""Environment variable that names the library; unset or empty: chosen by the processor."""
PROBE_TOLERANCE = 1e-5
"""Largest relative error in the probe: float32 has about 1e-6, bfloat16 more than 1e-3."""

REMEMBERED = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""Limits of shapes whose code oneDNN, and PyTorch for it, keep. Their default, 1024, took 550 MB; this takes 120."""


@cache
def library() -> Library:
    """The library of this process: the same answer each time. Raises ``ConfigError`` if the variable is wrong."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen not in ("", "mkl", "onednn"):
        raise ConfigError(f"{VARIABLE} is {chosen!r}: there are mkl and onednn.", "Set it to one of them, or unset it.")
    if chosen == "mkl" or not (chosen or onednn_is_faster()):
        return "mkl"
    if _right():
        return "onednn"
    if chosen:
        raise ConfigError(f"oneDNN does not multiply in float32 here, but {VARIABLE} is onednn.", "Unset it.")
    log.warning("oneDNN does not multiply in float32 on this processor; PyTorch's default library does it.")
    return "mkl"


def product(left: Tensor, right: Tensor, bias: Tensor | None = None, room: Tensor | None = None) -> Tensor:
    """The product (n, m) of (n, k) and (k, m), both float32, plus ``bias`` (m,); perhaps stored in ``room`` (n, m)."""
    if _by_onednn(left):
        return by_onednn(left, right, bias)
    return torch.mm(left, right, out=room) if bias is None else torch.addmm(bias, left, right, out=room)


def add_product(sums: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``product(left, right)`` to ``sums``."""
    if _by_onednn(left):
        sums.add_(by_onednn(left, right))
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

    Factors are rounded to bfloat16, if this processor has instructions for that; sums and result are float32.
    Factors that are in bfloat16 already lose nothing.

    Sets PyTorch's switch for this, which holds for all threads of the process, and sets it back: to be called only in a
    process's computing thread, next to which nothing multiplies.
    """
    left, right = left.float(), right.float()
    if address_space() is not None or not _widens_right():
        return product(left, right, room=room)
    with _rounding_factors():
        return torch.mm(left, right, out=room)


@cache
def _widens_right() -> bool:
    """Whether the switch of ``widened_product`` leaves sums and results in float32 here."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    left, right = (factor.bfloat16().float() for factor in positive_factors(256, 512, 512))
    try:
        with _rounding_factors():
            return relative_error(torch.mm(left, right), left, right) < PROBE_TOLERANCE
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


def _by_onednn(left: Tensor) -> bool:
    return left.device.type == "cpu" and library() == "onednn" and address_space() is None


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
        return relative_error(by_onednn(left, right), left, right) < PROBE_TOLERANCE
    except RuntimeError:
        return False
