"""Causal attention over packed batches: by torch's fused kernels, and in tiles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ...models.kernels import attend, attend_backward, merged
from ...models.tensors import HeadShape
from .packing import Places

# Queries of a prompt see that prompt; queries of an answer see the prompt and the answer so far, with one softmax over
# both. Query heads may share keys and values (Ainslie et al., arXiv 2305.13245).
#
# Shapes: T places, F families, P prompt slots, G rows of L slots, K heads of keys, R query heads for each, D head size.


# Both kinds hold the indices and masks of one batch, made once for all layers of a pass.
#
# ``forward`` gets contiguous queries and keys (T, K · R + K, D) and values (T, K · D). It gives outputs (T, K · R · D),
# and the input of ``backward``, which gives float32 gradients by both.


@dataclass(frozen=True)
class FusedAttention:
    """By torch's kernels, which hold no scores.

    Answers need a mask. On a card only the memory-efficient kernel takes one, and it takes no ``enable_gqa``. So query
    heads of an answer that share keys are folded into the query axis.

    The backward pass computes attention again and lets torch differentiate it. Each place has at most one slot, so the
    gradients of the gathers have no order of sums.
    """

    heads: HeadShape
    places: int
    dtype: torch.dtype
    prompts: Tensor
    """(F, P): places."""
    answers: Tensor
    """(F, G, L): places."""
    slots: Tensor
    """(T,): the slot of each place, of F · P, then F · G · L; the last slot, of zeros, for unused places."""
    sees: Tensor
    """(F, 1, R · L, P + L): 0 if an answer's query may look, else -inf."""

    @classmethod
    def of(cls, places: Places, heads: HeadShape, dtype: torch.dtype = torch.float32) -> FusedAttention:
        prompt, length, device = places.prefixes.shape[1], places.rows.shape[2], places.tokens.device
        on_prompt = torch.arange(prompt, device=device) < places.prefix_lengths[:, None]  # (F, P)
        on_answer = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        seen = torch.cat([on_prompt[:, None].expand(-1, length, -1), on_answer.expand(len(on_prompt), -1, -1)], 2)
        mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -torch.inf)
        taken = torch.cat([places.prefixes.flatten(), places.rows.flatten()])
        slots = torch.full_like(places.tokens, len(taken))
        slots[taken] = torch.arange(len(taken), device=device)
        sees = mask.repeat(1, heads.fold, 1)[:, None]
        return cls(heads, len(places.tokens), dtype, places.prefixes, places.rows, slots, sees)

    def forward(self, turned: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        tape = turned.to(self.dtype), v.to(self.dtype)
        return self._attend(*tape), tape

    def backward(self, grad: Tensor, tape: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        leaves = [part.detach().requires_grad_() for part in tape]
        with torch.enable_grad():
            outputs = self._attend(*leaves)
        by_turned, by_v = torch.autograd.grad(outputs, leaves, grad.to(self.dtype))
        return by_turned.float(), by_v.float()

    def _attend(self, turned: Tensor, v: Tensor) -> Tensor:
        heads, (families, rows, _) = self.heads, self.answers.shape
        table = torch.cat([turned, v.view(len(v), heads.keys, heads.size)], 1)  # (T, K R + 2 K, D)
        prompts, answers = (
            table.index_select(0, places.flatten()).view(*places.shape, *table.shape[1:]).movedim(-2, 1)
            for places in (self.prompts, self.answers)
        )
        kinds = [heads.queries, heads.keys, heads.keys]
        q, k, v = torch.split(prompts, kinds, 1)
        k_repeated, v_repeated = (part.repeat_interleave(heads.fold, 1) for part in (k, v))
        on_prompts = scaled_dot_product_attention(q, k_repeated, v_repeated, is_causal=True, scale=heads.scale)
        query, *own = torch.split(answers, kinds, 1)
        folded = torch.unflatten(query, 1, (heads.keys, heads.fold)).transpose(2, 3)  # (F, K, G, R, L, D)
        key, value = (
            torch.cat([shared[:, :, None].expand(-1, -1, rows, -1, -1), each], 3).flatten(1, 2)
            for shared, each in zip((k, v), own, strict=True)
        )
        on_answers = scaled_dot_product_attention(
            folded.reshape(families, heads.keys * rows, -1, heads.size),
            key,
            value,
            attn_mask=self.sees,
            scale=heads.scale,
        )
        by_row = on_answers.view(folded.shape).permute(0, 2, 4, 1, 3, 5)  # (F, G, L, K, R, D)
        width = heads.queries * heads.size
        outputs = on_prompts.transpose(1, 2).reshape(-1, width), by_row.reshape(-1, width)
        return torch.cat([*outputs, table.new_zeros(1, outputs[0].shape[1])]).index_select(0, self.slots)


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
    """In tiles, for long sequences on a processor: memory grows with length only.

    The prompt and the answer so far are two parts that are merged into one softmax. The backward pass computes the
    tiles again. See ``models/kernels.py``.
    """

    heads: HeadShape
    places: int
    dtype: torch.dtype
    first: tuple[tuple[slice, slice], ...]
    """Places of queries and of keys, equal ones are causal: prompts on themselves, and all answers to each on it."""
    then: tuple[tuple[slice, slice], ...]
    """Answers on themselves."""

    @classmethod
    def of(cls, places: Places, heads: HeadShape, dtype: torch.dtype = torch.float32) -> TiledAttention:
        first: list[tuple[slice, slice]] = []
        then: list[tuple[slice, slice]] = []
        prompts = places.prefixes[:, 0].tolist(), places.prefix_lengths.tolist()
        answers = places.rows[..., 0].tolist(), (places.rows != len(places.tokens) - 1).sum(-1).tolist()
        for begin, length, begins, counts in zip(*prompts, *answers, strict=True):
            prompt = slice(begin, begin + length)
            rows = [slice(start, start + count) for start, count in zip(begins, counts, strict=True) if count]
            first.append((prompt, prompt))
            if rows:
                first.append((slice(rows[0].start, rows[-1].stop), prompt))
            then += [(row, row) for row in rows]
        return cls(heads, len(places.tokens), dtype, tuple(first), tuple(then))

    def forward(self, turned: Tensor, v: Tensor) -> tuple[Tensor, TiledTape]:
        turned, v = turned.to(self.dtype), v.to(self.dtype)
        outputs = turned.new_zeros(self.places, self.heads.queries * self.heads.size)
        sums = torch.zeros(self.heads.keys, self.heads.fold, self.places)
        (q, keys, values), out = self._by_head(turned, v), self._folded(self._table(outputs))
        for number, (asked, seen) in enumerate((*self.first, *self.then)):
            part = attend(q[:, :, asked], keys[:, seen], values[:, seen], self.heads.scale, asked == seen)
            if number >= len(self.first):
                part = merged((out[:, :, asked], sums[:, :, asked]), part)
            out[:, :, asked], sums[:, :, asked] = part
        return outputs, TiledTape(turned, v, outputs, sums)

    def backward(self, grad: Tensor, tape: TiledTape) -> tuple[Tensor, Tensor]:
        turned, v = torch.zeros(tape.turned.shape), torch.zeros(tape.v.shape)
        by_q, by_keys, by_values = self._by_head(turned, v)
        q, keys, values = self._by_head(tape.turned, tape.v)
        out, by_out = (self._folded(self._table(part)) for part in (tape.outputs, grad.to(self.dtype)))
        for asked, seen in (*self.first, *self.then):
            slots = (by_out[:, :, asked], q[:, :, asked], keys[:, seen], values[:, seen], out[:, :, asked])
            found = attend_backward(*slots, tape.sums[:, :, asked], self.heads.scale, asked == seen)
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


Attention = FusedAttention | TiledAttention
