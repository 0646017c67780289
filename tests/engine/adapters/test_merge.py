"""Merged exports: PEFT, transformers and llama.cpp compute the same with them as with base and adapter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from llama_cpp import Llama
from numpy.typing import NDArray
from peft import PeftModel
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GraniteConfig,
    GraniteForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

from marlaas.engine.adapters import export
from marlaas.engine.adapters.export import GGUF, MERGED_GGUF, export_adapter
from marlaas.engine.adapters.statefile import PolicyState, StateHeader, write_state
from marlaas.engine.adapters.use import MODELFILE, USE
from marlaas.engine.errors import AdapterError, BaseModelError
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.gguf import write_base
from marlaas.engine.models.tokenizer import tokenizer_fields
from marlaas.engine.models.weights import Weights, check_base, linear_shapes
from tests.engine.models.hugging_face import SIZES, logits_of, make, with_lora
from tools.random_base.families import Shape
from tools.random_base.make import make_base

SMALL = Shape(layers=2, hidden=64, inner=96, heads=4, kv_heads=2)
FAMILIES = {"qwen2.5": True, "qwen3": True, "llama3": False}
"""With biases, with norms of heads, with a head of its own; True: the head is the embedding."""
TOKENS = np.random.default_rng(0).integers(0, 600, 40).astype(np.int32)


def state_of(base: BaseModel, path: Path, adapter: dict[str, Any] | None = None) -> Path:
    """A state file for the base, by default with random matrices on every layer."""
    draw, random = np.random.default_rng(1), {}
    for module, (out, into) in linear_shapes(base.config).items():
        random[f"{module}.lora_A"] = draw.normal(scale=0.1, size=(4, into)).astype(np.float32)
        random[f"{module}.lora_B"] = draw.normal(scale=0.1, size=(out, 4)).astype(np.float32)
    write_state(path, PolicyState(StateHeader(4, 8.0, 3, base.fingerprint), adapter or random))
    return path


PHI3: Any = Phi3ForCausalLM
GRANITE: Any = GraniteForCausalLM


def base_of(family: str, folder: Path, dtype: torch.dtype = torch.bfloat16) -> BaseModel:
    """A random base with a usual tokenizer, in two files."""
    made = make_base(folder, family, SMALL, rows=640, shards=2, tied=FAMILIES[family])
    if dtype != torch.bfloat16:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        for file in (*made.weight_files, folder / "model.safetensors.index.json"):
            file.unlink(missing_ok=True)
        model.save_pretrained(folder, max_shard_size="200KB")
    return load_base(folder)


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)  # it is in its evaluation mode


def adapted(base: BaseModel, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """transformers and PEFT with the exported adapter."""
    return PeftModel.from_pretrained(loaded(base.path, dtype), str(folder))


def read_tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def headers(folder: Path) -> dict[str, dict[str, tuple[Any, str]]]:
    """By file and tensor: shape and type."""
    read = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            read[path.name] = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in parts.items()}
    return read


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_tensors_are_those_that_peft_merges(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    base = base_of(family, tmp_path / "base", dtype)
    state = state_of(base, tmp_path / "state")
    export_adapter(state, base.path, tmp_path / "adapter")
    export_adapter(state, base.path, tmp_path / "merged", merge=True)
    assert headers(tmp_path / "merged") == headers(base.path) and len(headers(base.path)) > 1
    merged, before = (Weights(load_base(path).weight_files) for path in (tmp_path / "merged", base.path))
    theirs = adapted(base, tmp_path / "adapter", dtype).merge_and_unload().state_dict()
    layers = {f"{module}.weight" for module in linear_shapes(base.config)}
    for name in merged:
        ours, expected = merged.load(name), theirs[name].float().numpy()
        if name not in layers:
            np.testing.assert_array_equal(ours, before.load(name))
        # The order of additions in a product differs by library: after rounding, by one step of the type at most.
        np.testing.assert_allclose(ours, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6, err_msg=name)
        assert np.mean(ours == expected) > 0.99 or dtype == torch.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_the_same_with_both_forms(family: str, tmp_path: Path) -> None:
    base = base_of(family, tmp_path / "base", torch.float32)
    state = state_of(base, tmp_path / "state")
    export_adapter(state, base.path, tmp_path / "adapter")
    export_adapter(state, base.path, tmp_path / "merged", merge=True)
    merged, plain = logits_of(loaded(tmp_path / "merged"), TOKENS), logits_of(loaded(base.path), TOKENS)
    # float32 sums in another order; logits are about 3.5
    np.testing.assert_allclose(merged, logits_of(adapted(base, tmp_path / "adapter"), TOKENS), atol=2e-4)
    assert np.abs(merged - plain).max() > 0.1
    check_base(load_base(tmp_path / "merged"))
    ours, theirs = (read_tokenizer(path) for path in (tmp_path / "merged", base.path))
    talk = [{"role": "user", "content": "What's 12 + 345?"}]
    assert ours.apply_chat_template(talk)["input_ids"] == theirs.apply_chat_template(talk)["input_ids"]
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / "merged" / name).read_text() == (base.path / name).read_text()


def fused() -> Any:
    return PHI3(Phi3Config(**SIZES, pad_token_id=0, tie_word_embeddings=True))


def scaled() -> Any:
    return GRANITE(GraniteConfig(**SIZES, embedding_multiplier=2.0, residual_multiplier=0.5))


@pytest.mark.parametrize("made", [fused, scaled])
def test_names_are_those_of_the_folder(made: Callable[[], Any], tmp_path: Path) -> None:
    model = make(made, tmp_path / "base")
    base, (with_adapter, adapter) = load_base(tmp_path / "base"), with_lora(model)
    assert (made is fused) == any(".qkv_proj." in name for name in adapter)
    expected = logits_of(with_adapter, TOKENS % 61)
    export_adapter(state_of(base, tmp_path / "state", adapter), base.path, tmp_path / "merged", merge=True)
    assert headers(tmp_path / "merged") == headers(base.path)
    np.testing.assert_allclose(logits_of(loaded(tmp_path / "merged"), TOKENS % 61), expected, atol=1e-4)
    with pytest.raises(
        AdapterError, match=r"cannot become a GGUF: marlaas writes no GGUF for .*convert_hf_to_gguf\.py"
    ):
        export_adapter(tmp_path / "state", base.path, tmp_path / "out", merge=True, gguf=True)


# llama.cpp


def greedy(model: Any, prompt: list[int], count: int = 24) -> list[int]:
    tokens = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(count):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], 1)
    return [int(token) for token in tokens[0, len(prompt) :]]


def said(path: Path, prompt: list[int], count: int = 24, **more: Any) -> list[int]:
    model = Llama(str(path), n_ctx=256, verbose=False, **more)
    return list(islice(model.generate(prompt, temp=0.0, repeat_penalty=1.0), count))


@pytest.mark.parametrize("family", FAMILIES)
def test_llama_cpp_says_what_transformers_says(family: str, tmp_path: Path) -> None:
    """The tokens are llama.cpp's own, of a prompt by the chat template in the file."""
    base = base_of(family, tmp_path / "base", torch.float32)
    state = state_of(base, tmp_path / "state")
    export_adapter(state, base.path, tmp_path / "adapter", gguf=True)
    files = export_adapter(state, base.path, tmp_path / "merged", merge=True, gguf=True)
    assert {MERGED_GGUF, MODELFILE, USE, "config.json", "tokenizer.json"} <= {file.name for file in files}
    path = tmp_path / "merged" / MERGED_GGUF
    tokenizer = read_tokenizer(base.path)
    talk = [{"role": "user", "content": "What's 12 + 345?"}]
    text = tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer.encode(text, add_special_tokens=False)
    reads = Llama(str(path), vocab_only=True, verbose=False)
    assert reads.tokenize(text.encode(), add_bos=False, special=True) == prompt
    assert reads.metadata["tokenizer.chat_template"] == tokenizer.chat_template
    assert reads.token_eos() == tokenizer.eos_token_id

    expected = greedy(adapted(base, tmp_path / "adapter"), prompt)
    assert expected != greedy(loaded(base.path), prompt)
    assert greedy(loaded(tmp_path / "merged"), prompt) == expected
    assert said(path, prompt) == expected
    write_base(base, tmp_path / "base.gguf", "", tokenizer_fields(base.path, base.config.vocab_size))
    assert said(tmp_path / "base.gguf", prompt, lora_path=str(tmp_path / "adapter" / GGUF)) == expected


