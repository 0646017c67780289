"""Between packed places and the padded slots in which attention is computed.

A table (T, heads · D) holds a vector for each head of each place; slots (S, D) hold the same vectors in the order in
which batched products read them. Every vector has at most one slot, so that going back is a gather, too, and no sum.
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
    """(S,): row of the table that is gathered from, seen as (T · heads, D)."""
    give: Tensor
    """(T · heads,): slot of each row of the table that is scattered to, which holds these heads only; S, where zeros
    are kept, for places that have none."""
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
            """Where each slot's vector lies in a table so many heads wide."""
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
        """Room for all slots, (S + 1, D), with zeros behind them."""
        room = like.new_empty(len(self.take) + 1, like.shape[-1])
        room[-1] = 0.0
        return room

    def split(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Views of prompts and answers, as from ``gather``."""
        middle = self.shape_prompt[0] * self.shape_prompt[1]
        size = slots.shape[-1]
        return (
            slots[:middle].view(*self.shape_prompt, size),
            slots[middle : len(self.take)].view(*self.shape_answer, size),
        )

    def scatter(self, slots: Tensor, places: int) -> Tensor:
        """Back to the table (T, heads · D), from room made by ``empty``; zero for places without a slot."""
        return slots.index_select(0, self.give).view(places, -1)
