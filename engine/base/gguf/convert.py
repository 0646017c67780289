"""Makes a base folder in Hugging Face's layout from a GGUF file: configuration, tokenizer, template and weights.

Weights become float32, exactly; what is stored in float16 or bfloat16 stays so. They are read and written some rows at
a time, so that memory does not grow with the model. A key of the file's that is not understood and could matter is
refused by name. ``python -P -m marlaas.engine.base.gguf.convert FILE FOLDER`` does it in a process of its own.
"""

from __future__ import annotations

import json
import logging
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BaseModelError
from ..config import FAMILIES, BaseConfig, read_config
from ..download import printed
from ..files import CONFIG, WHOLE_WEIGHTS
from .brought import EMBEDDING, check_kind
from .file import GgufHeader, read_header
from .tokenizer import LISTS, end_ids, special_ids, tokenizer_files, tokens_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEAD, DIVISORS = "output.weight", "rope_freqs.weight"
TEMPLATE = "tokenizer.chat_template"
CHUNK = 1 << 22
"""Values that are converted at a time."""
AS_THEY_ARE = {1: "F16", 30: "BF16"}
"""Types that safetensors have, too, by their numbers."""
UNDERSTOOD = frozenset(
    (
        *(
            "vocab_size",
            "context_length",
            "embedding_length",
            "block_count",
            "feed_forward_length",
            "attention.head_count",
        ),
        *("attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count"),
        *("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scale_linear", "rope.scaling.type"),
        *("rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor"),
        *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
        *("rope.scaling.finetuned", "attention.causal", "tensor_data_layout"),
    )
)
"""Keys of an architecture that ``config_of`` reads, or that change nothing."""
FOLDER = "Take the model's folder in Hugging Face's layout."
PROBES = (
    "Hello, how are you?  It's 12345.67 dollars (or 3,000 €)!\n\n\tdef f(x):\n        return x+1\n",
    "Ünïcödé, naïve, 日本語の文章, русский текст, हिन्दी, 😀👍🏽.",
    "We'll DON'T I'M camelCase snake_case https://example.org/a?b=1&c=2#d {\"age\": 41}",
    "   leading, trailing   \r\n \n\n end",
)
"""Texts whose ids are compared with llama.cpp's, in Unicode's composed form."""


Named = tuple[str, str, int]
"""A tensor: Hugging Face's name, llama.cpp's, and the heads whose rows llama.cpp orders otherwise (0: as they are)."""


def check_file(path: Path) -> GgufHeader:
    """Raise ``BaseModelError`` unless a base can be made of the file; reads its header and lists alone."""
    header = read_header(path, LISTS)
    check_kind(header, path)
    try:
        _check_architecture(header)
        tokens_of(header)
        if not isinstance(header.fields.get(TEMPLATE), str):
            raise BaseModelError(
                "the GGUF file has no chat template, as files of models that were not trained to converse.",
                "Take an instruct model's file, or the model's folder, and add a chat_template.jinja there.",
            )
        config_of(header)
    except BaseModelError as error:
        raise error.at(str(path)) from error
    return header


def _check_architecture(header: GgufHeader) -> None:
    architecture = str(header.fields.get("general.architecture"))
    if "bert" in architecture or header.number(f"{architecture}.pooling_type"):
        raise BaseModelError("the GGUF file holds a model that computes embeddings of texts and writes none.")
    if architecture not in FAMILIES:
        raise BaseModelError(
            f"the GGUF file is of the architecture {architecture!r}; marlaas makes bases of {', '.join(FAMILIES)}.",
            f"{FOLDER} This file can be its sampler's copy: `[rollout] gguf = FILE` in marlaas.toml.",
        )


def config_of(header: GgufHeader) -> dict[str, Any]:
    """The contents of ``config.json``. Raises ``BaseModelError`` for what is missing, or not understood."""
    fields, architecture = header.fields, str(header.fields["general.architecture"])
    own = {key.partition(".")[2]: value for key, value in fields.items() if key.startswith(f"{architecture}.")}
    for key in sorted(own.keys() - UNDERSTOOD):
        if own[key] not in (0, False, ""):
            raise BaseModelError(
                f"the GGUF file has {architecture}.{key} = {own[key]}, which marlaas does not understand.", FOLDER
            )

    def size(key: str, default: int = 0) -> int:
        value = own.get(key, default)
        if not isinstance(value, int) or value < 1:
            raise BaseModelError(f"the GGUF file has no number {architecture}.{key}.", FOLDER)
        return value

    hidden, heads, rows = size("embedding_length"), size("attention.head_count"), header.shapes.get(EMBEDDING, ())
    width = size("attention.key_length", hidden // heads)
    if {size("attention.value_length", width), size("rope.dimension_count", width)} != {width}:
        raise BaseModelError(
            "the GGUF file's heads have parts without rotary positions, or values of other sizes.", FOLDER
        )
    if len(rows) != 2:
        raise BaseModelError(f"the GGUF file has no {EMBEDDING}.", FOLDER)
    theta = _shortest(own.get("rope.freq_base", 10_000.0))
    config = {
        "architectures": [f"{architecture.capitalize()}ForCausalLM"],
        "model_type": architecture,
        "hidden_size": hidden,
        "intermediate_size": size("feed_forward_length"),
        "num_hidden_layers": size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads),
        "head_dim": width,
        "vocab_size": rows[0],
        "max_position_embeddings": size("context_length"),
        "rms_norm_eps": _shortest(own.get("attention.layer_norm_rms_epsilon", 0.0)),
        "hidden_act": "silu",
        "rope_parameters": {"rope_theta": theta, **_scaling(own, size("context_length"))},
        "tie_word_embeddings": HEAD not in header.shapes,
        "attention_bias": architecture == "llama" and "blk.0.attn_q.bias" in header.shapes,
        "dtype": "float32",
        **{f"{name}_token_id": number for name, number in special_ids(header).items() if name != "unk"},
    }
    return config


