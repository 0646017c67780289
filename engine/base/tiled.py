"""Attention in tiles on the processor: memory grows with the number of tokens, not with its square.

FlashAttention (Dao et al., arXiv 2205.14135): scores are computed tile by tile, with a running maximum and sum for each
query, and again in the backward pass, from the logarithm of that sum. PyTorch has such a kernel. Keys may be attended
to in parts: ``merged`` joins two parts into one softmax, and with the joint result and sums ``attend_backward`` gives
each part's share of the gradients (FlashAttention-2, arXiv 2307.08691, section 3.1).

Shapes: B groups of R heads with one key head; n queries, m keys, D head size. Strides are free but for the last axis.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
"""Largest error in the probe, of values about 1: float32 has 1e-6, bfloat16 two or three roundings of 1/256."""


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
    """Whether this PyTorch attends in tiles, and all that is computed here is right on this processor."""
    try:
        with torch.inference_mode(False):  # gradients are part of it, whoever asks first
            return all(_error(kind) < most for kind, most in TOLERANCE.items())
    except (AttributeError, RuntimeError, TypeError):
        return False


def _error(kind: torch.dtype) -> float:
    """The largest error of two merged parts, and of their gradients, beside one softmax over both in float64."""
    generator = torch.Generator().manual_seed(0)
    past, own, fold, size, scale = 40, 72, 3, 16, 0.25
    q = torch.randn(2, fold, own, size, generator=generator).to(kind)
    k, v = (torch.randn(2, past + own, size, generator=generator).to(kind) for _ in range(2))
    grad = torch.randn(q.shape, generator=generator).to(kind)

    parts = ((slice(past), False), (slice(past, None), True))
    out, sums = merged(*(attend(q, k[:, seen], v[:, seen], scale, causal) for seen, causal in parts))
    backward = [
        attend_backward(grad, q, k[:, seen], v[:, seen], out.to(kind), sums, scale, causal) for seen, causal in parts
    ]
    by_q = backward[0][0].float() + backward[1][0].float()
    by_k, by_v = (torch.cat([part[place] for part in backward], 1) for place in (1, 2))

    found = (out, by_q, by_k, by_v)
    leaves = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    with torch.enable_grad():
        scores = leaves[0] @ leaves[1][:, None].mT * scale
        unseen = torch.full(scores.shape[-2:], -torch.inf, dtype=torch.float64).triu_(past + 1)
        exact = (scores + unseen).softmax(-1) @ leaves[2][:, None]
        # of a number: given a gradient, autograd imports sympy: half a second, and 34 MB of each worker
        expected = [exact, *torch.autograd.grad((exact * grad.double()).sum(), leaves)]
    pairs = zip(found, expected, strict=True)
    return max(float(((ours - right).abs() / (1.0 + right.abs())).detach().max()) for ours, right in pairs)
