"""Exports: other programs compute what was trained, and the lines of ``USE.md`` are run as they stand."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from llama_cpp import Llama
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from marlaas.engine.adapters import export
from marlaas.engine.adapters.export import GGUF, export_adapter
from marlaas.engine.adapters.peft_folder import read_adapter
from marlaas.engine.adapters.statefile import PolicyState, StateHeader, checksum, read_state, write_state
from marlaas.engine.adapters.use import BASE_GGUF, MODELFILE, RANKS, USE, Exported, modelfile, use_text
from marlaas.engine.errors import AdapterError, BaseModelError
from marlaas.engine.models.find import load_base
from marlaas.engine.models.gguf import write_base
from marlaas.engine.models.weights import linear_shapes
from tests.engine.models.gguf.brought import bring, pairs_together
from tests.engine.models.hugging_face import with_lora
from tests.engine.trainer.oracle import Oracle

BASE = load_base("tiny")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state file of step 3 for the shipped base, with random matrices: strong enough to change what is said."""
    draw, adapter = np.random.default_rng(0), {}
    for module, (out, into) in linear_shapes(BASE.config).items():
        adapter[f"{module}.lora_A"] = draw.normal(scale=0.2, size=(4, into)).astype(np.float32)
        adapter[f"{module}.lora_B"] = draw.normal(scale=0.2, size=(out, 4)).astype(np.float32)
    path = tmp_path / "state"
    write_state(path, PolicyState(StateHeader(4, 8.0, 3, BASE.fingerprint), adapter, adapter, adapter))
    return path


