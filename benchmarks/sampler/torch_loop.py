"""A torch loop: transformers and PEFT with a key-value cache, all sequences of an adapter in one batch, one thread."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from .cases import ALPHA, EQUAL, UNEQUAL, Case, rank
from .files import Files


class Torch:
    """``Side`` on torch, at temperature 1."""

    def __init__(self, files: Files) -> None:
        torch.set_num_threads(1)
        base: Any = AutoModelForCausalLM.from_pretrained(files.base.path, dtype=torch.float32)
        self._model: Any = get_peft_model(base, _settings(0), adapter_name="v0").eval()
        for number in range(1, EQUAL + UNEQUAL):
            self._model.add_adapter(f"v{number}", _settings(number))
        self._random = torch.Generator().manual_seed(0)

    @torch.inference_mode()
    def run(self, case: Case, repetition: int) -> float:
        """One adapter after the other: nothing is gained by taking turns."""
        prompts = torch.from_numpy(case.prompts(repetition).astype(np.int64))
        owner = torch.tensor([case.adapter(sequence) for sequence in range(case.sequences)])
        began = time.perf_counter()
        for adapter in np.unique(owner.numpy()).tolist():
            self._model.set_adapter(f"v{adapter}")
            tokens, cache = prompts[owner == adapter], None
            for _ in range(case.tokens):
                out = self._model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = out.past_key_values
                tokens = torch.multinomial(out.logits[:, -1].softmax(-1), 1, generator=self._random)
        return time.perf_counter() - began

    def close(self) -> None:
        """See ``Side``."""
        del self._model


def _settings(number: int) -> LoraConfig:
    return LoraConfig(r=rank(number), lora_alpha=ALPHA, target_modules="all-linear", init_lora_weights=False)


def seconds_of_drawing(logits: torch.Tensor, random: torch.Generator) -> float:
    """How long torch takes to draw a token for each row of ``logits`` and to say its log-probability."""
    began = time.perf_counter()
    logprobs = logits.log_softmax(-1)
    logprobs.gather(1, torch.multinomial(logprobs.exp(), 1, generator=random))
    return time.perf_counter() - began
