"""A base made of a GGUF file is the base that the file was made of: ids, logits, ends, template; else it is refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.convert import PROBES, check_file, main, write_folder
from marlaas.engine.models.find import load_base
from marlaas.engine.models.gguf import read_header
from marlaas.engine.models.weights import Weights, check_base
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.llama.native import llama
from tools.random_base.families import Shape

from ..hugging_face import logits_of
from .written import make, write

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2.5", {}),
    "qwen2-yarn": (
        "qwen2.5",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    ),
    "qwen3": ("qwen3", {}),
    "llama-untied": ("llama3", {"rope_scaling": None}),
    "llama-linear": ("llama3", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "llama3": ("llama3", {"rope_scaling": {"rope_type": "llama3", **LLAMA3}}),
}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What's 12 + 345? <think>no</think>\n\n  ok"},
]


def converted(path: Path) -> Path:
    folder = path.with_suffix(".made")
    folder.mkdir()
    write_folder(path, folder)
    return folder


def model_of(folder: Path, **more: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_logits_are_those_of_the_folder(kind: str, tmp_path: Path) -> None:
    family, changes = KINDS[kind]
    shape = Shape(layers=2, hidden=64 if "llama" not in kind else 256, inner=96, heads=4, kv_heads=2)
    original = tmp_path / "original"
    made = converted(make(original, family, shape, **changes))
    base = load_base(made)
    check_base(base)
    Renderer(base.path)
    tokens = np.random.default_rng(0).integers(0, 600, 180).astype(np.int32)
    np.testing.assert_array_equal(logits_of(model_of(made), tokens), logits_of(model_of(original), tokens))

    ours, theirs = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (made, original))
    for text in PROBES:
        assert ours.encode(text).ids == theirs.encode(text).ids
    read: list[Any] = [AutoTokenizer.from_pretrained(folder) for folder in (made, original)]
    written = [list(tokenizer.apply_chat_template(TALK)["input_ids"]) for tokenizer in read]
    assert written[0] == written[1]

    def special(tokenizer: Tokenizer) -> dict[str, bool]:
        return {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}

    assert special(ours) == special(theirs)
    ends = [json.loads((folder / "generation_config.json").read_text())["eos_token_id"] for folder in (made, original)]
    assert set(ends[0]) == set(ends[1])


def test_divisors_mean_the_scaling_that_made_them(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", **LLAMA3, "factor": 32.0}
    shape = Shape(layers=1, hidden=128, inner=32, heads=2, kv_heads=1)
    made = converted(make(tmp_path / "original", "llama3", shape, rope_scaling=scaling, rope_theta=500_000.0))
    assert load_base(made).config.rope_scaling == scaling
    folder = tmp_path / "original"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_scaling": scaling | {"high_freq_factor": 1.001}}))
    write(folder, tmp_path / "other.gguf")
    with pytest.raises(BaseModelError, match=r"rope_freqs\.weight are not of Llama 3's form"):
        converted(tmp_path / "other.gguf")


QUANTISED = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q4_k": 15}
"""LLAMA_FTYPE_MOSTLY_… in llama.h."""


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_weights_are_those_that_transformers_reads(kind: str, tmp_path: Path) -> None:
    shape = Shape(layers=2, hidden=256, inner=256, heads=4, kv_heads=2)
    plain, path = make(tmp_path / "original", "llama3", shape, rope_scaling=None), tmp_path / f"{kind}.gguf"
    library = llama()
    settings = library.llama_model_quantize_default_params()
    settings.ftype = QUANTISED[kind]
    assert library.llama_model_quantize(str(plain).encode(), str(path).encode(), settings) == 0
    made = Weights(load_base(converted(path)).weight_files)
    theirs = model_of(tmp_path, gguf_file=path.name).state_dict()
    assert set(made) == set(theirs)
    for name in made:
        np.testing.assert_array_equal(made.load(name), theirs[name].float().numpy())
    kinds = {gguf.GGMLQuantizationType(number).name for number, _ in read_header(path).places.values()}
    assert kind.upper() in kinds


def test_a_sentencepiece_tokenizer_reads_as_llama_cpp_does(tmp_path: Path) -> None:
    """``write_folder`` itself compares the ids with llama.cpp's."""
    path = make(tmp_path / "original", "llama3", rope_scaling=None)
    words = [
        "▁",
        *"abcdefghijklmnopqrstuvwxyzH,",
        "▁H",
        "el",
        "lo",
        "▁Hel",
        "▁Hello",
        "ho",
        "▁ho",
        "▁are",
        "ar",
        "are",
        "▁a",
    ]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokens += [f"▁unused{number}" for number in range(640 - len(tokens))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    write(
        tmp_path / "original",
        path,
        tokenizer__ggml__model="llama",
        tokenizer__ggml__pre="default",
        tokenizer__ggml__tokens=tokens,
        tokenizer__ggml__token_type=kinds,
        tokenizer__ggml__scores=[-float(max(0, number - 258)) for number in range(640)],
        tokenizer__ggml__merges=None,
        tokenizer__ggml__bos_token_id=1,
        tokenizer__ggml__eos_token_id=2,
        tokenizer__ggml__padding_token_id=0,
        tokenizer__chat_template="{{ bos_token }}{% for m in messages %}{{ m['content'] }}</s>{% endfor %}",
    )
    made = converted(path)
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    ids = tokenizer.encode("Hello, how are you? 日本").ids
    assert ids[:2] == [1, tokens.index("▁Hello")] and tokenizer.decode(ids) == "Hello, how are you? 日本"
    check_base(load_base(made))


def test_further_templates_and_half_precision_stay(tmp_path: Path) -> None:
    folder, path = tmp_path / "original", tmp_path / "original.gguf"
    make(folder, "qwen3")
    write(folder, path, tokenizer__chat_template__tool_use="{{ tools }}", tokenizer__ggml__add_bos_token=False)
    half, library = tmp_path / "half.gguf", llama()
    settings = library.llama_model_quantize_default_params()
    settings.ftype = 1  # float16
    assert library.llama_model_quantize(str(path).encode(), str(half).encode(), settings) == 0
    made = converted(half)
    assert (made / "additional_chat_templates" / "tool_use.jinja").read_text() == "{{ tools }}"
    assert (made / "model.safetensors").stat().st_size < 0.6 * sum(
        4 * np.prod(shape) for shape in read_header(half).shapes.values()
    )
    theirs = model_of(tmp_path, gguf_file=half.name).state_dict()
    ours = Weights(load_base(made).weight_files)
    assert all(np.array_equal(ours.load(name), theirs[name].float().numpy()) for name in ours)


def test_what_is_no_base_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder, path = tmp_path / "original", tmp_path / "other.gguf"
    make(folder, "llama3", rope_scaling=None)
    for fields, words in (
        ({"general__architecture": "gemma3"}, r"architecture 'gemma3'; marlaas makes bases of qwen3, qwen2, llama\."),
        ({"general__architecture": "clip"}, r"reads pictures \(mmproj\)\. Name the file of its language model"),
        ({"general__type": "mmproj"}, "reads pictures"),
        ({"general__type": "adapter"}, "holds no model: its type is adapter"),
        ({"general__architecture": "nomic-bert"}, "computes embeddings of texts"),
        ({"arch__pooling_type": 1}, "computes embeddings of texts"),
        ({"split__count": 3}, "is one of 3 parts of a GGUF file. Merge them with"),
        ({"tokenizer__chat_template": None}, "has no chat template, as files of models that were not trained to"),
        ({"tokenizer__ggml__tokens": None}, "holds no tokenizer"),
        ({"tokenizer__ggml__model": "none"}, "holds no tokenizer"),
        ({"arch__expert_count": 8}, r"has llama\.expert_count = 8, which marlaas does not understand"),
        ({"arch__attention__sliding_window": 4096}, r"attention\.sliding_window = 4096"),
        ({"arch__block_count": None}, r"no number llama\.block_count"),
        ({"arch__rope__dimension_count": 8}, "parts without rotary positions"),
        ({"arch__rope__scaling__type": "longrope", "arch__rope__scaling__factor": 2.0}, "scaled by longrope"),
    ):
        write(folder, path, **fields)
        with pytest.raises(BaseModelError, match=words) as raised:
            check_file(path)
        assert raised.value.where == str(path)
    damaged: tuple[tuple[dict[str, Any], tuple[str, ...], str], ...] = (
        ({"tokenizer__ggml__pre": "klingon"}, (), "tokenizer splits text as 'klingon', which marlaas does not know"),
        ({"tokenizer__ggml__model": "bert"}, (), "tokenizer is of the kind 'bert'"),
        ({}, ("blk.1.ffn_up.weight",), r"lacks the tensor blk\.1\.ffn_up\.weight"),
        ({}, ("extra.weight",), r"has the tensor extra\.weight, which marlaas does not compute in llama"),
        ({"tokenizer__ggml__merges": ["日 本"]}, (), "tokenizer is damaged: Token .* out of vocabulary"),
    )
    for fields, lacking, words in damaged:
        write(folder, path, lacking, **fields)
        shutil.rmtree(path.with_suffix(".made"), ignore_errors=True)
        with pytest.raises(BaseModelError, match=words):
            converted(path)


def test_files_that_are_damaged_or_of_other_versions_are_refused(tmp_path: Path) -> None:
    data = make(tmp_path / "original", "qwen3").read_bytes()
    path = tmp_path / "other.gguf"
    for content, words in (
        (data[:-1], "it was not copied whole"),
        (data[:3000], "ends within its header"),
        (b"", "is no GGUF file"),
        (b"PK" + data, "is no GGUF file: it does not begin with these four letters"),
        (data[:4] + b"\1\0\0\0" + data[8:], "is a GGUF file of version 1"),
        (data[:4] + b"\0\0\0\3" + data[8:], "is a GGUF file for big-endian processors"),
    ):
        path.write_bytes(content)
        with pytest.raises(BaseModelError, match=words):
            check_file(path)


def test_a_type_that_gguf_only_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "original", "qwen3")

    def none(data: Any, kind: gguf.GGMLQuantizationType) -> Any:
        raise NotImplementedError(f"Dequantization for {kind.name} is not yet implemented")

    monkeypatch.setattr(gguf.quants, "dequantize", none)
    monkeypatch.setattr(sys, "argv", ["convert", str(path), str(tmp_path)])
    with pytest.raises(BaseModelError, match=r"by the gguf package: Dequantization for F32 .* in another quantisation"):
        main()
