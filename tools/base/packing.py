"""Packs conversations into training rows of equal length: token ids, position ids and labels.

Several conversations share a row; position ids restart with each, which is how the model keeps attention inside a
conversation, and why position 0 really is a conversation's start, as it is when the model is used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tools.base.problem import script
from tools.base.skills.mixture import mixed
from tools.base.vocabulary import ASSISTANT, CONTROL, END, render

IGNORED = -100
"""The label that a loss skips."""
PATIENCE = 4
"""Conversations turned away for lack of room before a batch counts as full; more would favour the short ones."""


@dataclass(frozen=True)
class Batch:
    """Rows of one optimizer step; each tensor is rows by length."""

    ids: Tensor
    positions: Tensor
    labels: Tensor


@dataclass
class Packer:
    """Draws conversations and fills rows with them."""

    tokenizer: PreTrainedTokenizerBase
    rows: int
    length: int
    seed: int

    def batch(self, step: int) -> Batch:
        """The batch of a step: a function of seed and step alone, so that a run can be repeated or resumed."""
        rng = Random(f"{self.seed}/{step}")
        source = self.conversations(rng)
        rows: list[list[list[int]]] = [[] for _ in range(self.rows)]
        # First fit: short conversations fill the gaps that long ones leave, until a few in a row find no place.
        turned_away = 0
        while turned_away < PATIENCE:
            ids = next(source)
            row = next((r for r in rows if sum(map(len, r)) + len(ids) <= self.length), None)
            if row is None:
                turned_away += 1
            else:
                row.append(ids)
        return Batch(*(torch.tensor(column) for column in zip(*map(self.fill, rows), strict=True)))

    def conversations(self, rng: Random) -> Iterator[list[int]]:
        """Token ids of one conversation after another."""
        while True:
            skill, problem = mixed(rng)
            messages = script(problem, skill.right(problem, rng))
            text = render(self.tokenizer, messages, problem.tools)
            yield self.tokenizer.encode(text, add_special_tokens=False)

    def fill(self, conversations: list[list[int]]) -> tuple[list[int], list[int], list[int]]:
        """Ids, positions and labels of a row, padded to its length (each pad at position 0, alone with itself)."""
        ids = [i for c in conversations for i in c]
        positions = [p for c in conversations for p in range(len(c))]
        labels = [i for c in conversations for i in self.spoken(c)]
        missing = self.length - len(ids)
        return ids + [0] * missing, positions + [0] * missing, labels + [IGNORED] * missing

    def spoken(self, ids: list[int]) -> list[int]:
        """Labels: the assistant's own tokens with the end of its turn, nothing else."""
        assistant, end = CONTROL.index(ASSISTANT), CONTROL.index(END)
        labels, speaking = [], False
        for i in ids:
            labels.append(i if speaking else IGNORED)
            speaking = i == assistant or (speaking and i != end)
        return labels
