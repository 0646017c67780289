"""A base's ``config.json``: sizes and switches, with transformers 5's defaults.

Refuses what marlaas does not compute. Also precisions and samplers. Standard library only.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BaseModelError

FAMILIES = ("qwen3", "qwen2", "llama")
"""Architectures that our GGUF writer and passes cover."""
ALIASES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length"),
}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ROPE_SETTINGS = {"llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")}
ROPE_COMPUTED = ("default", *ROPE_SETTINGS)
ROPE_TYPES = (*ROPE_COMPUTED, "linear", "dynamic", "yarn", "longrope")
"""The further ones are transformers'."""

COMPUTED = {
    "hidden_act": ("silu", "swish"),
    "partial_rotary_factor": (1.0, None),
}
"""llama.cpp's graphs have SiLU built in. transformers ignores a partial rotation for some types of position and fails
for others."""
_READ = """
model_type hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size
max_position_embeddings vocab_size rms_norm_eps tie_word_embeddings hidden_act partial_rotary_factor rope_theta
rope_scaling rope_parameters original_max_position_embeddings quantization_config
"""
READ = frozenset(_READ.split())
SLIDING = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
READ_BY = {"llama": ("attention_bias", "mlp_bias"), "qwen2": SLIDING, "qwen3": ("attention_bias", *SLIDING)}
"""Further keys of one architecture in transformers."""
_HARMLESS = """
architectures model_name name_or_path tokenizer_class generation_config transformers_version unsloth_version
unsloth_fixed transformers.js_config is_llama_config id2label label2id num_labels problem_type finetuning_task
task_specific_params prefix

bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id forced_bos_token_id
forced_eos_token_id bad_words_ids suppress_tokens begin_suppress_tokens

dtype torch_dtype use_bfloat16 initializer_range attention_dropout hidden_dropout resid_pdrop embd_pdrop
classifier_dropout pretraining_tp attn_implementation chunk_size_feed_forward pruned_heads torchscript use_mrope

use_cache max_length min_length max_new_tokens do_sample temperature top_k top_p typical_p num_beams num_beam_groups
diversity_penalty repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size early_stopping
num_return_sequences remove_invalid_values exponential_decay_length_penalty

return_dict return_dict_in_generate output_attentions output_hidden_states output_scores tf_legacy_loss is_decoder
"""
HARMLESS = frozenset(_HARMLESS.split())
"""Cannot change a log-probability here: names, token ids, training, generation, results' forms."""
PLAIN: tuple[Any, ...] = (None, False, [], {}, "")


@dataclass(frozen=True)
class BaseConfig:
    """The sizes for GGUF writer, sampler and trainer."""

    architecture: str
    """Hugging Face's ``model_type``: qwen3, qwen2, llama, …"""
    hidden_size: int
    intermediate_size: int
    """0: unknown, never for ``FAMILIES``. ``norm_eps`` likewise."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] = field(default_factory=dict)
    """Empty for plain rotary positions, else ``rope_type`` and its parameters."""
    tie_word_embeddings: bool = False
    sliding_window: bool = False
    attention_bias: bool = False
    """Of attention's outputs; queries and keys: ``weights.tensor_shapes``."""
    mlp_bias: bool = False
    experts: int = 0
    """Per layer; 0: no mixture."""
    unread: tuple[str, ...] = ()
    """Settings unread by marlaas and transformers, as in ``clip_qkv = 8``."""


