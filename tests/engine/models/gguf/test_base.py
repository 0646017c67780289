"""GGUF files of our own mean to llama.cpp what the model folder means to transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from marlaas.engine.errors import AdapterError, BaseModelError
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.gguf import base_bytes, names_of, write_adapter, write_base
from marlaas.engine.samplers.llama.context import LlamaContext
from marlaas.engine.samplers.llama.model import BaseFile, open_base

from ..hugging_face import MODELS, logits_of, make, with_lora

TOKENS = np.random.default_rng(0).integers(0, 61, 180).astype(np.int32)
"""Long enough for every kind of stretched rotary position to matter."""
CLOSE = 3e-4
"""Largest difference of log-probabilities that float32 weights and float32 memory are allowed."""


def exact(path: Path, base: BaseModel) -> LlamaContext:
    return open_base(BaseFile(path, names_of(base.config), ours=True), 2, 256, exact=True).context


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def llama_logprobs(context: LlamaContext) -> NDArray[np.float64]:
    count = len(TOKENS)
    positions = np.arange(count, dtype=np.int32)
    logits = context.decode(TOKENS, positions, np.zeros(count, np.int32), np.ones(count, np.int8))
    logprobs = log_softmax(logits)
    context.cut(0, 0)
    return logprobs


def gap(ours: NDArray[np.float64], theirs: NDArray[np.float32]) -> float:
    """Largest difference over everything that has a probability of note."""
    expected = log_softmax(theirs)
    return float(np.abs(ours - expected)[expected > -12].max())


@pytest.mark.parametrize("kind", MODELS)
def test_base_and_adapter_have_the_logits_of_torch(kind: str, tmp_path: Path) -> None:
    model = make(kind, tmp_path / "model")
    base = load_base(tmp_path / "model")
    write_base(base, tmp_path / "base.gguf")
    context = exact(tmp_path / "base.gguf", base)
    plain = logits_of(model, TOKENS)
    assert gap(llama_logprobs(context), plain) < CLOSE

    adapted, adapter = with_lora(model)
    changed = logits_of(adapted, TOKENS)
    assert np.abs(changed - plain).max() > 1  # else what follows proves nothing
    handle = context.load_adapter(adapter, 8.0)
    context.use(np.array([handle]))
    assert gap(llama_logprobs(context), changed) < CLOSE
    context.use(np.empty(0, np.int64))
    assert gap(llama_logprobs(context), plain) < CLOSE
    context.free_adapter(handle)
    context.close()


def test_bfloat16_shards_and_float16_files(tmp_path: Path) -> None:
    model = make("qwen3", tmp_path / "model", torch.bfloat16)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="60KB")
    whole, sharded = load_base(tmp_path / "model"), load_base(tmp_path / "sharded")
    assert len(sharded.weight_files) > 1
    write_base(whole, tmp_path / "whole.gguf")
    write_base(sharded, tmp_path / "sharded.gguf", "f16")
    context = exact(tmp_path / "whole.gguf", whole)
    logprobs = llama_logprobs(context)
    context.close()
    assert gap(logprobs, logits_of(model, TOKENS)) < CLOSE
    for path, base, weights in (("whole", whole, "f32"), ("sharded", sharded, "f16")):
        assert 0 < base_bytes(base, weights) - (tmp_path / f"{path}.gguf").stat().st_size < 1 << 20
    assert (tmp_path / "sharded.gguf").stat().st_size < 0.6 * (tmp_path / "whole.gguf").stat().st_size
    context = exact(tmp_path / "sharded.gguf", sharded)
    assert np.abs(llama_logprobs(context) - logprobs).max() < 0.2
    context.close()


def test_an_adapter_of_another_shape_is_refused(tmp_path: Path) -> None:
    model = make("qwen3", tmp_path / "model")
    base = load_base(tmp_path / "model")
    _, adapter = with_lora(model)
    name = "model.layers.1.mlp.down_proj"
    for wrong in (
        {},
        {**adapter, f"{name}.lora_A": adapter[f"{name}.lora_A"][:, :-1]},
        {**adapter, f"{name}.lora_B": adapter[f"{name}.lora_B"][:-1]},
        {key: value for key, value in adapter.items() if key != f"{name}.lora_B"},
        {**adapter, "model.layers.2.mlp.up_proj.lora_A": np.zeros((4, 64), np.float32)},
        {**adapter, "lm_head.lora_A": np.zeros((4, 64), np.float32), "lm_head.lora_B": np.zeros((61, 4), np.float32)},
        {**adapter, "model.norm.weight": np.zeros(64, np.float32)},
    ):
        with pytest.raises(AdapterError):
            write_adapter(names_of(base.config), wrong, 8.0, tmp_path / "adapter.gguf")
    with pytest.raises(AdapterError, match="could not be written"):
        write_adapter(names_of(base.config), adapter, 8.0, tmp_path / "no such folder" / "adapter.gguf")


def test_what_we_cannot_write_is_refused(tmp_path: Path) -> None:
    make("qwen3", tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    original = config.read_text()
    for old, new, words in (
        ('"model_type": "qwen3"', '"model_type": "gemma"', "architecture 'gemma'"),
        ('"full_attention"', '"sliding_attention"', "sliding-window"),
        ('"rope_type": "default"', '"rope_type": "dynamic"', "'dynamic'"),
    ):
        assert old in original
        config.write_text(original.replace(old, new))
        with pytest.raises(BaseModelError, match=words):
            write_base(load_base(tmp_path / "model"), tmp_path / "base.gguf")


def test_llama_cpp_says_why_it_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(BaseModelError, match=r"llama\.cpp cannot load .*broken\.gguf \("):
        exact(tmp_path / "broken.gguf", load_base("tiny"))