@pytest.mark.parametrize(("dtype", "kind"), [(torch.bfloat16, "BF16"), (torch.float16, "F16")])
def test_matrices_of_the_gguf_are_stored_as_in_the_folder(dtype: torch.dtype, kind: str, tmp_path: Path) -> None:
    base = base_of("qwen2.5", tmp_path / "base", dtype)
    export_adapter(state_of(base, tmp_path / "state"), base.path, tmp_path / "out", merge=True, gguf=True)
    reader, merged = gguf.GGUFReader(tmp_path / "out" / MERGED_GGUF), Weights(load_base(tmp_path / "out").weight_files)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert {name: kinds[name] == kind for name in kinds} == {t.name: len(t.shape) > 1 for t in reader.tensors}
    (stored,) = (tensor for tensor in reader.tensors if tensor.name == "blk.1.ffn_down.weight")
    values: NDArray[Any] = gguf.quants.dequantize(stored.data, stored.tensor_type)
    np.testing.assert_array_equal(values, merged.load("model.layers.1.mlp.down_proj.weight"))
    assert reader.fields["general.name"].contents() == "out"


# Refusals


def refused(tmp_path: Path, base: BaseModel, words: str, state: Path | None = None, **more: Any) -> None:
    with pytest.raises((AdapterError, BaseModelError), match=words):
        export_adapter(state or tmp_path / "state", base.path, tmp_path / "out", merge=True, **more)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".", "out"))], "nothing is left"


