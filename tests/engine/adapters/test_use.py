"""``USE.md``: its lines are run as they stand, with the programs that are here, and read for those that are not."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marlaas.engine.adapters.export import BASE_GGUF, GGUF, export_adapter
from marlaas.engine.adapters.statefile import PolicyState, StateHeader, write_state
from marlaas.engine.adapters.use import RANKS, USE, Exported, served_name, use_text, uses
from marlaas.engine.models.find import load_base
from marlaas.engine.models.weights import linear_shapes

REAL = Exported(Path("/o u't"), Path("/base"), 24)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state file for the shipped base, with random matrices: strong enough to change what is said."""
    base, draw, adapter = load_base("tiny"), np.random.default_rng(0), {}
    for module, (out, into) in linear_shapes(base.config).items():
        adapter[f"{module}.lora_A"] = draw.normal(scale=0.2, size=(4, into)).astype(np.float32)
        adapter[f"{module}.lora_B"] = draw.normal(scale=0.2, size=(out, 4)).astype(np.float32)
    path = tmp_path / "state"
    write_state(path, PolicyState(StateHeader(4, 8.0, 3, base.fingerprint), adapter))
    return path


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"(?m)^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def said(lines: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What lines of Python print, run as they stand; on one thread, for several spin where others use the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        exec(compile(lines, USE, "exec"), {"__name__": "__main__"})
    finally:
        torch.set_num_threads(threads)
    return capsys.readouterr().out.strip()


@pytest.mark.filterwarnings("ignore")  # of other people's libraries, where they load a model
def test_peft_and_llama_cpp_say_the_same(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of both are run. Without the adapter the reply is another one."""
    files = export_adapter(state, load_base("tiny").path, tmp_path / "it's here", gguf=True)
    assert [file.name for file in files][-3:] == [GGUF, BASE_GGUF, USE]
    text = files[-1].read_text("utf-8")
    peft, llama = blocks(text, "python")
    assert said(peft, capsys)
    exact = peft.replace("LM.from_pretrained(base)", "LM.from_pretrained(base, dtype='float32')")
    assert exact != peft, "the base's own type is bfloat16, but its GGUF is float32"
    reply = said(exact, capsys)
    assert said(llama, capsys) == reply
    without = exact.replace("PeftModel.from_pretrained(", "(lambda model, folder: model)(")
    assert said(without, capsys) != reply


def test_every_line_names_what_was_exported(state: Path, tmp_path: Path) -> None:
    out = tmp_path / "My adapter"
    export_adapter(state, load_base("tiny").path, out, gguf=True)
    text, base = (out / USE).read_text("utf-8"), load_base("tiny").path.resolve()
    for path in re.findall(r"/[^'\n]*?My adapter(?:/[\w.-]+)?", text):
        known = {out, *out.iterdir(), out / "Modelfile", out / "base-with-tokenizer.gguf"}  # the last two they make
        assert Path(path) in known, path
    assert text.count(str(base)) >= 5
    assert "USE.md" in (out / "README.md").read_text("utf-8")


def test_vllm_gets_a_rank_that_it_allows() -> None:
    """--max-lora-rank is one of vLLM's; --lora-modules is NAME=PATH."""
    _, vllm = uses(REAL)
    serve, ask = vllm.lines.splitlines()
    words = shlex.split(serve)
    assert words[:3] == ["vllm", "serve", "/base"] and "--enable-lora" in words
    assert int(words[words.index("--max-lora-rank") + 1]) == 32 and 32 in RANKS
    assert words[words.index("--lora-modules") + 1] == "o-u-t=/o u't"
    assert '"model": "o-u-t"' in shlex.split(ask)[-1] and shlex.split(ask)[1].endswith("/v1/chat/completions")


def test_without_a_gguf_there_are_no_lines_for_it() -> None:
    assert [use.program for use in uses(REAL)] == ["PEFT", "vLLM"]
    assert "`--gguf`" in use_text(REAL) and "llama-server" not in use_text(REAL)


def test_a_brought_base_is_used_as_it_is() -> None:
    """llama.cpp and Ollama take its tokenizer from it, so nothing is converted."""
    out = Path("/out")
    brought = Exported(out, Path("/base"), 8, out / GGUF, Path("/models/big model.gguf"))
    server, ollama = uses(brought)[2:]
    assert shlex.split(server.lines) == ["llama-server", "-m", "/models/big model.gguf", "--lora", "/out/adapter.gguf"]
    write, create, run = ollama.lines.splitlines()
    assert shlex.split(write)[2:] == ["/models/big model.gguf", "/out/adapter.gguf", ">", "/out/Modelfile"]
    assert (create, run) == ("ollama create out -f /out/Modelfile", "ollama run out Hello")
    assert "convert" not in use_text(brought)


def test_a_base_without_a_gguf_is_converted_first() -> None:
    """It is too large to lie beside the adapter."""
    out = Path("/out")
    server, ollama = uses(Exported(out, Path("/base"), 8, out / GGUF))[2:]
    *_, convert, serve = server.lines.splitlines()
    made = shlex.split(convert)[-1]
    assert shlex.split(convert)[1:4] == ["llama.cpp/convert_hf_to_gguf.py", "/base", "--outfile"]
    assert shlex.split(serve)[2] == made and made in ollama.lines


def test_a_large_base_is_not_written(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.adapters.export.SMALL", 1000)
    files = export_adapter(state, load_base("tiny").path, tmp_path / "out", gguf=True)
    assert BASE_GGUF not in {file.name for file in files}
    assert "convert_hf_to_gguf.py" in files[-1].read_text("utf-8")


@pytest.mark.parametrize("question", ["17 + 25 = ?", 'it\'s "so" $(id) \\', "反転"])
def test_what_was_trained_is_asked(question: str) -> None:
    exported = replace(REAL, gguf=Path("/o/a.gguf"), base_gguf=Path("/b.gguf"), question=question)
    peft, vllm, _, ollama = uses(exported)
    scope: dict[str, Any] = {}
    exec(next(line for line in peft.lines.splitlines() if line.startswith("messages")), scope)
    assert scope["messages"] == [{"role": "user", "content": question}]
    body = json.loads(shlex.split(vllm.lines.splitlines()[1])[-1])
    assert body["messages"] == scope["messages"]
    assert shlex.split(ollama.lines.splitlines()[-1])[-1] == question


@pytest.mark.parametrize("question", ["", "two\n```\nlines", "`id`", "x" * 201, "\x1b[2J", "\ud800"])
def test_a_question_that_would_break_the_page_is_not_asked(question: str) -> None:
    assert replace(REAL, question=question).asks == "Hello"


@pytest.mark.parametrize(("folder", "name"), [("My Adapter_2", "my-adapter-2"), ("…", "adapter"), ("v1", "v1")])
def test_a_name_that_every_program_takes(folder: str, name: str) -> None:
    assert served_name(Path("/x") / folder) == name


def test_an_ollama_modelfile_has_one_instruction_a_line(tmp_path: Path) -> None:
    """The line that writes it is run by a shell."""
    import subprocess

    out = tmp_path / "it's out"
    out.mkdir()
    brought = Exported(out, Path("/base"), 8, out / GGUF, Path("/models/big model.gguf"))
    subprocess.run(["sh", "-c", uses(brought)[-1].lines.splitlines()[0]], check=True)
    assert (out / "Modelfile").read_text() == f"FROM /models/big model.gguf\nADAPTER {out}/adapter.gguf\n"
