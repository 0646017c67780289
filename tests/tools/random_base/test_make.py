"""A made folder is a base to transformers and to us, and what it predicts is neither flat nor certain."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from marlaas.engine.models.weights import Weights
from marlaas.engine.rollout.renderer import Renderer
from tools.random_base.families import FAMILIES, Shape
from tools.random_base.make import main, make_base

SMALL: dict[str, Any] = {"rows": 2000}
CASES = [(family, tied) for family in FAMILIES for tied in (True, False)]


@pytest.mark.parametrize(("family", "tied"), CASES)
def test_transformers_finds_every_tensor_and_no_other(tmp_path: Path, family: str, tied: bool) -> None:
    base = make_base(tmp_path, family, tied=tied, **SMALL)
    load: Any = AutoModelForCausalLM.from_pretrained
    model, found = load(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not any(found.values())
    assert ("lm_head.weight" in Weights(base.weight_files)) is not tied
    assert model.config.tie_word_embeddings == base.config.tie_word_embeddings == tied
    assert model.config.model_type == base.config.architecture
    assert len(base.weight_files) == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids(list(FAMILIES[family].ends))
    assert tokenizer.eos_token == FAMILIES[family].eos


@pytest.mark.parametrize(("family", "tied"), CASES)
def test_predictions_are_neither_flat_nor_certain_nor_stuck(tmp_path: Path, family: str, tied: bool) -> None:
    make_base(tmp_path, family, tied=tied, rows=20_000)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    torch.set_num_threads(1)
    tokens = np.random.default_rng(0).integers(0, 20_000, 40)[None]
    with torch.no_grad():
        logprobs = model(input_ids=torch.from_numpy(tokens)).logits[0].log_softmax(-1)
        said, held, memory = [], torch.from_numpy(tokens), None
        for _ in range(40):
            out = model(input_ids=held, past_key_values=memory, use_cache=True)
            held, memory = out.logits[:, -1:].argmax(-1), out.past_key_values
            said.append(held.item())
    entropy = -(logprobs.exp() * logprobs).sum(-1).mean().item()
    assert 2 < entropy < np.log(20_000) - 2
    assert 0.02 < logprobs.max(-1).values.exp().mean().item() < 0.5
    assert len(set(said)) > 10


def test_files_depend_on_arguments_and_weights_on_the_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_base(tmp_path / name, "qwen3", seed=seed, **SMALL)
    a, b, c = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in "abc")
    assert a == b
    assert {name for name in a if a[name] != c[name]} == {name for name in a if name.endswith(".safetensors")}


def test_sizes_heads_and_further_keys_are_as_asked(tmp_path: Path) -> None:
    shape = Shape(layers=3, hidden=48, inner=80, heads=6, kv_heads=3)
    base = make_base(tmp_path, "qwen3", shape, rows=700, shards=3, changes={"rope_theta": 5000.0, "bos_token_id": None})
    sizes = base.config
    assert (sizes.layers, sizes.hidden_size, sizes.intermediate_size, sizes.vocab_size) == (3, 48, 80, 700)
    assert (sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.rope_theta) == (6, 3, 16, 5000.0)
    assert "bos_token_id" not in json.loads((tmp_path / "config.json").read_text())
    assert len(base.weight_files) == 3


def test_biases_stand_where_the_configuration_has_them(tmp_path: Path) -> None:
    def biases(name: str, family: str, **changes: bool) -> set[str]:
        base = make_base(tmp_path / name, family, changes=changes, **SMALL)
        return {key.split(".")[-2] for key in Weights(base.weight_files) if key.endswith(".bias")}

    attention, inner = {"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj", "down_proj"}
    assert biases("a", "qwen2") == attention
    assert biases("b", "qwen3") == biases("c", "llama3") == set()
    assert biases("d", "llama3", attention_bias=True, mlp_bias=True) == attention | {"o_proj"} | inner


@pytest.mark.parametrize("family", ["qwen2", "qwen2.5", "llama3"])
def test_the_renderer_takes_the_folder_as_it_is(tmp_path: Path, family: str) -> None:
    base = make_base(tmp_path, family, **SMALL)
    control = json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"]
    assert set(Renderer(base.path).stop_ids) == set(control)


def test_the_command_line_makes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--family", "llama3", "--tied", "--rows", "1000", "--shards", "1", "--out", str(tmp_path / "base")]
    assert main(words) == 0
    assert "llama, 1000 tokens" in capsys.readouterr().out
    assert (tmp_path / "base" / "model.safetensors").exists()
    assert json.loads((tmp_path / "base" / "config.json").read_text())["tie_word_embeddings"] is True
    assert main(["--family", "llama3", "--rows", "10", "--out", str(tmp_path / "small")]) == 2
    assert "too small" in capsys.readouterr().err
