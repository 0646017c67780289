"""Random small models of every family that the decoder computes, saved as users save theirs, and random groups."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from marlaas.engine.trainer.protocol import TrainGroup, TrainSequence

VOCABULARY = 40
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES: dict[str, tuple[Any, Any]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}

shapes = st.fixed_dictionaries(
    {
        "family": st.sampled_from(sorted(FAMILIES)),
        "hidden_size": st.sampled_from([12, 24, 36]),
        "intermediate_size": st.sampled_from([8, 20, 48]),
        "num_hidden_layers": st.integers(1, 3),
        "num_key_value_heads": st.sampled_from([1, 2]),
        "fold": st.integers(1, 3),
        "head_dim": st.sampled_from([4, 8]),
        "tie_word_embeddings": st.booleans(),
    }
)


def save_model(folder: Path, shape: dict[str, Any], seed: int) -> str:
    """Weights wide enough for every part to matter, norms and biases included."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    options = dict(shape)
    family, fold = options.pop("family"), options.pop("fold")
    options["num_attention_heads"] = fold * options["num_key_value_heads"]
    if family == "qwen2":  # its heads divide the hidden size
        options["hidden_size"] = options["num_attention_heads"] * options.pop("head_dim")
    if family == "llama":
        options |= {"rope_parameters": LLAMA3, "attention_bias": bool(seed % 2)}
    config_class, model_class = FAMILIES[family]
    torch.manual_seed(seed)
    model = model_class(config_class(vocab_size=VOCABULARY, max_position_embeddings=128, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.to(torch.bfloat16).save_pretrained(folder)
    return str(folder)


def random_groups(seed: int, groups: int, members: int, longest: int) -> list[TrainGroup]:
    """One prompt or several, one turn or many, equal answers, answers that begin others, single trained tokens."""
    draw = np.random.default_rng(seed)
    return [_group(draw, number, members, longest) for number in range(groups)]


def _group(draw: np.random.Generator, number: int, members: int, longest: int) -> TrainGroup:
    prompts = [draw.integers(0, 3, draw.integers(1, longest + 1)) for _ in range(int(draw.integers(1, 3)))]
    sequences = []
    for advantage in draw.normal(size=members):
        prompt = prompts[int(draw.integers(len(prompts)))]
        answer = draw.integers(0, 3, draw.integers(1, longest + 1))  # three tokens: many answers are equal
        tokens = np.concatenate([prompt, answer]).astype(np.int32)
        mask = (np.arange(len(tokens)) >= len(prompt)) & ((draw.random(len(tokens)) < 0.7) | (draw.random() < 0.5))
        mask[len(prompt)] = True
        logprobs = (draw.uniform(-5, -0.1, len(tokens)) * mask).astype(np.float32)
        sequences.append(TrainSequence(tokens, mask.astype(np.uint8), logprobs, float(advantage)))
    return TrainGroup(number, tuple(sequences))
