import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from marlaas.engine.adapters import export
from marlaas.engine.adapters.export import export_adapter
from marlaas.engine.adapters.statefile import PolicyState, StateHeader, checksum, read_state, write_state
from marlaas.engine.errors import AdapterError, BaseModelError
from marlaas.engine.models.find import load_base
from marlaas.engine.models.weights import linear_shapes
from tests.engine.models.gguf.brought import bring, pairs_together
from tests.engine.models.hugging_face import with_lora
from tests.engine.trainer.oracle import Oracle
from tests.engine.trainer.tiny_qwen import VOCABULARY


@pytest.fixture
def state(base: str, tmp_path: Path) -> Path:
    """A state file of step 3 with random matrices."""
    model, draw, adapter = load_base(base), np.random.default_rng(0), {}
    for module, (out, into) in linear_shapes(model.config).items():
        adapter[f"{module}.lora_A"] = draw.normal(size=(4, into)).astype(np.float32)
        adapter[f"{module}.lora_B"] = draw.normal(size=(out, 4)).astype(np.float32)
    path = tmp_path / "state"
    write_state(path, PolicyState(StateHeader(4, 6.0, 3, model.fingerprint), adapter, adapter, adapter))
    return path


def test_peft_loads_the_folder_and_computes_the_same(base: str, state: Path, tmp_path: Path) -> None:
    files = export_adapter(state, Path(base), tmp_path / "out")
    assert sorted(file.name for file in files) == [
        "README.md",
        "USE.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert sorted(files) == sorted((tmp_path / "out").iterdir())
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, str(tmp_path / "out"))
    tokens = np.arange(10, dtype=np.int32) % VOCABULARY
    logits = model(input_ids=torch.arange(10)[None] % VOCABULARY).logits[0, :-1]
    oracle = Oracle(base, state)
    assert torch.equal(torch.log_softmax(logits, -1), oracle.logprobs(tokens))
    assert not torch.allclose(oracle.logprobs(tokens), oracle.logprobs(tokens, base=True), atol=0.1)


def test_the_gguf_twin_holds_the_same_adapter(base: str, state: Path, tmp_path: Path) -> None:
    export_adapter(state, Path(base), tmp_path / "out", gguf=True)
    reader = gguf.GGUFReader(tmp_path / "out" / "adapter.gguf")
    adapter = read_state(state).adapter
    assert reader.fields["adapter.lora.alpha"].contents() == 6.0
    assert len(reader.tensors) == len(adapter)
    (found,) = (t for t in reader.tensors if t.name == "blk.1.ffn_up.weight.lora_b")
    assert np.array_equal(found.data, adapter["model.layers.1.mlp.up_proj.lora_B"])


def test_the_gguf_adapter_has_the_names_of_its_base(tmp_path: Path) -> None:
    model, path = bring("granite", tmp_path / "model")
    base = load_base(tmp_path / "model")
    _, adapter = with_lora(model)
    write_state(tmp_path / "state", PolicyState(StateHeader(4, 6.0, 3, base.fingerprint), adapter))
    for folder, brought in (("told", str(path)), ("guessed", "")):
        export_adapter(tmp_path / "state", base.path, tmp_path / folder, gguf=True, base_gguf=brought)
        reader = gguf.GGUFReader(tmp_path / folder / "adapter.gguf")
        assert reader.fields["general.architecture"].contents() == "granite"
        tensors = {tensor.name: tensor.data for tensor in reader.tensors}
        name = "model.layers.1.self_attn.q_proj.lora_B"
        assert np.array_equal(tensors["blk.1.attn_q.weight.lora_b"], pairs_together(adapter[name], 4))
    with pytest.raises(BaseModelError, match="There is no GGUF file"):
        export_adapter(tmp_path / "state", base.path, tmp_path / "out", gguf=True, base_gguf="nowhere.gguf")
    assert not (tmp_path / "out").exists()


def test_the_readme_escapes_any_task_name(base: str, state: Path, tmp_path: Path) -> None:
    export_adapter(state, Path(base), tmp_path / "out", task="sums\n# \x1b[31mHacked | \u202e")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| step | 3 |" in text
    assert r'"sums\n# \u001b[31mHacked &#124; \u202e"' in text
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 6, str(Path(base).resolve()))


def test_a_flipped_byte_is_not_exported(base: str, state: Path, tmp_path: Path) -> None:
    proof = checksum(read_state(state).adapter)
    export_adapter(state, Path(base), tmp_path / "whole", expected=proof)
    with state.open("r+b") as file:  # the adapter lies first: names are stored in sorted order
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        file.write(b"\x55" * 4)
    with pytest.raises(AdapterError, match="is damaged"):
        export_adapter(state, Path(base), tmp_path / "out", expected=proof)
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(base: str, state: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(AdapterError, match="exists already"):
        export_adapter(state, Path(base), tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(AdapterError, match="exists already"):
        export_adapter(state, Path(base), tmp_path / "link")
    assert list((tmp_path / "out").iterdir()) == []


def test_another_base_is_refused(base: str, tmp_path: Path) -> None:
    adapter = {"q.lora_A": np.zeros((1, 2), dtype=np.float32)}
    write_state(tmp_path / "state", PolicyState(StateHeader(1, 1.0, 0, "another"), adapter))
    with pytest.raises(AdapterError, match="belongs to the base model another, but"):
        export_adapter(tmp_path / "state", Path(base), tmp_path / "out")


def test_a_failed_export_leaves_nothing_behind(
    base: str, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(AdapterError, match="could not be written: No space left"):
        patch.setattr(export, "readme", refuse)
        export_adapter(state, Path(base), tmp_path / "out")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AdapterError, match="could not be written"):
        export_adapter(state, Path(base), tmp_path / "file" / "out")
    with pytest.raises(AdapterError, match="missing: the state file is gone"):
        export_adapter(tmp_path / "missing", Path(base), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "state"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_folder_with_what_is_no_number_is_refused(state: Path, tmp_path: Path, value: float) -> None:
    """Before training begins from it: later it would show as something else."""
    found = read_state(state)
    name = sorted(found.adapter)[3]
    found.adapter[name][1, 2] = value
    folder = tmp_path / "folder"
    folder.mkdir()
    export.write_peft_folder(folder, found, Path("base"), "task")
    with pytest.raises(AdapterError, match=f"the adapter holds what is no finite number, in {name}"):
        export.read_peft_folder(folder)
