"""GGUF files: ours mean to llama.cpp what the folder means to transformers; a user's becomes a base, or is refused."""

from __future__ import annotations

import json
import shutil
import string
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from marlaas.engine.errors import AdapterError, BaseModelError
from marlaas.engine.models.convert import check_file, main, write_folder
from marlaas.engine.models.find import load_base
from marlaas.engine.models.gguf import names_of, read_header, write_adapter, write_base
from marlaas.engine.models.tokenizer import PROBES
from marlaas.engine.models.weights import Weights, check_base, linear_shapes
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.llama.native import llama
from tests.engine.models.gguf.brought import save
from tests.engine.models.gguf.written import make as file_of, write as write_file
from tests.engine.models.hugging_face import logits_of
from tests.examples import examples
from tools.random_base.families import Shape


def test_an_adapter_of_another_shape_is_refused(tmp_path: Path) -> None:
    config = load_base("tiny").config
    adapter: dict[str, NDArray[np.float32]] = {}
    for module, (out, into) in linear_shapes(config).items():
        adapter[f"{module}.lora_A"] = np.ones((4, into), np.float32)
        adapter[f"{module}.lora_B"] = np.ones((out, 4), np.float32)
    a, b = (f"model.layers.1.mlp.down_proj.lora_{half}" for half in "AB")
    for wrong in (
        {},
        {**adapter, a: adapter[a][:, :-1]},
        {**adapter, b: adapter[b][:-1]},
        {name: array for name, array in adapter.items() if name != b},
        {**adapter, "model.layers.99.mlp.up_proj.lora_A": adapter[a]},
        {
            **adapter,
            "lm_head.lora_A": np.ones((4, config.hidden_size), np.float32),
            "lm_head.lora_B": np.ones((config.vocab_size, 4), np.float32),
        },
        {**adapter, "model.norm.weight": np.zeros(64, np.float32)},
    ):
        with pytest.raises(AdapterError):
            write_adapter(names_of(config), wrong, 8.0, tmp_path / "adapter.gguf")
    with pytest.raises(AdapterError, match="could not be written"):
        write_adapter(names_of(config), adapter, 8.0, tmp_path / "no such folder" / "adapter.gguf")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "gemma"}, "architecture 'gemma'"),
        ({"sliding_window": True}, "sliding-window"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ],
)
def test_what_we_cannot_write_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    base = load_base("tiny")
    with pytest.raises(BaseModelError, match=words):
        write_base(replace(base, config=replace(base.config, **changes)), tmp_path / "base.gguf")


NAMES = st.text(string.ascii_lowercase + "._", min_size=1, max_size=20)
SCALARS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.text(min_size=1, max_size=20),
    st.floats(-8, 8, width=32, allow_nan=False),
)

LISTS = st.one_of(
    st.lists(st.integers(-9, 9), min_size=1, max_size=9),
    st.lists(st.text(max_size=9), min_size=1, max_size=9),
    st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=9),
)

KINDS = st.sampled_from([np.float32, np.float16, np.int8])
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(NAMES, SCALARS, max_size=5),
    st.dictionaries(NAMES.map("list.{}".format), LISTS, max_size=3),
    st.dictionaries(NAMES, st.tuples(SHAPES, KINDS), min_size=1, max_size=4),
    st.floats(0, 1, exclude_max=True),
)
def test_it_reads_what_was_written_and_misses_what_was_not(
    tmp_path: Path, fields: dict[str, Any], lists: dict[str, Any], tensors: dict[str, Any], share: float
) -> None:
    path = tmp_path / "any.gguf"
    save(path, "any", fields | lists, {name: np.zeros(shape, kind) for name, (shape, kind) in tensors.items()})
    header, data = read_header(path), path.read_bytes()
    assert header.fields == {"general.architecture": "any", **fields}
    assert header.shapes == {name: shape for name, (shape, _) in tensors.items()}
    assert 0 <= len(data) - header.size < 32  # the writer fills up the last tensor
    assert header.number("nothing") == 0

    path.write_bytes(data[: int(header.size * share)])
    with pytest.raises(BaseModelError, match="GGUF file"):
        read_header(path)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
CONVERTED: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2.5", {}),
    "qwen3": ("qwen3", {}),
    "llama-untied": ("llama3", {"rope_scaling": None}),
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


