"""The element-wise pieces of a decoder block, each forward with its backward. Pure functions of tensors.

What a backward needs from its forward is returned beside the result. T is tokens, H the hidden size, I the inner size
of the feed-forward part, D the size of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
