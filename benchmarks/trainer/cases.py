"""What the trainer is measured on: base models and groups of 64 episodes, and the products that a step needs.

Names and numbers flow in; folders, groups and counts flow out. Random tokens: nothing is equal by chance, so nothing is
saved that a real run would not save.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marlaas.engine.base.model import load_base
from marlaas.engine.training.inputs import TrainGroup, TrainSequence

GROUPS, MEMBERS = 8, 8


@dataclass(frozen=True)
class Case:
    """One shape of a step."""

    title: str
    base: str
    """``tiny``, or a name in ``WIDE``."""
    prompt: int
    answer: int
    groups: int = GROUPS

    def draw(self, vocabulary: int) -> list[TrainGroup]:
        """The groups of one step."""
        random = np.random.default_rng(0)
        return [self._group(random, number, vocabulary) for number in range(self.groups)]

    def _group(self, random: np.random.Generator, number: int, vocabulary: int) -> TrainGroup:
        prompt = random.integers(0, vocabulary, self.prompt)
        mask = np.repeat(np.array([0, 1], dtype=np.uint8), (self.prompt, self.answer))
        return TrainGroup(
            number,
            tuple(
                TrainSequence(
                    np.concatenate([prompt, random.integers(0, vocabulary, self.answer)]).astype(np.int32),
                    mask,
                    np.where(mask, np.float32(-2.0), np.float32(0.0)),
                    float(advantage),
                )
                for advantage in random.normal(size=MEMBERS)
            ),
        )


CASES = (
    Case("prompts of 12 tokens, answers of 6", "tiny", 12, 6),
    Case("prompts of 256 tokens, answers of 6", "tiny", 256, 6),
    Case("prompts of 100 tokens, answers of 60", "tiny", 100, 60),
    Case("Qwen2.5-0.5B cut to 4 layers, 1 group, prompts of 256, answers of 60", "qwen2-wide", 256, 60, groups=1),
)

WIDE: dict[str, dict[str, Any]] = {
    "qwen2-wide": {
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 4,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }
}
"""Random weights: speed does not depend on them."""


def base_folder(name: str, folder: Path) -> str:
    """The base called ``name``, made below ``folder`` if it does not ship with marlaas."""
    if name not in WIDE:
        return str(load_base(name).path)
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model: Any = Qwen2ForCausalLM
    model(Qwen2Config(**WIDE[name])).to(torch.bfloat16).save_pretrained(folder / name)
    return str(folder / name)
