"""Penalties on what has been said already: for what is there at all, for how often it is, and by a factor. Pure numpy.

The order is vLLM's, so that all samplers say the same: first the factor (Keskar et al., arXiv 1909.05858, section 4.1),
then what is subtracted, as OpenAI defines it; all before the temperature.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..trajectories import Tokens
from .wishes import Wishes

Row = NDArray[np.float32]


class Said:
    """How often the reply of one turn has each token."""

    def __init__(self, prompt: Tokens, room: int) -> None:
        """``prompt`` is int32 (T,); the reply gets at most ``room`` tokens."""
        self._prompt = np.unique(prompt)
        self._tokens = np.empty(room, np.int32)
        self._counts = np.zeros(room, np.int32)
        self._places: dict[int, int] = {}

    def add(self, token: int) -> None:
        """The reply goes on with this token."""
        place = self._places.setdefault(token, len(self._places))
        self._tokens[place] = token
        self._counts[place] += 1

    def penalise(self, row: Row, wishes: Wishes) -> None:
        """Change the logits of one position, float32 (V,), in place."""
        tokens, counts = self._tokens[: len(self._places)], self._counts[: len(self._places)]
        if wishes.repetition_penalty != 1:
            seen = np.union1d(self._prompt, tokens)
            factor, values = np.float32(wishes.repetition_penalty), row[seen]
            row[seen] = np.where(values > 0, values / factor, values * factor)
        row[tokens] -= (wishes.frequency_penalty * counts + wishes.presence_penalty).astype(np.float32)
