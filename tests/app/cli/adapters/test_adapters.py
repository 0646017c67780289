"""adapters: which version is meant, and what is handed to the exporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marlaas.app.operations import commands
from marlaas.app.reading import opened
from marlaas.engine.adapters import export
from marlaas.engine.home.paths import Home
from marlaas.engine.store.rows import VersionRow

from ...commanding import Commander, FakeEngine
from ...filling import Filling


@pytest.fixture
def versions(filling: Filling, home: Home) -> list[VersionRow]:
    """Task 1 has versions 2 (best) and 3 (last) on disk, task 2 version 0 only; both have the same name."""
    filling.task(name="sums", made=3)
    filling.task(name="sums", tenant="other", made=0)
    filling.task(name="7 wonders", made=1)
    with opened(home) as reader:
        return reader.versions()


def test_export(
    versions: list[VersionRow], home: Home, marlaas: Commander, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def fake(
        state_path: Path,
        base_folder: Path,
        out_dir: Path,
        gguf: bool,
        task: str,
        expected: str,
        base_gguf: str,
        ask: str,
    ) -> list[Path]:
        assert (base_gguf, ask) == ("", "17 + 25 = ?")
        asked.append((state_path, base_folder.name, out_dir, gguf, task, expected == versions[0].checksum))
        out_dir.mkdir(exist_ok=True)
        (out_dir / "USE.md").write_text("# Use this adapter\n\nvllm serve")
        return [out_dir / "adapter_model.safetensors", out_dir / "USE.md"]

    monkeypatch.setattr(export, "export_adapter", fake)
    said = marlaas("adapters", "export", "1", "--out", str(tmp_path / "out"), "--version", "last", "--gguf")
    assert (said.code, said.out) == (0, f"{tmp_path}/out/adapter_model.safetensors\n{tmp_path}/out/USE.md\n")
    assert "# Use this adapter\n\nvllm serve\n" in said.err
    assert asked == [(home.root / "adapters/1/3.safetensors", "tiny", tmp_path / "out", True, "sums", True)]
    said = marlaas("adapters", "export", "1", "--out", str(tmp_path / "out"), "--json")
    assert said.json["version"]["number"] == 2 and len(said.json["files"]) == 2


def test_list(versions: list[VersionRow], marlaas: Commander) -> None:
    lines = marlaas("adapters", "list", "1").out.splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["t1-v3-i1", "t1-v2-i1"]


def test_the_list_ends_with_what_the_home_takes(versions: list[VersionRow], home: Home, marlaas: Commander) -> None:
    home.adapters.mkdir(exist_ok=True)
    (home.adapters / "more").write_bytes(bytes(3_000_000))
    said = marlaas("adapters", "list", "1").err
    assert "2 versions, " in said and "adapters 3 MB, database " in said


def test_going_back_says_what_is_void(
    versions: list[VersionRow], marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = iter(["", "A task that is running cannot be rolled back."])
    monkeypatch.setattr(commands, "wait_for_outcomes", lambda reader, sent: dict.fromkeys(sent, next(outcomes)))
    said = marlaas("adapters", "rollback", "1", "--version", "2")
    assert (said.code, said.err) == (0, "Task 1 goes on from version 2 (t1-v2-i1); 1 later step is void.\n")
    said = marlaas("adapters", "rollback", "1", "--version", "2")
    assert said.code == 2 and "cannot be rolled back" in said.err
    assert "has no version '1' on disk" in marlaas("adapters", "rollback", "1", "--version", "1").err
