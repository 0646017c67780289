"""An architecture that marlaas writes no GGUF for, with a GGUF of the user's: trained through the real engine.

In ``make test-slow``: every day, such files are read and compared in ``tests/engine/models/gguf``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.daemon.lock import holder
from marlaas.engine.home.paths import TINY_BASE, Home

from ..conftest import Lab

pytestmark = [pytest.mark.processes, pytest.mark.slow]

TALK = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
PLUGIN = '''
from marlaas.plugins import env

@env
async def odd(ep):
    """Pays for letters with odd numbers."""
    reply = await ep.ask("say", max_tokens=8)
    return sum(ord(character) % 2 for character in reply.text) / 8
'''


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(Home(tmp_path / "home").create())
    made.home.plugins.joinpath("odd.py").write_text(PLUGIN)
    yield made
    if holder(made.home.lock) is not None:
        control.stop(made.home)


def bring(folder: Path, seed: int) -> tuple[Path, Path]:
    """A random OLMo 2 that talks as the shipped base does, and its GGUF."""
    import torch
    from transformers import Olmo2Config, Olmo2ForCausalLM

    from tests.engine.models.gguf.brought import write
    from tests.engine.models.hugging_face import SIZES

    torch.manual_seed(seed)
    kind: Any = Olmo2ForCausalLM
    sizes = SIZES | {"vocab_size": 288, "max_position_embeddings": 512, "eos_token_id": 1, "pad_token_id": 0}
    model = kind(Olmo2Config(**sizes)).eval()
    model.save_pretrained(folder)
    for name in TALK:
        shutil.copy(TINY_BASE / name, folder / name)
    path = folder.with_suffix(".gguf")
    write(model, "olmo2", path, {})
    return folder, path


def configure(lab: Lab, folder: Path, gguf: Path | str) -> None:
    lab.home.config.write_text(f"base = {json.dumps(str(folder))}\n[rollout]\ngguf = {json.dumps(str(gguf))}\n")


def test_it_trains_and_leaves_and_a_wrong_file_is_refused(lab: Lab, tmp_path: Path) -> None:
    folder, gguf = bring(tmp_path / "olmo", 0)
    configure(lab, folder, "")
    assert "gguf = FILE" in lab.marlaas("engine", "start", code=2)

    configure(lab, folder, gguf)
    task = lab.submit("pays", "odd", steps=2)
    lab.marlaas("wait", str(task))
    steps = json.loads(lab.marlaas("show", str(task), "--json"))
    assert (steps["state"], steps["step"]) == ("done", 2)
    gaps, norms = metrics(lab, "gap_max"), metrics(lab, "grad_norm")
    assert len(gaps) == 2 and max(gaps) < 1e-3 and min(norms) > 0
    out = tmp_path / "adapter"
    lab.marlaas("adapters", "export", str(task), "--out", str(out), "--version", "last", "--gguf")
    assert (out / "adapter.gguf").is_file() and (out / "adapter_model.safetensors").is_file()
    lab.marlaas("engine", "stop")

    _, other = bring(tmp_path / "other", 1)
    configure(lab, folder, other)
    refused = lab.marlaas("engine", "start", code=2)
    assert "does not hold the weights of the base model" in refused and str(other) in refused


def metrics(lab: Lab, name: str) -> list[float]:
    """Of each step, in order."""
    import sqlite3

    with sqlite3.connect(f"file:{lab.home.database}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT value FROM metrics WHERE name = ? ORDER BY step", [name]).fetchall()
    connection.close()
    return [value for (value,) in rows]
