"""Which rows of a pass belong to which policy: each mounted policy has a contiguous span, in the order of policies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spans:
    """The spans of policies among some rows; rows after the last span belong to no policy."""

    rows: tuple[slice, ...]
    """The rows of each policy, one after the other from 0; empty where it has none."""
    stops: Tensor
    """int32 (policies,): where each span ends, on the device that computes."""

    @property
    def end(self) -> int:
        """The number of rows that belong to policies."""
        return self.rows[-1].stop if self.rows else 0

    @property
    def empty(self) -> tuple[int, ...]:
        """Numbers of the policies without a row."""
        return tuple(number for number, span in enumerate(self.rows) if span.start == span.stop)

    def within(self, part: slice) -> Spans:
        """The spans among these rows alone, which are counted from 0."""

        begin, end = int(part.start), int(part.stop)

        def moved(row: int) -> int:
            return min(max(row, begin), end) - begin

        rows = tuple(slice(moved(span.start), moved(span.stop)) for span in self.rows)
        return Spans(rows, self.stops.clamp(begin, end) - begin)

    @cached_property
    def slots(self) -> Tensor:
        """int64 (policies, longest): each policy's rows, then ``end`` where it has fewer than the longest."""
        longest = max(span.stop - span.start for span in self.rows)
        stops = self.stops.long()
        starts = torch.cat([stops.new_zeros(1), stops[:-1]])
        rows = starts[:, None] + torch.arange(longest, device=self.stops.device)
        return torch.where(rows < stops[:, None], rows, self.end)

    @cached_property
    def places(self) -> Tensor:
        """int64 (end,): the index of each row among the flattened ``slots``."""
        found = torch.empty(self.end + 1, dtype=torch.int64, device=self.stops.device)
        found[self.slots.view(-1)] = torch.arange(self.slots.numel(), device=self.stops.device)
        return found[:-1]