@pytest.mark.parametrize("kind", CONVERTED)
def test_ids_and_logits_are_those_of_the_folder(kind: str, tmp_path: Path) -> None:
    family, changes = CONVERTED[kind]
    shape = Shape(layers=2, hidden=64 if "llama" not in kind else 256, inner=96, heads=4, kv_heads=2)
    original = tmp_path / "original"
    made = converted(file_of(original, family, shape, **changes))
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
    made = converted(file_of(tmp_path / "original", "llama3", shape, rope_scaling=scaling, rope_theta=500_000.0))
    assert load_base(made).config.rope_scaling == scaling
    folder = tmp_path / "original"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_scaling": scaling | {"high_freq_factor": 1.001}}))
    write_file(folder, tmp_path / "other.gguf")
    with pytest.raises(BaseModelError, match=r"rope_freqs\.weight are not of Llama 3's form"):
        converted(tmp_path / "other.gguf")


QUANTISED = {"f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q4_k": 15}
"""LLAMA_FTYPE_MOSTLY_… in llama.h."""


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_weights_are_those_that_transformers_reads(kind: str, tmp_path: Path) -> None:
    shape = Shape(layers=2, hidden=256, inner=256, heads=4, kv_heads=2)
    plain, path = file_of(tmp_path / "original", "llama3", shape, rope_scaling=None), tmp_path / f"{kind}.gguf"
    library = llama()
    settings = library.llama_model_quantize_default_params()
    settings.ftype = QUANTISED[kind]
    assert library.llama_model_quantize(str(plain).encode(), str(path).encode(), settings) == 0
    files = load_base(converted(path)).weight_files
    if kind == "f16":  # stays at half precision
        assert files[0].stat().st_size < 0.6 * sum(4 * np.prod(shape) for shape in read_header(path).shapes.values())
    made = Weights(files)
    theirs = model_of(tmp_path, gguf_file=path.name).state_dict()
    assert set(made) == set(theirs)
    for name in made:
        np.testing.assert_array_equal(made.load(name), theirs[name].float().numpy())
    kinds = {gguf.GGMLQuantizationType(number).name for number, _ in read_header(path).places.values()}
    assert kind.upper() in kinds


def test_a_sentencepiece_tokenizer_reads_as_llama_cpp_does(tmp_path: Path) -> None:
    """``write_folder`` itself compares the ids with llama.cpp's."""
    path = file_of(tmp_path / "original", "llama3", rope_scaling=None)
    words = ["▁", *"abcdefghijklmnopqrstuvwxyzH,", "▁H", "el", "lo", "▁Hel", "▁Hello", "ho", "▁ho"]
    words += ["▁are", "ar", "are", "▁a"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokens += [f"▁unused{number}" for number in range(640 - len(tokens))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    write_file(
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


def test_further_templates_stay(tmp_path: Path) -> None:
    path = file_of(tmp_path / "original", "qwen3")
    fields: dict[str, Any] = {
        "tokenizer__chat_template__tool_use": "{{ tools }}",
        "tokenizer__ggml__add_bos_token": False,
    }
    write_file(tmp_path / "original", path, **fields)
    assert (converted(path) / "additional_chat_templates" / "tool_use.jinja").read_text() == "{{ tools }}"


def test_what_is_no_base_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder, path = tmp_path / "original", tmp_path / "other.gguf"
    file_of(folder, "llama3", rope_scaling=None)
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
        write_file(folder, path, **fields)
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
        write_file(folder, path, lacking, **fields)
        shutil.rmtree(path.with_suffix(".made"), ignore_errors=True)
        with pytest.raises(BaseModelError, match=words):
            converted(path)


def test_a_type_that_gguf_only_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(tmp_path / "original", "qwen3")

    def none(data: Any, kind: gguf.GGMLQuantizationType) -> Any:
        raise NotImplementedError(f"Dequantization for {kind.name} is not yet implemented")

    monkeypatch.setattr(gguf.quants, "dequantize", none)
    monkeypatch.setattr(sys, "argv", ["convert", str(path), str(tmp_path)])
    with pytest.raises(BaseModelError, match=r"by the gguf package: Dequantization for F32 .* in another quantisation"):
        main()
