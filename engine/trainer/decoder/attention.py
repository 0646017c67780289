"""Causal attention over packed batches: in plain products, by torch's fused kernels, and in tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ...models.kernels import attend, attend_backward, merged
from ...models.tensors import HeadShape
from .packing import Places, Slots

# Queries of a prompt see that prompt; queries of an answer see the prompt and the answer so far, with one softmax over
# both. Query heads that share keys and values (Ainslie et al., arXiv 2305.13245) are folded into the query axis, so
# that keys and values are never repeated. Backward: dV = Pᵀ dO, dS = P ∘ (dP − rowsum(P ∘ dP)) with dP = dO Vᵀ, dQ = s
# dS K, dK = s dSᵀ Q. Plain products are fastest on a processor, in float32, for short sequences.
#
# Shapes: T places, F families, P prompt slots, G rows of L slots, K heads of keys, R query heads for each, D head size.


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
    keys: Slots
    values: Slots
    outputs: Slots
    sees_prompt: Tensor
    """(R · P, P): 0 if a prompt's query may look, else -inf."""
    sees_family: Tensor
    """(F · K, 1, P): 0 if the answers' prompt has a token."""
    sees_answer: Tensor
    """(R · L, L)"""

    @classmethod
    def of(cls, places: Places, heads: HeadShape) -> AttentionPlan:
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
        return attention(turned, v, self)

    def backward(self, grad: Tensor, tape: AttentionTape) -> tuple[Tensor, Tensor]:
        return attention_backward(grad, tape, self)

    def by_row(self, answers: Tensor) -> Tensor:
        return torch.unflatten(answers, 1, (self.rows, -1)).flatten(0, 1)


@dataclass(frozen=True)
class AttentionTape:
    """Slots of queries, keys and values, and probabilities, of prompts and answers."""

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
    prompt = plan.sees_prompt.shape[1]
    return answers[..., :prompt], answers[..., prompt:]


def _softmax_backward(grad: Tensor, probabilities: Tensor) -> Tensor:
    """P ∘ (dP − rowsum(P ∘ dP))"""
    return torch._softmax_backward_data(grad, probabilities, -1, grad.dtype)


def _causal(length: int, device: torch.device) -> Tensor:
    """(length, length): 0 on and below the diagonal, -inf above."""
    return torch.full((length, length), -torch.inf, device=device).triu_(1)


# Torch's fused kernels, for cards: they never hold a score. Prompts use flash attention; answers need a mask and the
# memory-efficient kernel. The backward pass recomputes attention and lets torch differentiate it.


@dataclass(frozen=True)
class FusedTape:
    """The inputs of the forward pass."""

    turned: Tensor
    v: Tensor


