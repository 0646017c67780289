"""Makes a whole base model folder with random weights: configuration, tokenizer, chat template, weights in shards.

The folder has Hugging Face's layout. What such a model says means nothing, but its next-token distributions are neither
flat nor certain.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from marlaas.engine.base import BaseConfig, BaseModel, linear_shapes, load_base, read_config
from tools.random_base.families import FAMILIES, SHAPES, Family, Settings, Shape
from tools.random_base.tokenizer import control_ids, tokenizer, tokenizer_config
from tools.random_base.weights import Spec, write_weights

LOGITS = 3.5
"""Standard deviation of the logits. Over 151,936 tokens the likeliest then has a few per cent."""
BIASES = 0.3
NORMS = 0.1
"""Standard deviation of biases, and of the weights of norms around 1: large enough that a lost tensor is noticed."""


def make_base(
    folder: Path,
    family: str = "qwen2.5",
    shape: Shape | str = "mini",
    *,
    tied: bool | None = None,
    rows: int | None = None,
    shards: int = 2,
    seed: int = 0,
    changes: Settings | None = None,
) -> BaseModel:
    """Write a base of one of ``FAMILIES`` into ``folder``, which is made if it lacks.

    ``shape``: one of ``SHAPES`` by name, or any other. ``tied`` and ``rows`` (of the embedding): the family's where
    they are None. ``changes``: further keys of ``config.json``; None takes a key away. The same arguments make the same
    files, byte for byte. Raises ``ValueError`` for unknown names and for sizes that cannot be.
    """
    if family not in FAMILIES:
        raise ValueError(f"There is no family {family!r}, only {', '.join(FAMILIES)}.")
    kind = FAMILIES[family]
    rows = kind.rows if rows is None else rows
    control = control_ids(kind, rows)
    settings = config(kind, _shape(shape), kind.tied if tied is None else tied, rows) | (changes or {})
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder / "config.json", {key: value for key, value in settings.items() if value is not None})
    _save(folder / "generation_config.json", generation_config(kind, control))
    _save(folder / "tokenizer.json", tokenizer(kind, rows))
    context = int(settings["max_position_embeddings"])
    _save(folder / "tokenizer_config.json", tokenizer_config(kind, rows, context))
    write_weights(folder, specs(read_config(folder / "config.json"), settings), shards, seed)
    return load_base(folder)


def config(family: Family, shape: Shape, tied: bool, rows: int) -> Settings:
    """The content of ``config.json``."""
    control = control_ids(family, rows)
    return {
        **family.settings(shape, tied),
        "attention_dropout": 0.0,
        "bos_token_id": control[family.bos or family.pad],
        "eos_token_id": control[family.eos],
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0",
        "use_cache": True,
        "vocab_size": rows,
    }


def generation_config(family: Family, control: dict[str, int]) -> Settings:
    """The content of ``generation_config.json``."""
    return {
        "bos_token_id": control[family.bos or family.pad],
        "do_sample": True,
        "eos_token_id": [control[name] for name in family.ends],
        "pad_token_id": control[family.pad],
        **family.sampling,
    }


def specs(sizes: BaseConfig, settings: Settings) -> list[Spec]:
    """Every tensor of the model in the order of its layers, the embedding first and the head last."""
    hidden = sizes.hidden_size
    head = LOGITS / math.sqrt(hidden)
    linear = linear_shapes(sizes)
    biased: tuple[str, ...] = ("q_proj", "k_proj", "v_proj") if sizes.architecture == "qwen2" else ()
    if settings.get("attention_bias"):
        biased = ("q_proj", "k_proj", "v_proj", "o_proj")
    if settings.get("mlp_bias"):
        biased += ("gate_proj", "up_proj", "down_proj")
    made = [Spec("model.embed_tokens.weight", (sizes.vocab_size, hidden), head)]
    for layer in range(sizes.layers):
        prefix = f"model.layers.{layer}"
        for module, (out, into) in linear.items():
            if module.startswith(f"{prefix}."):
                made.append(Spec(f"{module}.weight", (out, into), 1 / math.sqrt(into)))
                if module.endswith(biased):
                    made.append(Spec(f"{module}.bias", (out,), BIASES))
        norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
        if sizes.architecture == "qwen3":
            norms |= {"self_attn.q_norm": sizes.head_dim, "self_attn.k_norm": sizes.head_dim}
        made.extend(Spec(f"{prefix}.{norm}.weight", (size,), NORMS, 1.0) for norm, size in norms.items())
    # The last norm turns directions around: without it a model with a tied head repeats the token that came in.
    made.append(Spec("model.norm.weight", (hidden,), 1.0))
    if not sizes.tie_word_embeddings:
        made.append(Spec("lm_head.weight", (sizes.vocab_size, hidden), head))
    return made


def _shape(shape: Shape | str) -> Shape:
    if isinstance(shape, Shape):
        return shape
    if shape not in SHAPES:
        raise ValueError(f"There is no size {shape!r}, only {', '.join(SHAPES)}.")
    return SHAPES[shape]


def _save(path: Path, content: Settings) -> None:
    """Write JSON without indentation, for a tokenizer's is large, and with letters as they are."""
    indent = None if path.name == "tokenizer.json" else 2
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", "utf-8")
