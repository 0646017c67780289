"""The families of base models: what their configuration says, and which control tokens they have under which ids.

Facts of the published models, as their ``config.json`` and ``tokenizer_config.json`` have them. Knows no weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Settings = dict[str, Any]
"""The content of a JSON file."""


@dataclass(frozen=True)
class Shape:
    """How large a model is."""

    layers: int
    hidden: int
    inner: int
    """Width of the feed-forward part."""
    heads: int
    kv_heads: int


SHAPES = {
    "mini": Shape(layers=2, hidden=64, inner=160, heads=4, kv_heads=2),
    "bench": Shape(layers=4, hidden=256, inner=1024, heads=4, kv_heads=2),
    "0.5b": Shape(layers=24, hidden=896, inner=4864, heads=14, kv_heads=2),
    "1.5b": Shape(layers=28, hidden=1536, inner=8960, heads=12, kv_heads=2),
}
"""One for tests, one for benchmarks of real vocabularies, and the sizes of Qwen2.5-0.5B and Qwen2.5-1.5B."""


@dataclass(frozen=True)
class Family:
    """One family's layout."""

    template: str
    """Its chat template, a file in ``templates``."""
    tied: bool
    """Whether the head shares the embedding's weights, by default."""
    rows: int
    """Rows of the embedding, by default."""
    first_control: int
    """Id of the first control token: that many tokens of text come before, and further ones after them."""
    control: tuple[str, ...]
    text_behind: bool
    """Whether rows after the control tokens are tokens of text; else they mean nothing, as in Qwen."""
    spoken: tuple[str, ...]
    """Control tokens that stay in the text when special tokens are left out."""
    bos: str | None
    eos: str
    pad: str
    ends: tuple[str, ...]
    """Tokens that end a reply, as ``generation_config.json`` names them."""
    digits: str
    """How many digits one piece of text may hold, as a regular expression."""
    settings: Callable[[Shape, bool], Settings]
    """The family's part of ``config.json``, of a shape and whether the head is tied."""
    sampling: Settings
    """The sampling settings of ``generation_config.json``."""


QWEN_CONTROL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
SPOKEN = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)


def _reserved(first: int, count: int) -> tuple[str, ...]:
    return tuple(f"<|reserved_special_token_{number}|>" for number in range(first, first + count))


LLAMA_CONTROL = (
    *("<|begin_of_text|>", "<|end_of_text|>", *_reserved(0, 2), "<|finetune_right_pad_id|>", *_reserved(2, 1)),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", *_reserved(3, 245)),
)


def _qwen2(shape: Shape, tied: bool) -> Settings:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "max_position_embeddings": 32768,
        "max_window_layers": shape.layers,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
    }


def _qwen2_5(shape: Shape, tied: bool) -> Settings:
    return _qwen2(shape, tied) | {"max_window_layers": shape.layers - 1, "sliding_window": 32768}


def _qwen3(shape: Shape, tied: bool) -> Settings:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 2 * shape.hidden // shape.heads,
        "max_position_embeddings": 40960,
        "max_window_layers": shape.layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1_000_000,
    }


def _llama3(shape: Shape, tied: bool) -> Settings:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "head_dim": shape.hidden // shape.heads,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "factor": 32.0 if tied else 8.0,  # 3.2 and 3.1
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
    }


def _qwen(template: str, settings: Callable[[Shape, bool], Settings], control: int, sampling: Settings) -> Family:
    names = QWEN_CONTROL[:control]
    return Family(
        template=template,
        tied=True,
        rows=151_936,
        first_control=151_643,
        control=names,
        text_behind=False,
        spoken=tuple(name for name in SPOKEN if name in names),
        bos=None,
        eos="<|im_end|>",
        pad="<|endoftext|>",
        ends=("<|im_end|>", "<|endoftext|>"),
        digits=r"\p{N}",
        settings=settings,
        sampling=sampling,
    )


FAMILIES = {
    "qwen2": _qwen("qwen2", _qwen2, 3, {"repetition_penalty": 1.1, "temperature": 0.7, "top_k": 20, "top_p": 0.8}),
    "qwen2.5": _qwen(
        "qwen2.5", _qwen2_5, 22, {"repetition_penalty": 1.1, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
    ),
    "qwen3": _qwen("qwen3", _qwen3, 26, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
    "llama3": Family(
        template="llama3",
        tied=False,
        rows=128_256,
        first_control=128_000,
        control=LLAMA_CONTROL,
        text_behind=True,
        spoken=(),
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        pad="<|finetune_right_pad_id|>",
        ends=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        digits=r"\p{N}{1,3}",
        settings=_llama3,
        sampling={"temperature": 0.6, "top_p": 0.9},
    ),
}
"""By the family's name on the command line."""