@dataclass(frozen=True)
class FusedAttention:
    """Implements ``Attention`` with torch's fused kernels."""

    heads: HeadShape
    places: int
    """T"""
    dtype: torch.dtype
    families: int
    """F"""
    rows: int
    """G"""
    queries: Slots
    keys: Slots
    values: Slots
    outputs: Slots
    sees: Tensor
    """(F, 1, R · L, P + L): 0 if an answer's query may look, else -inf."""

    @classmethod
    def of(cls, places: Places, heads: HeadShape, dtype: torch.dtype) -> FusedAttention:
        (families, prompt), (rows, length) = places.prefixes.shape, places.rows.shape[1:]
        on_prompt = torch.arange(prompt, device=places.device) < places.prefix_lengths[:, None]  # (F, P)
        on_answer = torch.ones(length, length, dtype=torch.bool, device=places.device).tril()
        seen = torch.cat(
            [on_prompt[:, None].expand(-1, length, -1), on_answer.expand(families, -1, -1)], 2
        )  # (F, L, P + L)
        sees = torch.zeros(seen.shape, dtype=dtype, device=places.device).masked_fill_(~seen, -torch.inf)
        return cls(
            heads,
            places.count,
            dtype,
            families,
            rows,
            Slots.of(places, heads.keys, heads.fold, 0, heads.turned),
            Slots.of(places, heads.keys, 1, heads.queries, heads.turned),
            Slots.of(places, heads.keys, 1, 0, heads.keys),
            Slots.of(places, heads.keys, heads.fold, 0, heads.queries),
            sees.repeat(1, heads.fold, 1)[:, None],
        )

    def forward(self, turned: Tensor, v: Tensor) -> tuple[Tensor, FusedTape]:
        tape = FusedTape(turned.to(self.dtype), v.to(self.dtype))
        outputs = self._attend(*self._gathered(tape))
        return self._scatter(self.outputs, *outputs), tape

    def backward(self, grad: Tensor, tape: FusedTape) -> tuple[Tensor, Tensor]:
        leaves = [slots.detach().requires_grad_() for slots in self._gathered(tape)]
        with torch.enable_grad():
            outputs = self._attend(*leaves)
        by_outputs = self.outputs.gather(grad.to(self.dtype), self.heads.size)
        by_q_prompt, by_q_answer, by_k_prompt, by_k_answer, by_v_prompt, by_v_answer = torch.autograd.grad(
            outputs, leaves, by_outputs
        )
        by_turned = [
            self._scatter(self.queries, by_q_prompt, by_q_answer),
            self._scatter(self.keys, by_k_prompt, by_k_answer),
        ]
        turned = torch.cat(by_turned, 1).float().view(self.places, -1, self.heads.size)
        return turned, self._scatter(self.values, by_v_prompt, by_v_answer).float()

    def _gathered(self, tape: FusedTape) -> tuple[Tensor, ...]:
        """Queries, keys and values in their slots, of prompts (F · K, …, D) and of answers."""
        size = self.heads.size
        return (
            *self.queries.gather(tape.turned, size),
            *self.keys.gather(tape.turned, size),
            *self.values.gather(tape.v, size),
        )

    def _attend(
        self, q_prompt: Tensor, q_answer: Tensor, k_prompt: Tensor, k_answer: Tensor, v_prompt: Tensor, v_answer: Tensor
    ) -> tuple[Tensor, Tensor]:
        heads, by_head = self.heads, (self.families, self.heads.queries, -1, self.heads.size)
        k_repeated, v_repeated = (
            slots.view(self.families, heads.keys, 1, -1, heads.size).expand(-1, -1, heads.fold, -1, -1).reshape(by_head)
            for slots in (k_prompt, v_prompt)
        )
        o_prompt = scaled_dot_product_attention(
            q_prompt.view(by_head), k_repeated, v_repeated, is_causal=True, scale=heads.scale
        )
        own = self.families, heads.keys * self.rows, -1, heads.size
        o_answer = scaled_dot_product_attention(
            q_answer.view(own),
            self._beside(k_prompt, k_answer).view(own),
            self._beside(v_prompt, v_answer).view(own),
            attn_mask=self.sees,
            scale=heads.scale,
        )
        return o_prompt.reshape_as(q_prompt), o_answer.reshape_as(q_answer)

    def _beside(self, prompt: Tensor, answer: Tensor) -> Tensor:
        """(F, K, G, P + L, D): for each answer its family's prompt, then itself."""
        shape = self.families, self.heads.keys, self.rows, -1, self.heads.size
        shared = prompt.view(self.families, self.heads.keys, 1, -1, self.heads.size).expand(-1, -1, self.rows, -1, -1)
        return torch.cat([shared, answer.view(shape)], 3)

    def _scatter(self, slots: Slots, prompt: Tensor, answer: Tensor) -> Tensor:
        size = self.heads.size
        parts = [prompt.reshape(-1, size), answer.reshape(-1, size), prompt.new_zeros(1, size)]
        return slots.scatter(torch.cat(parts), self.places)


# Tiles, for long sequences on a processor: no memory grows with the square of the length. An answer's prompt and the
# answer so far are two parts that are merged into one softmax. The backward pass recomputes the tiles. See
# ``models/kernels.py``.


@dataclass(frozen=True)
class Part:
    """Queries that attend to keys: to all of them, or each up to its own."""

    queries: slice
    keys: slice

    @property
    def causal(self) -> bool:
        """True if each query sees the keys up to its own token."""
        return self.queries == self.keys


