"""Makes a whole base model folder with random weights: configuration, tokenizer, chat template, weights in shards.

The folder has Hugging Face's layout. What such a model writes means nothing, but its next-token distributions are
neither flat nor certain.

    python -m tools.random_base --family qwen2.5 --out FOLDER
    python -m tools.random_base --family llama3 --tied --rows 151936 --size bench --shards 2 --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import zlib
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlaas.engine.models.find import BaseModel, load_base

from .families import FAMILIES, SHAPES, Family, Settings, Shape, control_ids, tokenizer, tokenizer_config

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

    ``shape``: one of ``SHAPES`` by name, or any other. ``tied`` and ``rows`` (of the embedding): None is the family's.
    ``changes``: further keys of ``config.json``; None takes a key away. The same arguments make the same files, byte
    for byte. Raises ``ValueError`` for unknown names and for sizes that cannot be.
    """
    if family not in FAMILIES:
        raise ValueError(f"There is no family {family!r}, only {', '.join(FAMILIES)}.")
    if isinstance(shape, str) and shape not in SHAPES:
        raise ValueError(f"There is no size {shape!r}, only {', '.join(SHAPES)}.")
    kind = FAMILIES[family]
    rows = kind.rows if rows is None else rows
    control = control_ids(kind, rows)
    sizes = SHAPES[shape] if isinstance(shape, str) else shape
    settings = config(kind, sizes, kind.tied if tied is None else tied, rows) | (changes or {})
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder / "config.json", {key: value for key, value in settings.items() if value is not None})
    _save(
        folder / "generation_config.json",
        {
            "bos_token_id": control[kind.bos or kind.pad],
            "do_sample": True,
            "eos_token_id": [control[name] for name in kind.ends],
            "pad_token_id": control[kind.pad],
            **kind.sampling,
        },
    )
    tokenizer(kind, rows).save(str(folder / "tokenizer.json"), pretty=False)
    context = int(settings["max_position_embeddings"])
    _save(folder / "tokenizer_config.json", tokenizer_config(kind, rows, context))
    write_weights(folder, tensors(settings), shards, seed)
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


def tensors(settings: Settings) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor, as transformers builds this model, the embedding first and the head last."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    ignored = ("model_type", "auto_map", "rope_scaling", "rope_theta", "architectures")
    sizes = {key: value for key, value in settings.items() if key not in ignored and value is not None}
    with torch.device("meta"):
        build: Any = AutoModelForCausalLM.from_config  # has no annotations
        model = build(AutoConfig.for_model(settings["model_type"], **sizes))
    return {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}


def write_weights(folder: Path, shapes: dict[str, tuple[int, ...]], shards: int, seed: int) -> None:
    """Write bfloat16 weights as ``model.safetensors``, or as ``shards`` files of about one size with an index.

    One shard is in memory at a time. Raises ``ValueError`` for more shards than tensors.
    """
    from safetensors.torch import save_file
    from torch import bfloat16, from_numpy

    if not 1 <= shards <= len(shapes):
        raise ValueError(f"{len(shapes)} tensors cannot be written as {shards} shards.")
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    files = dict(zip(shapes, split(list(sizes.values()), shards), strict=True))
    hidden = shapes["model.embed_tokens.weight"][1]
    for number in range(shards):
        part = {}
        for name in (name for name in shapes if files[name] == number):
            values = from_numpy(draw(name, shapes[name], hidden, seed)).to(bfloat16)
            part[name] = values.reshape(shapes[name])
        save_file(part, folder / _file(number, shards), metadata={"format": "pt"})
    if shards > 1:
        index = {name: _file(number, shards) for name, number in files.items()}
        total = {"total_size": 2 * sum(sizes.values())}
        _save(folder / "model.safetensors.index.json", {"metadata": total, "weight_map": index})


def _file(number: int, shards: int) -> str:
    return f"model-{number + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"


def split(sizes: Sequence[int], shards: int) -> list[int]:
    """The shard of each tensor, in their order and none empty; a shard ends at its share of all values."""
    numbers: list[int] = []
    for place, before in enumerate(accumulate([0, *sizes[:-1]])):
        last = numbers[-1] if numbers else 0
        full = bool(numbers) and before * shards >= sum(sizes) * (last + 1)
        short = len(sizes) - place == shards - 1 - last
        numbers.append(last + (last + 1 < shards and (full or short)))
    return numbers


def draw(name: str, shape: tuple[int, ...], hidden: int, seed: int) -> NDArray[np.float32]:
    """A tensor's values, from its own stream: neither shards nor other tensors change it."""
    values = np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode())])).standard_normal(
        math.prod(shape), np.float32
    )
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        return values * np.float32(LOGITS / math.sqrt(hidden))
    if name == "model.norm.weight":  # turns directions around: else a model with a tied head repeats what came in
        return values
    if name.endswith(".bias"):
        return values * np.float32(BIASES)
    return values * np.float32(NORMS) + np.float32(1.0) if len(shape) == 1 else values / np.float32(math.sqrt(shape[1]))


def _save(path: Path, content: Settings) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


def main(words: Sequence[str] | None = None) -> int:
    """Write the folder; the exit code is 2 if it cannot be made."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.random_base", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=FAMILIES, required=True, help="the layout")
    parser.add_argument("--size", choices=SHAPES, default="mini", help="how large (default: mini)")
    parser.add_argument("--tied", action=argparse.BooleanOptionalAction, help="the head is the embedding")
    parser.add_argument("--rows", type=int, help="of the embedding (default: the family's)")
    parser.add_argument("--shards", type=int, default=2, help="files of weights (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: 0)")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    options = vars(parser.parse_args(words))
    try:
        base = make_base(options.pop("out"), options.pop("family"), options.pop("size"), **options)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{base.path}: {base.config.architecture}, {base.config.vocab_size} tokens, {base.fingerprint}")
    return 0
