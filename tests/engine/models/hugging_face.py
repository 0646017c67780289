"""Small random models that transformers and PEFT make and run: the oracle for a user's GGUF files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model
from transformers.utils import logging

Array = NDArray[np.float32]
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}


def make(model_of: Callable[[], Any], folder: Path) -> Any:
    """Save a random model in ``folder``; biases and norms are random, too, so that a lost one is noticed."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = model_of().eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder, dtype=torch.float32)


def with_lora(model: Any, alpha: int = 8) -> tuple[Any, dict[str, Array]]:
    """A random adapter on every linear layer; also under the names of a state file."""
    torch.manual_seed(1)
    config = LoraConfig(r=4, lora_alpha=alpha, target_modules="all-linear", lora_dropout=0.0)
    adapted = get_peft_model(model, config).eval()
    adapter: dict[str, Array] = {}
    for name, parameter in adapted.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(parameter, 0.0, 0.2)
            key = name.removeprefix("base_model.model.").removesuffix(".default.weight")
            adapter[key] = parameter.detach().numpy().copy()
    return adapted, adapter


def logits_of(model: Any, tokens: NDArray[np.int32]) -> Array:
    """float32 (T, V)"""
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(tokens)[None].long()).logits[0]
    return np.asarray(logits.numpy(), np.float32)