@dataclass(frozen=True)
class TiledTape:
    """What the backward pass needs."""

    turned: Tensor
    v: Tensor
    outputs: Tensor
    """(T, K · R · D)"""
    sums: Tensor
    """(K, R, T): logarithms of the softmax's sums."""


@dataclass(frozen=True)
class TiledAttention:
    """Implements ``Attention`` in tiles."""

    heads: HeadShape
    places: int
    """T"""
    dtype: torch.dtype
    first: tuple[Part, ...]
    """Prompts on themselves, and all answers to a prompt on that prompt."""
    then: tuple[Part, ...]
    """Answers on themselves."""

    @classmethod
    def of(cls, places: Places, heads: HeadShape, dtype: torch.dtype = torch.float32) -> TiledAttention:
        first: list[Part] = []
        then: list[Part] = []
        prompts = places.prefixes[:, 0].tolist(), places.prefix_lengths.tolist()
        answers = places.rows[..., 0].tolist(), (places.rows != places.padding).sum(-1).tolist()
        for begin, length, begins, counts in zip(*prompts, *answers, strict=True):
            prompt = slice(begin, begin + length)
            rows = [slice(start, start + count) for start, count in zip(begins, counts, strict=True) if count]
            first.append(Part(prompt, prompt))
            if rows:
                first.append(Part(slice(rows[0].start, rows[-1].stop), prompt))
            then += [Part(row, row) for row in rows]
        return cls(heads, places.count, dtype, tuple(first), tuple(then))

    def forward(self, turned: Tensor, v: Tensor) -> tuple[Tensor, TiledTape]:
        turned, v = turned.to(self.dtype), v.to(self.dtype)
        outputs = turned.new_zeros(self.places, self.heads.queries * self.heads.size)
        sums = torch.zeros(self.heads.keys, self.heads.fold, self.places)
        (q, keys, values), out = self._by_head(turned, v), self._folded(self._table(outputs))
        for number, part in enumerate((*self.first, *self.then)):
            asked, seen = part.queries, part.keys
            found = attend(q[:, :, asked], keys[:, seen], values[:, seen], self.heads.scale, part.causal)
            if number >= len(self.first):
                found = merged((out[:, :, asked], sums[:, :, asked]), found)
            out[:, :, asked], sums[:, :, asked] = found
        return outputs, TiledTape(turned, v, outputs, sums)

    def backward(self, grad: Tensor, tape: TiledTape) -> tuple[Tensor, Tensor]:
        turned, v = torch.zeros(tape.turned.shape), torch.zeros(tape.v.shape)
        by_q, by_keys, by_values = self._by_head(turned, v)
        q, keys, values = self._by_head(tape.turned, tape.v)
        out, by_out = self._folded(self._table(tape.outputs)), self._folded(self._table(grad.to(self.dtype)))
        for part in (*self.first, *self.then):
            asked, seen = part.queries, part.keys
            found = attend_backward(
                by_out[:, :, asked],
                q[:, :, asked],
                keys[:, seen],
                values[:, seen],
                out[:, :, asked],
                tape.sums[:, :, asked],
                self.heads.scale,
                part.causal,
            )
            by_q[:, :, asked] += found[0]
            by_keys[:, seen] += found[1]
            by_values[:, seen] += found[2]
        return turned, v

    def _by_head(self, turned: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys = turned[:, : self.heads.queries], turned[:, self.heads.queries :]
        return self._folded(queries), keys.transpose(0, 1), self._table(v).transpose(0, 1)

    def _folded(self, queries: Tensor) -> Tensor:
        """A view (K, R, T, D) of (T, K · R, D)."""
        return torch.unflatten(queries, 1, (self.heads.keys, self.heads.fold)).permute(1, 2, 0, 3)

    def _table(self, vectors: Tensor) -> Tensor:
        """A view (T, heads, D) of (T, heads · D)."""
        return torch.unflatten(vectors, 1, (-1, self.heads.size))
