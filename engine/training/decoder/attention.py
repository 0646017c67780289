"""Causal attention over packed batches, in plain products: a family's answers share their prompt's keys and values.

Queries of a prompt see that prompt; queries of an answer see the whole prompt and the answer so far, with one softmax
over both. Query heads that share keys and values (Ainslie et al., arXiv 2305.13245) are folded into the query axis, so
that keys and values are never repeated. Backward: dV = Pᵀ dO, dS = P ∘ (dP − rowsum(P ∘ dP)) with dP = dO Vᵀ,
dQ = s dS K, dK = s dSᵀ Q. Probabilities are kept for the backward pass, and nothing is computed twice: this is fastest
on a processor, in float32, where sequences are short. For long ones see ``tiled_attention``, for cards
``fused_attention``.

Shapes: T places, F families, P prompt slots, G rows of L slots, K heads of keys, R query heads for each, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ...base import HeadShape
from .places import Places
from .slots import Slots


class Attention(Protocol):
    """Attention over one batch, with its indices and masks; made once for all layers of a pass."""

    @property
    def heads(self) -> HeadShape:
        """Number and size of the heads."""

    @property
    def places(self) -> int:
        """T"""

    def forward(self, turned: Tensor, v: Tensor) -> tuple[Tensor, Any]:
        """Outputs (T, K · R · D), and what ``backward`` needs.

        ``turned`` are queries and keys (T, K · R + K, D), ``v`` values (T, K · D); contiguous.
        """

    def backward(self, grad: Tensor, tape: Any) -> tuple[Tensor, Tensor]:
        """Gradients by ``turned`` and by the values, float32 in their shapes, from that by the outputs."""


@dataclass(frozen=True)
class AttentionPlan:
    """Implements ``Attention`` in plain products."""

    heads: HeadShape
    places: int
    """T"""
    rows: int
    """G"""
    queries: Slots
    """Slots of the queries, in the table of queries and keys."""
    keys: Slots
    """Slots of the keys, in the same table."""
    values: Slots
    outputs: Slots
    sees_prompt: Tensor
    """(R · P, P): 0 where a prompt's query may look, else -inf."""
    sees_family: Tensor
    """(F · K, 1, P): 0 where the answers' prompt has a token."""
    sees_answer: Tensor
    """(R · L, L)"""

    @classmethod
    def of(cls, places: Places, heads: HeadShape) -> AttentionPlan:
        """Work out all indices and masks."""
        prompt, (rows, length) = places.prefixes.shape[1], places.rows.shape[1:]
        present = torch.arange(prompt, device=places.device) < places.prefix_lengths[:, None]  # (F, P)
        return cls(
            heads,
            places.count,
            rows,
            Slots.of(places, heads.keys, heads.fold, 0, heads.turned),
            Slots.of(places, heads.keys, 1, heads.queries, heads.turned),
            Slots.of(places, heads.keys, 1, 0, heads.keys),
            Slots.of(places, heads.keys, heads.fold, 0, heads.queries),
            _causal(prompt, places.device).repeat(heads.fold, 1),
            torch.where(present, 0.0, -torch.inf).repeat_interleave(heads.keys, 0)[:, None],
            _causal(length, places.device).repeat(heads.fold, 1),
        )

    def forward(self, turned: Tensor, v: Tensor) -> tuple[Tensor, AttentionTape]:
        """See ``Attention``."""
        return attention(turned, v, self)

    def backward(self, grad: Tensor, tape: AttentionTape) -> tuple[Tensor, Tensor]:
        """See ``Attention``."""
        return attention_backward(grad, tape, self)

    def by_row(self, answers: Tensor) -> Tensor:
        """A view of (F · K, G · X, Y) as (F · K · G, X, Y)."""
        return torch.unflatten(answers, 1, (self.rows, -1)).flatten(0, 1)


@dataclass(frozen=True)
class AttentionTape:
    """What the backward pass needs: slots of queries, keys and values, and probabilities, of prompts and answers."""

    q: tuple[Tensor, Tensor]
    k: tuple[Tensor, Tensor]
    v: tuple[Tensor, Tensor]
    p: tuple[Tensor, Tensor]
    """(F · K, R · P, P) and (F · K, G · R · L, P + L)"""


