"""A random Qwen3 small enough for unit tests, saved as users save theirs: a folder, in bf16."""

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

VOCABULARY = 32


def save_tiny_qwen(folder: Path, seed: int = 0, hidden: int = 32) -> str:
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.3,  # wide, so that logits differ and adapters matter
    )
    model: Any = Qwen3ForCausalLM
    model(config).to(torch.bfloat16).save_pretrained(folder)
    return str(folder)
