"""The main job as a user does it: submit, wait, look, take the adapter away, and load it elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ..conftest import Lab, consumed_once

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


def test_a_task_runs_from_its_file_to_an_adapter(lab: Lab, tmp_path: Path) -> None:
    task = lab.submit("sums", steps=6, train={"groups_per_step": 2, "group_size": 4})
    lab.marlaas("wait", str(task))
    shown = lab.show(task)
    assert (shown["state"], shown["step"], shown["steps"]) == ("done", 6, 6)
    assert [entry["step"] for entry in shown["eval"]] == [0, 6]
    assert shown["tokens"] > 0 and shown["seconds"] > 0 and 0 <= shown["staleness"] <= 2
    consumed_once(lab.home, task)

    out = tmp_path / "taken"
    lab.marlaas("adapters", "export", str(task), "--out", str(out), "--gguf")
    assert json.loads(lab.marlaas("adapters", "list", str(task), "--json"))
    check_peft_agrees_with_llama(out)


def check_peft_agrees_with_llama(out: Path) -> None:
    """The exported PEFT folder and its GGUF twin give the same next token as each other, without marlaas's sampler."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from marlaas.engine.home.paths import TINY_BASE
    from marlaas.engine.rollout.renderer import Renderer
    from marlaas.plugins.messages import Message

    (config,) = out.rglob("adapter_config.json")
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(TINY_BASE, dtype=torch.float32), str(config.parent)
    )
    tokens = Renderer(TINY_BASE).open([Message("user", "47+85=")])
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0, -1].numpy()
    (twin,) = out.rglob("adapter.gguf")
    np.testing.assert_allclose(logits, stock_llama_logits(twin, tokens), atol=0.02)


def stock_llama_logits(adapter: Path, tokens: list[int]) -> np.ndarray:
    """Next-token logits of plain llama.cpp with a LoRA file."""
    import tempfile

    import llama_cpp

    from marlaas.engine.models.find import load_base
    from marlaas.engine.samplers.llama.model import ensure_base_gguf

    with tempfile.TemporaryDirectory() as folder:
        base = ensure_base_gguf(load_base("tiny"), Path(folder))
        model = llama_cpp.Llama(str(base), lora_path=str(adapter), logits_all=True, n_ctx=256, verbose=False)
        model.eval(tokens)
        scores = np.array(model.scores[len(tokens) - 1])
        model.close()
    return scores


def test_every_shape_of_environment_trains_at_the_same_time(lab: Lab) -> None:
    tasks = [
        lab.submit("sums", "arithmetic", steps=2),
        lab.submit("guess", "guess", steps=2),
        lab.submit("words", "calculator", steps=2, sampling={"max_tokens": 96}),
    ]
    lab.marlaas("wait", *map(str, tasks))
    assert all(lab.show(task)["step"] == 2 for task in tasks)


def test_bad_submissions_change_nothing(lab: Lab, tmp_path: Path) -> None:
    task = lab.submit("sums", steps=1)
    path = tmp_path / "bad.toml"
    path.write_text('tenant = "a"\nname = "b"\nenvironment = "arithmetics"\n')
    assert "Did you mean 'arithmetic'" in lab.marlaas("submit", str(path), code=2)
    path.write_text('tenant = "a"\nname = "b"\nenvironment = "arithmetic"\n[environment_config]\ndigit = 1\n')
    assert "Did you mean 'digits'" in lab.marlaas("submit", str(path), code=2)
    assert "no task 9999" in lab.marlaas("show", "9999", code=2)
    assert max(row["id"] for row in json.loads(lab.marlaas("list", "--json"))) == task
    lab.marlaas("wait", str(task))


def test_a_second_engine_is_refused(lab: Lab) -> None:
    assert "serves" in lab.marlaas("engine", "run", code=2)
    lab.marlaas("engine", "stop")
    lab.marlaas("engine", "status", code=3)
