"""The network: Qwen3 architecture, small enough for one core."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from tools.base.vocabulary import CONTEXT, SIZE

Network = Any
"""A Qwen3ForCausalLM. Its constructor and `generate` have no annotations that a type checker can follow."""

_new: Any = Qwen3ForCausalLM


def build(tokenizer: PreTrainedTokenizerBase) -> Network:
    """A freshly initialised model; seed torch before."""
    config = Qwen3Config(
        vocab_size=SIZE,
        hidden_size=160,
        num_hidden_layers=4,
        intermediate_size=512,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return _new(config)


def load(folder: Path) -> Network:
    """A saved model as it is used: its rounded weights, widened to float32."""
    return _new.from_pretrained(folder, dtype=torch.float32)