def attention(turned: Tensor, v: Tensor, plan: AttentionPlan) -> tuple[Tensor, AttentionTape]:
    """Outputs (T, K · R · D) for ``turned`` queries and keys (T, K · R + K, D) and values (T, K · D), contiguous."""
    size, scale = plan.heads.size, plan.heads.scale
    q_prompt, q_answer = plan.queries.gather(turned, size)
    k_prompt, k_answer = plan.keys.gather(turned, size)
    v_prompt, v_answer = plan.values.gather(v, size)
    outputs = plan.outputs.empty(q_prompt)
    o_prompt, o_answer = plan.outputs.split(outputs)

    p_prompt = torch.baddbmm(plan.sees_prompt, q_prompt, k_prompt.mT, alpha=scale).softmax(-1)
    torch.bmm(p_prompt, v_prompt, out=o_prompt)

    to_prompt = torch.baddbmm(plan.sees_family, q_answer, k_prompt.mT, alpha=scale)
    to_answer = torch.baddbmm(plan.sees_answer, plan.by_row(q_answer), plan.by_row(k_answer).mT, alpha=scale)
    p_answer = torch.cat([to_prompt, to_answer.view(*q_answer.shape[:2], -1)], -1).softmax(-1)
    on_prompt, on_answer = _halves(p_answer, plan)
    torch.bmm(on_prompt, v_prompt, out=o_answer)
    plan.by_row(o_answer).baddbmm_(plan.by_row(on_answer), plan.by_row(v_answer))

    tape = AttentionTape((q_prompt, q_answer), (k_prompt, k_answer), (v_prompt, v_answer), (p_prompt, p_answer))
    return plan.outputs.scatter(outputs, plan.places), tape


def attention_backward(grad: Tensor, tape: AttentionTape, plan: AttentionPlan) -> tuple[Tensor, Tensor]:
    """Gradients by ``turned`` and by the values, in their shapes, from that by the outputs."""
    size, scale = plan.heads.size, plan.heads.scale
    (q_prompt, q_answer), (k_prompt, k_answer), (v_prompt, v_answer) = tape.q, tape.k, tape.v
    p_prompt, p_answer = tape.p
    on_prompt, on_answer = _halves(p_answer, plan)
    g_prompt, g_answer = plan.outputs.gather(grad, size)
    by_q, by_k, by_v = plan.queries.empty(q_prompt), plan.keys.empty(k_prompt), plan.values.empty(v_prompt)
    (by_q_prompt, by_q_answer), (by_k_prompt, by_k_answer), (by_v_prompt, by_v_answer) = (
        plan.queries.split(by_q),
        plan.keys.split(by_k),
        plan.values.split(by_v),
    )
    g_rows, q_rows = plan.by_row(g_answer), plan.by_row(q_answer)

    torch.bmm(p_prompt.mT, g_prompt, out=by_v_prompt).baddbmm_(on_prompt.mT, g_answer)
    torch.bmm(plan.by_row(on_answer).mT, g_rows, out=plan.by_row(by_v_answer))

    s_prompt = _softmax_backward(torch.bmm(g_prompt, v_prompt.mT), p_prompt)
    to_answer = torch.bmm(g_rows, plan.by_row(v_answer).mT).view(*q_answer.shape[:2], -1)
    s_answer = _softmax_backward(torch.cat([torch.bmm(g_answer, v_prompt.mT), to_answer], -1), p_answer)
    s_on_prompt, s_on_answer = _halves(s_answer, plan)
    s_rows = plan.by_row(s_on_answer)

    torch.bmm(s_prompt, k_prompt, out=by_q_prompt)
    torch.bmm(s_on_prompt, k_prompt, out=by_q_answer)
    plan.by_row(by_q_answer).baddbmm_(s_rows, plan.by_row(k_answer))
    torch.bmm(s_prompt.mT, q_prompt, out=by_k_prompt).baddbmm_(s_on_prompt.mT, q_answer)
    torch.bmm(s_rows.mT, q_rows, out=plan.by_row(by_k_answer))
    q, k = plan.queries.scatter(by_q, plan.places), plan.keys.scatter(by_k, plan.places)
    turned = torch.cat([q, k], 1).mul_(scale).view(plan.places, -1, size)
    return turned, plan.values.scatter(by_v, plan.places)


def _halves(answers: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor]:
    """The columns (…, P + L) of an answer's scores that belong to the prompt, and those of the answer itself."""
    prompt = plan.sees_prompt.shape[1]
    return answers[..., :prompt], answers[..., prompt:]


def _softmax_backward(grad: Tensor, probabilities: Tensor) -> Tensor:
    """P ∘ (dP − rowsum(P ∘ dP))"""
    return torch._softmax_backward_data(grad, probabilities, -1, grad.dtype)


def _causal(length: int, device: torch.device) -> Tensor:
    """(length, length): 0 on and below the diagonal, -inf above."""
    return torch.full((length, length), -torch.inf, device=device).triu_(1)
