"""Products, element-wise pieces and attention of a decoder block on the processor."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Event
from typing import Literal

import torch
from torch import Tensor

from ..devices.limits import ONEDNN, address_space, made_by_intel, sum_rows_alike
from ..errors import ConfigError

sum_rows_alike()

# --- element-wise pieces ---
#
# T tokens, H hidden size, I inner size of the feed-forward part, D size of a head.


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the last axis's halves; ``chunk`` takes ten times as long."""
    middle = x.shape[-1] // 2
    return x[..., :middle], x[..., middle:]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x / rms(x) · weight over the last axis (Zhang and Sennrich, arXiv 1910.07467, eq. 4).

    Also returns x / rms(x), and 1 / rms(x) (last axis 1).
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
    """Gradient by ``gate_up`` (T, 2 I) from (T, I); ``opened``: silu(gate), if kept."""
    gate, up = halves(gate_up)
    if opened is None:
        opened = torch.nn.functional.silu(gate)
    result = torch.empty_like(gate_up)
    by_gate, by_up = halves(result)
    torch.mul(grad, opened, out=by_up)
    torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=by_gate)
    return result


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each head's halves (Su et al., arXiv 2104.09864; as in Hugging Face).

    ``x`` (T, heads, D); ``cosine``, ``sine`` (T, 1, D/2). A negated sine gives the backward.
    """
    first, second = halves(x)
    turned = torch.empty_like(x, memory_format=torch.contiguous_format)
    left, right = halves(turned)
    torch.mul(first, cosine, out=left).addcmul_(second, sine, value=-1.0)
    torch.mul(second, cosine, out=right).addcmul_(first, sine)
    return turned


# --- attention in tiles: memory is linear in tokens ---
#
# FlashAttention (Dao et al., arXiv 2205.14135). ``merged`` joins two parts of the keys into one softmax; with its
# results ``attend_backward`` gives each part's gradients (FlashAttention-2, arXiv 2307.08691, section 3.1).
#
# B groups of R heads per key head; n queries, m keys, D head size. Only the last axis needs stride 1.


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Results (B, R, n, D) and logarithms of softmax sums, float32 (B, R, n).

    ``q`` (B, R, n, D); keys, values (B, m, D). ``causal``: query i sees keys 0 … i; n is m.
    """
    k, v = (part[:, None].expand(-1, q.shape[1], -1, -1) for part in (k, v))
    found: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, scale=scale
    )
    return found


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, scale: float, causal: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q (B, R, n, D), and by keys and values (B, m, D), float32.

    ``out`` and ``sums`` are of the whole softmax.
    """
    k, v = (part[:, None].expand(-1, q.shape[1], -1, -1) for part in (k, v))
    by_q, by_k, by_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, sums, 0.0, causal, scale=scale
    )
    return by_q, by_k.sum(1, dtype=torch.float32), by_v.sum(1, dtype=torch.float32)


def merged(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Results and sums over the keys of both, as from ``attend``; float32."""
    share = torch.sigmoid(other[1] - one[1])[..., None]
    return torch.lerp(one[0].float(), other[0].float(), share), torch.logaddexp(one[1], other[1])


# --- products with the base's matrices ---
#
# MKL, PyTorch's default, does not use AVX-512 on processors not made by Intel; oneDNN does: 245 instead of 110 GFLOP/s
# on an AMD Zen 5 core. PyTorch's switch holds for all threads, so ``product`` calls oneDNN by name; a probe ensures
# float32, as log-probabilities must agree with the sampler's. Attention and adapters stay with MKL: oneDNN takes a
# third of a millisecond per new shape.
#
# oneDNN compiles code. Without memory it refuses new shapes in that thread for good, or a signal ends the process. So
# processes with a limited address space do not use it, and after a refusal PyTorch's default library multiplies.
#
# AMX or AVX-512 BF16 multiply bfloat16 several times as fast, with float32 sums. ``add_bfloat16_product`` also rounds
# the result and is the fastest. ``widened_product`` rounds only factors, for output heads: a rounded logit of 20 is off
# by up to 0.06.

log = logging.getLogger(__name__)

Library = Literal["mkl", "onednn"]
"""``mkl``: PyTorch's default library, another one in builds without MKL."""