def full(*_: object) -> None:
    raise OSError  # as numpy's


def test_what_cannot_be_merged_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = load_base("tiny")
    refused(tmp_path, tiny, "llama.cpp does not know .* Leave --gguf out", state_of(tiny, tmp_path / "t"), gguf=True)

    base = base_of("llama3", tmp_path / "base", torch.float16)
    large = {f"model.layers.1.mlp.up_proj.lora_{half}": np.full(shape, 1e3, np.float32) for half, shape in SIDES}
    refused(tmp_path, base, "are too large for F16", state_of(base, tmp_path / "large", large))

    state_of(base, tmp_path / "state")
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
        refused(tmp_path, base, "Free some space")
    with monkeypatch.context() as patch:
        patch.setattr(export, "write_base", full)
        refused(tmp_path, base, "the disk took a part of it only", gguf=True)
    with monkeypatch.context() as patch:
        patch.setattr(export, "CHECK", "marlaas.no_such_module")
        refused(tmp_path, base, "cannot become a GGUF: llama.cpp died with status 1. Leave --gguf out", gguf=True)
    (tmp_path / "base" / "config.json").rename(tmp_path / "config")
    refused(tmp_path, base, r"holds no config\.json")

    config = json.loads((tmp_path / "config").read_text())
    changed = tmp_path / "base" / "config.json"
    changed.write_text(json.dumps(config | {"rms_norm_eps": 1e-4}))
    refused(tmp_path, base, "The adapter belongs to the base model")
    changed.write_text(json.dumps(config | {"quantization_config": {"quant_method": "bitsandbytes"}}))
    refused(tmp_path, base, r"quantised \(bitsandbytes\)")


SIDES = (("A", (4, 64)), ("B", (96, 4)))


def test_a_layer_of_another_form_is_refused(tmp_path: Path) -> None:
    model = make(fused, tmp_path / "base")
    base, (_, adapter) = load_base(tmp_path / "base"), with_lora(model)
    a, b = (f"model.layers.0.self_attn.o_proj.lora_{half}" for half in "AB")
    wide = {a: np.ones((4, 32), np.float32), b: adapter[b]}
    refused(tmp_path, base, "other names or shapes", state_of(base, tmp_path / "state", wide))
    other = {name.replace("o_proj", "out"): adapter[name] for name in (a, b)}
    refused(tmp_path, base, "other names or shapes", state_of(base, tmp_path / "state2", other))