def _scaling(own: dict[str, Any], context: int) -> dict[str, Any]:
    """Scaled rotary positions as in ``rope_parameters``; those of Llama 3 are in a tensor (``_llama3``)."""
    from ..rope import stretched

    factor = _shortest(own.get("rope.scaling.factor") or own.get("rope.scale_linear") or 1.0)
    kind = own.get("rope.scaling.type", "linear" if factor != 1.0 else "none")
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {"rope_type": "default"}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise BaseModelError(f"the GGUF file's positions are scaled by {kind}, which marlaas does not compute.", FOLDER)
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": own.get("rope.scaling.original_context_length", context),
        "attention_factor": _shortest(own.get("rope.scaling.attn_factor", 1.0)) * stretched(factor),
    }
    bounds = {key: own.get(f"rope.scaling.yarn_{key}") for key in ("beta_fast", "beta_slow")}
    return scaling | {key: _shortest(value) for key, value in bounds.items() if value is not None}


def _shortest(value: Any) -> float:
    """A float32 as the shortest number that means it: 1e-05, not 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value)))


def _llama3(divisors: NDArray[np.float32], config: BaseConfig) -> dict[str, Any]:
    """Llama 3's scaling from its divisors, which is all that the file has of it.

    Between the two bounds the share of the plain frequency grows in proportion to it, by ``original`` / 2π / (``high``
    − ``low``). Only the ratios of the three are in the divisors, so ``low`` is 1, as in every published model. Raises
    ``BaseModelError`` for other divisors.
    """
    import numpy as np

    from ..rope import frequencies, llama3_divisors

    factor, plain = float(divisors.max()), frequencies(config)
    shares = (1 / divisors.astype(np.float64) - 1 / factor) / (1 - 1 / factor)
    ramp = (shares > 1e-3) & (shares < 1 - 1e-3)
    scaling: dict[str, Any] = {"rope_type": "llama3", "factor": round(factor, 4), "low_freq_factor": 1.0}
    if ramp.sum() > 1:
        slope, start = np.polyfit(plain[ramp], shares[ramp], 1)
        high = round(1 - 1 / float(start), 3)
        original = round(float(slope) * 2 * np.pi * (high - 1))
        scaling |= {"high_freq_factor": high, "original_max_position_embeddings": original}
        expected = llama3_divisors(replace(config, rope_scaling=scaling))
        if expected is not None and np.allclose(expected, divisors, rtol=1e-4):
            return scaling
    raise BaseModelError(f"the GGUF file's {DIVISORS} are not of Llama 3's form.", FOLDER)


def write_folder(path: Path, folder: Path) -> None:
    """Write the base of the GGUF file at ``path`` into an empty ``folder``. Raises ``BaseModelError``, ``OSError``."""
    import numpy as np

    header = check_file(path)
    config = config_of(header)
    write_json(folder / CONFIG, config)
    if DIVISORS in header.shapes:
        divisors = np.concatenate(list(_rows(path, header, DIVISORS))).reshape(-1).view(np.float32)
        if not (divisors == 1).all():
            config["rope_parameters"] |= _llama3(divisors, read_config(folder / CONFIG))
            write_json(folder / CONFIG, config)
    for name, content in tokenizer_files(header).items():
        write_json(folder / name, content)
    write_json(folder / "generation_config.json", {"eos_token_id": end_ids(header)})
    (folder / "chat_template.jinja").write_text(str(header.fields[TEMPLATE]), "utf-8")
    for key, template in header.fields.items():
        if key.startswith(f"{TEMPLATE}.") and (name := key.removeprefix(f"{TEMPLATE}.")).isidentifier():
            (folder / "additional_chat_templates").mkdir(exist_ok=True)
            (folder / "additional_chat_templates" / f"{name}.jinja").write_text(str(template), "utf-8")
    _write_weights(path, header, mapped(header, read_config(folder / CONFIG)), folder / WHOLE_WEIGHTS)
    check_ids(path, folder / "tokenizer.json")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8")


def mapped(header: GgufHeader, config: BaseConfig) -> list[Named]:
    """Every tensor of the model. Raises ``BaseModelError`` for one that is missing, and for one that is not known."""
    from .names import INTERLEAVED, names_of

    names, linear = names_of(config), [f"self_attn.{part}_proj" for part in "qkvo"]
    modules = ["model.embed_tokens", "model.norm", *([] if config.tie_word_embeddings else ["lm_head"])]
    linear += [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["self_attn.q_norm", "self_attn.k_norm"] if config.architecture == "qwen3" else []
    modules += [f"model.layers.{layer}.{part}" for layer in range(config.layers) for part in (*linear, *norms)]
    found = []
    for module in modules:
        rotated = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(module.rpartition(".")[2], 0)
        heads = rotated if config.architecture in INTERLEAVED else 0
        source = names.module(module)
        if f"{source}.weight" not in header.shapes:
            raise BaseModelError(f"the GGUF file lacks the tensor {source}.weight.", FOLDER)
        kinds = ("weight", "bias") if f"{source}.bias" in header.shapes else ("weight",)
        found += [(f"{module}.{kind}", f"{source}.{kind}", heads) for kind in kinds]
    unknown = header.shapes.keys() - {own for _, own, _ in found} - {DIVISORS}
    if unknown:
        raise BaseModelError(
            f"the GGUF file has the tensor {min(unknown)}, which marlaas does not compute in {config.architecture}.",
            FOLDER,
        )
    return found


def _write_weights(path: Path, header: GgufHeader, tensors: list[Named], target: Path) -> None:
    """Write a safetensors file: its header's length, its header, then the tensors' values."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, source, _ in tensors:
        shape, kind = header.shapes[source], AS_THEY_ARE.get(header.places[source][0], "F32")
        start, end = end, end + prod(shape) * (4 if kind == "F32" else 2)
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    names = json.dumps(entries).encode()
    names += b" " * (-len(names) % 8)
    with open(target, "wb") as file:
        file.write(struct.pack("<Q", len(names)) + names)
        for _, source, heads in tensors:
            file.writelines(rows.tobytes() for rows in _rows(path, header, source, heads))


