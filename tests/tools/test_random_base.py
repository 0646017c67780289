"""Bases with random weights, in the layouts of Qwen and Llama."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM, AutoTokenizer

from marlaas.engine.models.templates import ChatTemplate
from marlaas.engine.models.weights import Weights
from tools.random_base.families import FAMILIES, TEMPLATES, build, tokenizer
from tools.random_base.make import main, make_base

SMALL: dict[str, Any] = {"rows": 2000}

CASES = [("qwen2", True), ("qwen2.5", False), ("qwen3", True), ("llama3", True), ("llama3", False)]


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


@pytest.mark.parametrize(("family", "tied"), [("qwen2.5", True), ("llama3", False)])
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


def test_the_command_line_makes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--family", "llama3", "--tied", "--rows", "1000", "--shards", "1", "--out", str(tmp_path / "base")]
    assert main(words) == 0
    assert "llama, 1000 tokens" in capsys.readouterr().out
    assert (tmp_path / "base" / "model.safetensors").exists()
    assert json.loads((tmp_path / "base" / "config.json").read_text())["tie_word_embeddings"] is True
    assert main(["--family", "llama3", "--rows", "10", "--out", str(tmp_path / "small")]) == 2
    assert "too small" in capsys.readouterr().err


def whole(size: int, numbers: bool) -> Tokenizer:
    """The bare model: no cutting into words before it."""
    tokens, merges = build(size, numbers)
    return Tokenizer(BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=list(merges)))


@pytest.mark.parametrize(("size", "numbers"), [(256, False), (257, True), (1000, False), (30_000, True)])
def test_every_token_is_what_bpe_makes_of_its_own_bytes(size: int, numbers: bool) -> None:
    tokens = build(size, numbers)[0]
    assert len(set(tokens)) == len(tokens) == size
    encoded = whole(size, numbers).encode_batch(list(tokens))
    assert [encoding.ids for encoding in encoded] == [[number] for number in range(size)]


Messages = list[dict[str, Any]]

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
TOOL_LINE = '{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}'

USER: Messages = [{"role": "user", "content": "hi"}]

HEADED: Messages = [{"role": "system", "content": "Be brief."}, *USER]


def calling(count: int, content: str = "") -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"x": n}}} for n in range(count)]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def render(family: str, messages: Messages, tools: Messages | None = None) -> str:
    template = FAMILIES[family].template
    source = (TEMPLATES / f"{template}.jinja").read_text()
    return ChatTemplate(source, {"bos_token": "<|begin_of_text|>"}).render(messages, tools)


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3"])
def test_qwen_has_tools_in_system_and_answers_in_user_turns(family: str) -> None:
    talk = [*HEADED, calling(2, "Let me see."), *({"role": "tool", "content": str(n)} for n in range(2))]
    text = render(family, talk, [TOOL, TOOL])
    head, _, rest = text.partition("<|im_end|>\n")
    assert head.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\n")
    assert f"\n<tools>\n{TOOL_LINE}\n{TOOL_LINE}\n</tools>\n" in head
    assert rest.startswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert rest.endswith(
        'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"x": 0}}\n</tool_call>'
        '\n<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n0\n</tool_response>\n<tool_response>\n1\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_qwen3_forgets_thoughts_before_the_last_question() -> None:
    thought: Messages = [{"role": "assistant", "content": "<think>\nhm\n</think>\n\nhello"}]
    apart: Messages = [{"role": "assistant", "content": "hello", "reasoning_content": "hm"}]
    shown = "<|im_start|>assistant\n<think>\nhm\n</think>\n\nhello<|im_end|>\n"
    for reply in (thought, apart):
        assert shown in render("qwen3", [*USER, *reply])
        later = render("qwen3", [*USER, *reply, *USER])
        assert "<|im_start|>assistant\nhello<|im_end|>\n" in later
        assert "hm" not in later


def test_llama_has_tools_in_questions_and_answers_as_ipython() -> None:
    text = render("llama3", [*USER, calling(1), {"role": "tool", "content": "3"}, *USER], [TOOL])
    system, user, call, answer, again, prompt = text.split("<|eot_id|>")
    assert "\n\nEnvironment: ipython\nCutting Knowledge" in system
    assert '{\n    "type": "function",\n    "function": {\n' in user
    assert user.endswith("}\n\nhi")
    assert call == '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "add", "parameters": {"x": 0}}'
    assert answer == '<|start_header_id|>ipython<|end_header_id|>\n\n"3"'
    assert again == "<|start_header_id|>user<|end_header_id|>\n\nhi"
    assert prompt == "<|start_header_id|>assistant<|end_header_id|>\n\n"


ROWS = 151_936


@cache
def built_of(family: str, rows: int) -> Tokenizer:
    return Tokenizer.from_str(tokenizer(FAMILIES[family], rows).to_str())


@given(st.sampled_from(["qwen3", "llama3"]), st.text(st.characters(codec="utf-8"), max_size=60))
def test_every_text_comes_back(family: str, text: str) -> None:
    built = built_of(family, 2000)
    ids = built.encode(text, add_special_tokens=False).ids
    assert built.decode(ids, skip_special_tokens=False) == text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "llama3"])
def test_control_tokens_have_the_ids_of_the_published_models(name: str) -> None:
    built = built_of(name, ROWS)
    expected = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
    if name in ("qwen2.5", "qwen3"):
        expected |= {"<tool_call>": 151657, "</tool_call>": 151658, "<|file_sep|>": 151664}
    if name == "qwen3":
        expected |= {"<tool_response>": 151665, "</tool_response>": 151666, "<think>": 151667, "</think>": 151668}
    if name == "llama3":
        expected = {
            **{"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|finetune_right_pad_id|>": 128004},
            **{"<|start_header_id|>": 128006, "<|end_header_id|>": 128007, "<|eom_id|>": 128008},
            **{"<|eot_id|>": 128009, "<|python_tag|>": 128010, "<|reserved_special_token_247|>": 128255},
        }
    assert {token: built.token_to_id(token) for token in expected} == expected
    for token, number in expected.items():
        assert built.encode(f"a{token}b", add_special_tokens=False).ids[1] == number
