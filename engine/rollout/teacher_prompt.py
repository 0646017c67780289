"""A system text that only the teacher reads (context distillation, arXiv 2209.15189)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from marlaas.plugins.messages import Message

from ..errors import ConfigError
from ..trainer.protocol import TrainGroup, TrainSequence
from ..trajectories import Tokens
from .renderer import Renderer


@dataclass(frozen=True)
class TeacherPrompt:
    """What the chat template writes in front of a conversation, with and without the text."""

    without: Tokens
    read: Tokens

    @classmethod
    def of(cls, renderer: Renderer, text: str, thinking: bool | None) -> TeacherPrompt:
        """Raises ``BaseModelError`` if the template refuses system messages."""
        ask = Message("user", "?")
        without = renderer.open((ask,), thinking=thinking)
        read = renderer.open((Message("system", text), ask), thinking=thinking)
        shorter = min(len(without), len(read))
        common = next((n for n in range(shorter) if without[-1 - n] != read[-1 - n]), shorter)
        tokens = [np.array(each[: len(each) - common], dtype=np.int32) for each in (without, read)]
        return cls(*tokens)

    def shown(self, group: TrainGroup) -> TrainGroup:
        """The group with ``shown`` in each sequence. Raises ``ConfigError`` for another beginning."""
        return replace(group, sequences=tuple(map(self._shown, group.sequences)))

    def _shown(self, sequence: TrainSequence) -> TrainSequence:
        start = len(self.without)
        if not np.array_equal(sequence.tokens[:start], self.without) or sequence.mask[:start].any():
            raise ConfigError(
                "A conversation begins with a system text of its own, so 'train.teacher_prompt' cannot be put there.",
                "Leave the system text out of the environment, or 'train.teacher_prompt' out of the task file.",
            )
        tokens = np.concatenate([self.read, sequence.tokens[start:]])
        mask = np.concatenate([np.zeros(len(self.read), np.uint8), sequence.mask[start:]])
        return replace(sequence, shown=(tokens, mask))