VARIABLE = "MARLAAS_KERNELS"
"""Names the library; empty: chosen."""
PROBE_TOLERANCE = 1e-5
"""Relative error: float32 has about 1e-6, bfloat16 over 1e-3."""

REMEMBERED = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""Limits of kept shapes. The default, 1024, took 550 MB; this takes 120."""
_refused = Event()


@cache
def library() -> Library:
    """The process's library, chosen once. Raises ``ConfigError`` if the variable is wrong."""
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
    """(n, k) times (k, m), float32, plus ``bias`` (m,); may be stored in ``room`` (n, m)."""
    if (result := _tried(left, right, bias)) is not None:
        return result
    return torch.mm(left, right, out=room) if bias is None else torch.addmm(bias, left, right, out=room)


def add_product(sums: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``product(left, right)`` to ``sums``."""
    if (result := _tried(left, right)) is not None:
        sums.add_(result)
    else:
        sums.addmm_(left, right)


def by_onednn(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """``product`` through oneDNN, in float32 on a processor."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.T, bias, "none", [], "")
    return result


def add_bfloat16_product(sums: Tensor, left: Tensor, right: Tensor, scale: float = 1.0) -> None:
    """Add ``scale`` times the product of bfloat16 (n, k) and (k, m), rounded to bfloat16, to ``sums``, float32 (n, m).

    Off by up to 1/256. For sums added to something larger; never for logits.
    """
    sums.add_(torch.mm(left, right), alpha=scale)


def widened_product(left: Tensor, right: Tensor, room: Tensor | None = None) -> Tensor:
    """float32 (n, m) of (n, k) and (k, m), float32 or bfloat16; may be stored in ``room``.

    Rounds factors to bfloat16 if the processor has instructions for it; sums and result are float32.

    Sets PyTorch's switch for all threads, and back: no other thread may multiply.
    """
    left, right = left.float(), right.float()
    if _refused.is_set() or address_space() is not None or not _widens_right():
        return product(left, right, room=room)
    try:
        with _rounding_factors():
            return torch.mm(left, right, out=room)
    except RuntimeError as error:
        _give_up(error)
        return product(left, right, room=room)


@cache
def _widens_right() -> bool:
    """True if ``widened_product``'s switch leaves sums in float32."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    left, right = (factor.bfloat16().float() for factor in positive_factors(256, 512, 512))
    try:
        with _rounding_factors():
            return relative_error(torch.mm(left, right), left, right) < PROBE_TOLERANCE
    except RuntimeError:
        return False


def positive_factors(rows: int, inner: int, columns: int) -> tuple[Tensor, Tensor]:
    """(rows, inner) and (inner, columns) between 1 and 2, always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(rows, inner, generator=generator) + 1.0, torch.rand(inner, columns, generator=generator) + 1.0


def relative_error(found: Tensor, left: Tensor, right: Tensor) -> float:
    """The largest, for a product of positive factors."""
    exact = left.double() @ right.double()
    return float(((found - exact).abs() / exact).max())


@contextmanager
def _rounding_factors() -> Iterator[None]:
    """Lets PyTorch round float32 factors to bfloat16, in all threads."""
    switch = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    try:
        yield
    finally:
        switch.fp32_precision = before


def _tried(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """The product by oneDNN; None if it is not used."""
    if left.device.type != "cpu" or library() != "onednn" or _refused.is_set() or address_space() is not None:
        return None
    try:
        return by_onednn(left, right, bias)
    except RuntimeError as error:
        _give_up(error)
        return None


def _give_up(error: RuntimeError) -> None:
    """Use oneDNN no more if it has no memory for its code; raise any other error."""
    if str(error) not in ONEDNN:
        raise error
    log.warning("oneDNN has no memory for a product; from now on PyTorch's default library multiplies.")
    _refused.set()


def onednn_is_faster() -> bool:
    """True if oneDNN is faster than MKL: on processors not made by Intel, with AVX-512."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and not made_by_intel()


def _right() -> bool:
    """True if oneDNN exists, may run compiled code, and keeps 24 bits."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    os.environ.update(REMEMBERED | os.environ)  # read at its first use
    left, right = positive_factors(64, 64, 64)
    try:
        return relative_error(by_onednn(left, right), left, right) < PROBE_TOLERANCE
    except RuntimeError:
        return False