def test_peft_loads_the_folder_and_computes_the_same(state: Path, tmp_path: Path) -> None:
    files = export_adapter(state, BASE.path, tmp_path / "out")
    assert sorted(file.name for file in files) == [
        "USE.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert sorted(files) == sorted((tmp_path / "out").iterdir())
    model: Any = AutoModelForCausalLM.from_pretrained(BASE.path, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, str(tmp_path / "out"))
    tokens = np.arange(10, dtype=np.int32)
    logits = model(input_ids=torch.arange(10)[None]).logits[0, :-1]
    oracle = Oracle(str(BASE.path), state)
    assert torch.equal(torch.log_softmax(logits, -1), oracle.logprobs(tokens))
    assert not torch.allclose(oracle.logprobs(tokens), oracle.logprobs(tokens, base=True), atol=0.1)


def test_the_gguf_adapter_has_the_names_of_its_base(tmp_path: Path) -> None:
    model, path = bring("granite", tmp_path / "model")
    base = load_base(tmp_path / "model")
    _, adapter = with_lora(model)
    write_state(tmp_path / "state", PolicyState(StateHeader(4, 6.0, 3, base.fingerprint), adapter))
    for folder, brought in (("told", str(path)), ("guessed", "")):
        export_adapter(tmp_path / "state", base.path, tmp_path / folder, gguf=True, base_gguf=brought)
        reader = gguf.GGUFReader(tmp_path / folder / "adapter.gguf")
        assert reader.fields["general.architecture"].contents() == "granite"
        assert reader.fields["adapter.lora.alpha"].contents() == 6.0 and len(reader.tensors) == len(adapter)
        tensors = {tensor.name: tensor.data for tensor in reader.tensors}
        name = "model.layers.1.self_attn.q_proj.lora_B"
        assert np.array_equal(tensors["blk.1.attn_q.weight.lora_b"], pairs_together(adapter[name], 4))
        up = adapter["model.layers.1.mlp.up_proj.lora_B"]
        assert np.array_equal(tensors["blk.1.ffn_up.weight.lora_b"], up)
    with pytest.raises(BaseModelError, match="There is no GGUF file"):
        export_adapter(tmp_path / "state", base.path, tmp_path / "out", gguf=True, base_gguf="nowhere.gguf")
    assert not (tmp_path / "out").exists()


def test_peft_finds_the_base_by_its_name_on_the_hub(state: Path, tmp_path: Path) -> None:
    for name, named in (("", (str(BASE.path.resolve()), None)), ("org/model@v2", ("org/model", "v2"))):
        export_adapter(state, BASE.path, tmp_path / f"of {named[1]}", base_name=name, card="# Mine")
        config = json.loads((tmp_path / f"of {named[1]}" / "adapter_config.json").read_text())
        assert (config["r"], config["lora_alpha"]) == (4, 8)
        assert (config["base_model_name_or_path"], config["revision"]) == named
        assert (tmp_path / f"of {named[1]}" / "README.md").read_text() == "# Mine"


def test_a_flipped_byte_is_not_exported(state: Path, tmp_path: Path) -> None:
    proof = checksum(read_state(state).adapter)
    export_adapter(state, BASE.path, tmp_path / "whole", expected=proof)
    with state.open("r+b") as file:  # the adapter lies first: names are stored in sorted order
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        file.write(b"\x55" * 4)
    with pytest.raises(AdapterError, match="is damaged"):
        export_adapter(state, BASE.path, tmp_path / "out", expected=proof)
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(state: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(AdapterError, match="exists already"):
        export_adapter(state, BASE.path, tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(AdapterError, match="exists already"):
        export_adapter(state, BASE.path, tmp_path / "link")
    assert list((tmp_path / "out").iterdir()) == []


def test_another_base_is_refused(tmp_path: Path) -> None:
    adapter = {"q.lora_A": np.zeros((1, 2), dtype=np.float32)}
    write_state(tmp_path / "state", PolicyState(StateHeader(1, 1.0, 0, "another"), adapter))
    with pytest.raises(AdapterError, match="belongs to the base model another, but"):
        export_adapter(tmp_path / "state", BASE.path, tmp_path / "out")


def test_a_failed_export_leaves_nothing_behind(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(AdapterError, match="could not be written: No space left"):
        patch.setattr(export, "use_text", refuse)
        export_adapter(state, BASE.path, tmp_path / "out")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AdapterError, match="could not be written"):
        export_adapter(state, BASE.path, tmp_path / "file" / "out")
    with pytest.raises(AdapterError, match="missing: the state file is gone"):
        export_adapter(tmp_path / "missing", BASE.path, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "state"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_folder_with_what_is_no_number_is_refused(state: Path, tmp_path: Path, value: float) -> None:
    """Before training begins from it: later it would show as something else."""
    found = read_state(state)
    name = sorted(found.adapter)[3]
    found.adapter[name][1, 2] = value
    folder = tmp_path / "folder"
    folder.mkdir()
    export.write_peft_folder(folder, found, "base")
    with pytest.raises(AdapterError, match=f"the adapter holds what is no finite number, in {name}"):
        read_adapter(folder, BASE)


REAL = Exported(Path("/o u't"), Path("/base"), 24)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"(?m)^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def printed(lines: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What lines of Python print, run as they stand; on one thread, for several spin where others use the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        exec(compile(lines, USE, "exec"), {"__name__": "__main__"})
    finally:
        torch.set_num_threads(threads)
    return capsys.readouterr().out.strip()


@pytest.mark.filterwarnings("ignore")  # of other people's libraries, where they load a model
def test_peft_and_llama_cpp_reply_the_same(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines for PEFT are run as they stand. Without the adapter the reply is another one."""
    files = export_adapter(state, BASE.path, tmp_path / "it's here", gguf=True)
    assert [file.name for file in files] == [USE, GGUF, "adapter_config.json", "adapter_model.safetensors"]
    text = files[0].read_text("utf-8")
    assert "do not know the tokenizer of the base that ships" in text and "llama-server" not in text
    (peft,) = blocks(text, "python")
    assert printed(peft, capsys)
    exact = peft.replace("LM.from_pretrained(path)", "LM.from_pretrained(path, dtype='float32')")
    assert exact != peft, "the base's own type is bfloat16, but its GGUF is float32"
    reply = printed(exact, capsys)
    write_base(BASE, tmp_path / "base.gguf")
    assert spoken(tmp_path / "base.gguf", files[1]) == reply
    without = exact.replace("PeftModel.from_pretrained(", "(lambda model, folder: model)(")
    assert printed(without, capsys) != reply


def spoken(base: Path, adapter: Path) -> str:
    """What llama.cpp replies; the shipped base's tokenizer is not in a GGUF."""
    tokenizer: Any = AutoTokenizer.from_pretrained(BASE.path)
    model = Llama(str(base), lora_path=str(adapter), n_ctx=1024, verbose=False)
    messages = [{"role": "user", "content": "Hello"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    tokens = islice(model.generate(prompt, temp=0.0, repeat_penalty=1.0), 100)
    reply = list(takewhile(tokenizer.eos_token_id.__ne__, tokens))
    return str(tokenizer.decode(reply, skip_special_tokens=True))


def lines_of(exported: Exported) -> list[str]:
    """The commands of the shell, section by section."""
    return blocks(use_text(exported), "sh")


def test_vllm_gets_a_rank_that_it_allows() -> None:
    """--max-lora-rank is one of vLLM's; --lora-modules is NAME=PATH."""
    (vllm,) = lines_of(REAL)
    serve, ask = vllm.splitlines()
    words = shlex.split(serve)
    assert words[:3] == ["vllm", "serve", "/base"] and "--enable-lora" in words
    assert int(words[words.index("--max-lora-rank") + 1]) == 32 and 32 in RANKS
    assert words[words.index("--lora-modules") + 1] == "o-u-t=/o u't"
    assert '"model": "o-u-t"' in shlex.split(ask)[-1] and shlex.split(ask)[1].endswith("/v1/chat/completions")


def test_llama_cpp_and_ollama_are_named_with_a_gguf_alone() -> None:
    """A user's base is used as it is; another is converted first, with its tokenizer."""
    assert "`--gguf`" in use_text(REAL) and "llama-server" not in use_text(REAL)
    out = Path("/out")
    _, server, ollama = lines_of(Exported(out, Path("/base"), 8, out / GGUF, Path("/models/big model.gguf")))
    assert shlex.split(server) == ["llama-server", "-m", "/models/big model.gguf", "--lora", "/out/adapter.gguf"]
    create, run = ollama.splitlines()
    assert (create, run) == ("ollama create out -f /out/Modelfile", "ollama run out Hello")
    unconverted = Exported(out, Path("/base"), 8, out / GGUF)
    _, server, ollama = lines_of(unconverted)
    *_, convert, serve = server.splitlines()
    made = shlex.split(convert)[-1]
    assert shlex.split(convert)[1:4] == ["llama.cpp/convert_hf_to_gguf.py", "/base", "--outfile"]
    assert shlex.split(serve)[2] == made == str(out / BASE_GGUF)
    assert modelfile(unconverted) == f"FROM ./{BASE_GGUF}\nADAPTER ./adapter.gguf\n"


@pytest.mark.parametrize("question", ["17 + 25 = ?", 'it\'s "so" $(id) \\', "反転"])
def test_what_was_trained_is_asked(question: str) -> None:
    exported = replace(REAL, gguf=Path("/o/a.gguf"), base_gguf=Path("/b.gguf"), question=question)
    (peft,), (vllm, _, ollama) = blocks(use_text(exported), "python"), lines_of(exported)
    scope: dict[str, Any] = {}
    exec(next(line for line in peft.splitlines() if line.startswith("messages")), scope)
    assert scope["messages"] == [{"role": "user", "content": question}]
    body = json.loads(shlex.split(vllm.splitlines()[1])[-1])
    assert body["messages"] == scope["messages"]
    assert shlex.split(ollama.splitlines()[-1])[-1] == question


@pytest.mark.parametrize("question", ["", "two\n```\nlines", "`id`", "x" * 201, "\x1b[2J", "\ud800"])
def test_a_question_that_would_break_the_page_is_not_asked(question: str) -> None:
    assert replace(REAL, question=question).asks == "Hello"


def test_the_modelfile_lies_in_the_folder(tmp_path: Path) -> None:
    """Paths in the folder are relative to it, as Ollama reads them; the base's is absolute."""
    _, path = bring("granite", tmp_path / "model")
    base = load_base(tmp_path / "model")
    names = (f"model.layers.0.self_attn.q_proj.lora_{half}" for half in "AB")
    adapter = {name: np.ones(shape, np.float32) for name, shape in zip(names, ((4, 64), (64, 4)), strict=True)}
    write_state(tmp_path / "state", PolicyState(StateHeader(4, 6.0, 3, base.fingerprint), adapter))
    export_adapter(tmp_path / "state", base.path, tmp_path / "out", gguf=True, base_gguf=str(path))
    assert (tmp_path / "out" / MODELFILE).read_text() == f"FROM {path}\nADAPTER ./adapter.gguf\n"
    assert modelfile(Exported(Path("/o"), Path("/b"), 8, Path("/o/merged.gguf"), merged=True)) == "FROM ./merged.gguf\n"