def read_config(path: Path) -> BaseConfig:
    """Read ``config.json``, with old (``rope_theta``, ``rope_scaling``) or new (``rope_parameters``) keys.

    Raises ``BaseModelError`` if unreadable, no language model, or without a needed size.
    """
    try:
        raw = json.loads(path.read_text("utf-8"))
        if "text_config" in raw:
            raise BaseModelError(
                "describes a model of several modalities; marlaas reads models of text alone.",
                "Save its language model in a folder of its own.",
                where=str(path),
            )
        if raw.get("quantization_config") or raw.get("quantization"):
            method = str((raw.get("quantization_config") or {}).get("quant_method", ""))
            raise quantised(path.parent, f"{path.name} has a quantization_config", method)
        return _config(raw)
    except BaseModelError:
        raise
    except _Refused as error:
        raise BaseModelError(
            f"sets what marlaas does not compute: {error}.",
            "A base is refused where marlaas would compute something else than transformers; choose another base.",
            where=str(path),
        ) from None
    except OSError as error:
        raise BaseModelError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    except KeyError as error:
        raise BaseModelError(f"has no {error}; marlaas reads decoder-only language models.", where=str(path)) from error
    except (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
        raise BaseModelError(f"is no model configuration: {error}.", where=str(path)) from error


class _Refused(Exception):
    """A setting that is not computed."""


def _config(raw: dict[str, Any]) -> BaseConfig:
    architecture = str(raw["model_type"])
    known = architecture in FAMILIES
    for key, values in COMPUTED.items() if known else ():
        value = raw.get(key, values[0])
        if value not in values:
            raise _Refused(f"{key} is {value!r}; for {architecture!r} marlaas computes {values[0]!r} only")
    heads, hidden = _size(raw, "num_attention_heads"), _size(raw, "hidden_size")
    layers, context = _size(raw, "num_hidden_layers"), _size(raw, "max_position_embeddings")
    theta, rope = _rope(raw, known, context)
    size = int(raw.get("head_dim", 128 if architecture == "qwen3" else None) or hidden // heads)
    kv_heads = int(raw.get("num_key_value_heads", 32 if known and architecture != "llama" else None) or heads)
    if known and (size % 2 or kv_heads < 1 or heads % kv_heads):
        raise _Refused(f"head_dim is {size}, with {heads} heads of queries and {kv_heads} of keys")
    epsilon = _positive(raw.get("rms_norm_eps", 1e-6), "rms_norm_eps") if known else raw.get("rms_norm_eps") or 0.0
    return BaseConfig(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=_size(raw, "intermediate_size") if known else int(raw.get("intermediate_size") or 0),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=size,
        vocab_size=_size(raw, "vocab_size"),
        context_length=context,
        norm_eps=float(epsilon),
        rope_theta=theta,
        rope_scaling=rope,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        sliding_window=_slides(raw, architecture, layers, context),
        attention_bias=bool(raw.get("attention_bias")) and architecture in ("llama", "qwen3"),
        mlp_bias=bool(raw.get("mlp_bias")) and architecture == "llama",
        unread=_unread(raw, architecture) if known else (),
        experts=max(int(raw.get(key) or 0) for key in EXPERTS),
    )


def _rope(raw: dict[str, Any], known: bool, context: int) -> tuple[float, dict[str, Any]]:
    """As transformers' ``convert_rope_params_to_dict``. ``rope_scaling`` replaces ``rope_parameters``; only
    ``rope_theta`` fills a gap."""
    rope = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
    nested = [key for key, value in rope.items() if isinstance(value, dict)]
    if nested and known:
        raise _Refused(f"rotary positions have settings by kind of layer ({nested[0]})")
    theta = rope.pop("rope_theta", raw.get("rope_theta", 10_000.0))
    kind = rope.pop("rope_type", None) or rope.get("type") or "default"
    rope.pop("type", None)
    partial = rope.pop("partial_rotary_factor", None)
    if not known:
        return float(theta or 10_000.0), {} if kind == "default" else {"rope_type": kind, **rope}
    if partial not in COMPUTED["partial_rotary_factor"]:
        raise _Refused(f"partial_rotary_factor is {partial!r}; marlaas computes 1.0 only")
    if kind not in ROPE_TYPES:
        raise _Refused(f"rotary positions are of the unknown type {kind!r}")
    if kind == "llama3":
        own = rope.get("original_max_position_embeddings", context)
        rope["original_max_position_embeddings"] = raw.get("original_max_position_embeddings", own)
    missing = [key for key in ROPE_SETTINGS.get(kind, ()) if rope.get(key) is None]
    if missing:
        raise _Refused(f"rotary positions of type {kind!r} have no {missing[0]}")
    return _positive(theta, "rope_theta"), {} if kind == "default" else {"rope_type": kind, **rope}


def _slides(raw: dict[str, Any], architecture: str, layers: int, context: int) -> bool:
    if architecture not in FAMILIES:
        return bool(raw.get("use_sliding_window", False))
    if architecture == "llama":
        return False
    window = raw.get("sliding_window", 4096) if raw.get("use_sliding_window") else None
    if raw.get("layer_types"):
        return any(kind != "full_attention" for kind in raw["layer_types"][:layers])
    return window is not None and window < context and int(raw.get("max_window_layers", 28)) < layers


def _unread(raw: dict[str, Any], architecture: str) -> tuple[str, ...]:
    read = READ | HARMLESS | {*READ_BY[architecture]}
    found = {key: value for key, value in raw.items() if key not in read and not key.startswith("_")}
    if set(found.get("layer_types") or ()) <= {"full_attention"}:
        found.pop("layer_types", None)
    return tuple(f"{key} = {json.dumps(value)[:60]}" for key, value in found.items() if value not in PLAIN)


def _size(raw: dict[str, Any], key: str) -> int:
    """Raises ``KeyError`` or ``ValueError``."""
    for name in (key, *ALIASES.get(key, ())):
        if raw.get(name) is not None:
            size = int(raw[name])
            if size < 1:
                raise ValueError(f"{name} is {size}")
            return size
    raise KeyError(key)


def _positive(value: Any, name: str) -> float:
    """Raises ``ValueError``: llama.cpp ends its process for others."""
    number = float(value)
    if not 0.0 < number < math.inf:
        raise ValueError(f"{name} is {number}")
    return number


def unsupported(config: BaseConfig) -> str:
    """Why our passes cannot compute this base, as a clause; empty: they can."""
    if config.architecture not in FAMILIES:
        return f"its architecture is {config.architecture}"
    if config.rope_scaling.get("rope_type", "default") not in ROPE_COMPUTED:
        return f"its positions are scaled by {config.rope_scaling['rope_type']}"
    return "its attention has a sliding window" if config.sliding_window else ""


SCALES = {
    "fp8": (".weight_scale", "_scale_inv", ".input_scale", ".activation_scale"),
    "bitsandbytes": (".absmax", ".quant_map", ".quant_state", ".SCB"),
    "gptq or awq": (".qweight", ".qzeros", ".g_idx", ".scales", ".weight_packed", ".weight_zero_point"),
    "mxfp4": ("_blocks", "proj_scales"),
}


def quantised_as(name: str, dtype: str) -> str:
    """A tensor's quantisation method; empty: plain."""
    if dtype.startswith(("F8", "F4")):
        return "fp8"
    return next((method for method, ends in SCALES.items() if any(end in name for end in ends)), "")


def quantised(folder: Path, why: str, method: str = "") -> BaseModelError:
    """The refusal of quantised weights."""
    return BaseModelError(
        f"the weights are quantised{f' ({method})' if method else ''}: {why}. marlaas trains on plain weights.",
        "Take the model that they were made from, or make them plain with the line of Python in docs/guides/models.md."
        " If the weights are plain already, take quantization_config out of config.json.",
        where=str(folder),
    )


# --- precisions and samplers ---

PRECISIONS = ("f32", "f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m")
"""llama.cpp's, from exact to small."""
GGUF = "gguf"
"""The base's own GGUF file (``BaseModel.gguf``), in its precision."""
BFLOAT16 = "bf16"
WRITTEN = ("f32", "f16")
"""Ours; llama.cpp's quantizer makes others from float32."""
REPEATABLE = ("f32", "f16", "q8_0", BFLOAT16)
"""Results the same to the last bit under any load. Otherwise llama.cpp multiplies eight rows or more differently; so
does torch in bfloat16, except for ``alike`` turns."""
BITS = {"f32": 32.0, "f16": 16.0, BFLOAT16: 16.0, "q8_0": 8.5, "q6_k": 6.5625, "q5_k_m": 5.7, "q4_k_m": 4.85}
"""Per weight, with block scales; mixed types: for usual shapes."""


def halves_memory(weights: str) -> bool:
    """True if llama.cpp keeps float16 keys and values on a processor, even for ``exact`` attention.

    For all but float32 matrices: the others round more than that.
    """
    return weights != "f32"


def nearest(bits: float) -> str:
    """The precision closest to ``bits`` per weight."""
    return min(PRECISIONS, key=lambda precision: abs(BITS[precision] - bits))


@dataclass(frozen=True)
class SamplerTraits:
    """What a kind of sampler reads and can."""

    weights: tuple[str, ...] = ()
    """Under [rollout], next to ``auto``."""
    gguf: bool = False
    """Reads a GGUF; others the base, on a processor in float32 or bfloat16."""
    cards: bool = True
    repeats: bool = True
    """Repeats its bits on a processor under any load."""
    conversations: int = 128


SAMPLERS = {
    "vllm": SamplerTraits(repeats=False),
    "llama.cpp": SamplerTraits(weights=(*PRECISIONS, GGUF), gguf=True),
    "torch": SamplerTraits(weights=(BFLOAT16,), cards=False, conversations=384),
}
"""On cards the first are preferred.

Rows cost a torch pass little, and kept slots avoid reading again: with 32 tasks of slow tools 384 conversations took
half the processor time of 128; more gained nothing.
"""
