"""Between packed places and the padded slots in which attention is computed.

A table (T, heads · D) holds a vector for each head of each place; slots (S, D) hold the same vectors in the order in
which batched products read them. Every vector has at most one slot, so the way back is a gather, too, and not a sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .places import Places


@dataclass(frozen=True)
class Slots:
    """The slots of F prompts of P slots, then of F · G answers of L slots, for K · R heads."""

    take: Tensor
    """(S,): each slot's row in the table that is gathered from, viewed as (T · heads, D)."""
    give: Tensor
    """(T · heads,): the slot of each row of the table that is scattered to, which holds these heads only; S, a slot of
    zeros, for places without one."""
    shape_prompt: tuple[int, int]
    """(F · K, R · P)"""
    shape_answer: tuple[int, int]
    """(F · K, G · R · L)"""

    @classmethod
    def of(cls, places: Places, groups: int, fold: int, first: int, table: int) -> Slots:
        """For K ``groups`` of R = ``fold`` heads, which begin at head ``first`` of a wider ``table``."""
        (families, prompt), (rows, length) = places.prefixes.shape, places.rows.shape[1:]
        heads = groups * fold
        head = torch.arange(heads, device=places.device).view(1, groups, 1, fold, 1)
        of_prompts = places.prefixes[:, None, None, :], head[:, :, 0]  # (F, K, R, P)
        of_answers = places.rows[:, None, :, None, :], head  # (F, K, G, R, L)

        def rows_of(width: int, offset: int) -> Tensor:
            """Each slot's row in a table that is ``width`` heads wide, of which these begin at head ``offset``."""
            return torch.cat([(place * width + h).view(-1) for place, h in (of_prompts, of_answers)]).add_(offset)

        own, take = rows_of(heads, 0), rows_of(table, first)
        give = torch.full((places.count * heads,), len(take), device=places.device)
        give[own] = torch.arange(len(take), device=places.device)
        give[places.padding * heads :] = len(take)
        return cls(take, give, (families * groups, fold * prompt), (families * groups, rows * fold * length))

    def gather(self, table: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Slots of the prompts (F · K, R · P, D) and of the answers (F · K, G · R · L, D); padding repeats a place."""
        return self.split(table.view(-1, size).index_select(0, self.take))

    def empty(self, like: Tensor) -> Tensor:
        """An empty tensor for all slots, (S + 1, D), of which the last is zero."""
        room = like.new_empty(len(self.take) + 1, like.shape[-1])
        room[-1] = 0.0
        return room

    def split(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Views of prompts' and answers' slots, in the shapes of ``gather``."""
        middle = self.shape_prompt[0] * self.shape_prompt[1]
        size = slots.shape[-1]
        return (
            slots[:middle].view(*self.shape_prompt, size),
            slots[middle : len(self.take)].view(*self.shape_answer, size),
        )

    def scatter(self, slots: Tensor, places: int) -> Tensor:
        """The table (T, heads · D) from slots in a tensor made by ``empty``; zero for places without a slot."""
        return slots.index_select(0, self.give).view(places, -1)