def _rows(path: Path, header: GgufHeader, source: str, heads: int = 0) -> Iterator[NDArray[Any]]:
    """A tensor's values some rows at a time, in Hugging Face's order of rows. Blocks of quantised values lie within
    rows, so that rows are moved before they are dequantised."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

    (number, place), shape = header.places[source], header.shapes[source]
    kind, count = GGMLQuantizationType(number), shape[0] if len(shape) > 1 or heads else 1
    (block, size), width = GGML_QUANT_SIZES[kind], prod(shape) // count
    stored, order = np.memmap(path, np.uint8, "r", place, (count, width // block * size)), np.arange(count)
    if heads:
        order = order.reshape(heads, count // heads // 2, 2).swapaxes(1, 2).reshape(-1)
    for chosen in np.array_split(order, -(-count * width // CHUNK)):
        yield stored[chosen] if number in AS_THEY_ARE else np.asarray(quants.dequantize(stored[chosen], kind), "<f4")


def check_ids(path: Path, tokenizer: Path) -> None:
    """Raise ``BaseModelError`` where llama.cpp reads other tokens from the file; does nothing without llama.cpp."""
    from tokenizers import Tokenizer

    try:
        ours = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the tokenizers package raises bare Exceptions
        raise BaseModelError(f"the GGUF file's tokenizer is damaged: {error}.", FOLDER) from error
    try:
        import llama_cpp.llama_cpp as llama
    except (ImportError, OSError, RuntimeError):
        return
    settings = llama.llama_model_default_params()
    settings.vocab_only = True
    model = llama.llama_model_load_from_file(str(path).encode(), settings)
    if not model:
        raise BaseModelError("llama.cpp cannot read the GGUF file's tokenizer.", "It may be damaged: copy it again.")
    vocabulary = llama.llama_model_get_vocab(model)
    controls = [token.content for token in ours.get_added_tokens_decoder().values()]
    for text in (*PROBES, "".join(f"{token}a" for token in controls[:50])):
        data = text.encode()
        ids = (llama.llama_token * (len(data) + 8))()
        count = llama.llama_tokenize(vocabulary, data, len(data), ids, len(ids), False, True)
        if ids[: max(count, 0)] != ours.encode(text, add_special_tokens=False).ids:
            raise BaseModelError(
                f"the tokenizer made of the GGUF file reads {text[:20]!r} in other tokens than llama.cpp's.",
                FOLDER,
            )


def main() -> None:
    """The process: converts the file of its first argument into the folder of its second."""
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # else it prints what it loads
    try:
        write_folder(Path(sys.argv[1]), Path(sys.argv[2]))
    except OSError as error:
        raise BaseModelError(f"the base cannot be written: {error.strerror}.", "Free some space.") from error
    except NotImplementedError as error:
        hint = "Take a file in another quantisation, such as Q8_0."
        raise BaseModelError(f"the GGUF file cannot be dequantised by the gguf package: {error}.", hint) from error


if __name__ == "__main__":
    sys.exit(printed(main))
