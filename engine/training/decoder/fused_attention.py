"""Causal attention over packed batches by torch's own fused kernels, which never hold a score: for cards.

Prompts are causal, which flash attention computes; answers attend to their prompt, padded on the right, and to
themselves, which needs a mask and the memory-efficient kernel. Only queries, keys and values are kept for the backward
pass, which computes attention once more and lets torch differentiate it. Query heads that share keys are folded into
the queries of answers, so that only a family's keys are repeated, once for each answer.

Shapes are as in ``attention``. Results are equal to it within the precision of ``dtype``; torch chooses the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ...base import HeadShape
from .places import Places
from .slots import Slots


@dataclass(frozen=True)
class FusedTape:
    """What the backward pass needs: the inputs of the forward pass."""

    turned: Tensor
    v: Tensor


@dataclass(frozen=True)
class FusedAttention:
    """Implements ``attention.Attention`` with torch's fused kernels."""

    heads: HeadShape
    places: int
    """T"""
    dtype: torch.dtype
    """The type in which queries, keys and values are multiplied."""
    families: int
    """F"""
    rows: int
    """G"""
    queries: Slots
    keys: Slots
    values: Slots
    outputs: Slots
    sees: Tensor
    """(F, 1, R · L, P + L): 0 where an answer's query may look, else -inf."""

    @classmethod
    def of(cls, places: Places, heads: HeadShape, dtype: torch.dtype) -> FusedAttention:
        """Work out all indices and masks."""
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
        """See ``attention.Attention``."""
        tape = FusedTape(turned.to(self.dtype), v.to(self.dtype))
        outputs = self._attend(*self._gathered(tape))
        return self._scatter(self.outputs, *outputs), tape

    def backward(self, grad: Tensor, tape: FusedTape) -> tuple[Tensor, Tensor]:
        """See ``attention.Attention``."""
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
        """Queries, keys and values in their slots, each of prompts (F · K, …, D) and of answers."""
        size = self.heads.size
        return (
            *self.queries.gather(tape.turned, size),
            *self.keys.gather(tape.turned, size),
            *self.values.gather(tape.v, size),
        )

    def _attend(
        self, q_prompt: Tensor, q_answer: Tensor, k_prompt: Tensor, k_answer: Tensor, v_prompt: Tensor, v_answer: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Outputs in the slots of the queries."""
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
        """The table (T, heads · D) from vectors in slots."""
        size = self.heads.size
        parts = [prompt.reshape(-1, size), answer.reshape(-1, size), prompt.new_zeros(1, size)]
        return slots.scatter(torch.cat(parts), self.places)
