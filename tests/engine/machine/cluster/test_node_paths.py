"""Folders in a worker's arguments: named here, found on the node."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.cluster.node_host import Folder, find_base, named, resolve
from marlaas.engine.models.find import load_base


@pytest.fixture
def node(tmp_path: Path) -> Home:
    return Home(tmp_path / "node").create()


def test_each_folder_is_the_nodes_own(tmp_path: Path, node: Home) -> None:
    base, home = load_base("tiny"), Home(tmp_path / "home")
    kwargs = {"base": str(base.path), "threads": 2, "parts": {"cache": str(home.base), "scratch": str(home.scratch)}}
    there = named(kwargs, base, home)
    assert there == {
        "base": Folder("model", str(base.path), base.fingerprint),
        "threads": 2,
        "parts": {"cache": Folder("base"), "scratch": Folder("scratch")},
    }
    assert resolve(there, node) == {
        "base": str(base.path),
        "threads": 2,
        "parts": {"cache": str(node.base), "scratch": str(node.scratch)},
    }


def test_a_base_is_found_by_its_fingerprint_wherever_it_lies(tmp_path: Path, node: Home) -> None:
    base = load_base("tiny")
    copy = tmp_path / "a copy"
    shutil.copytree(base.path, copy)
    node.config.write_text(f'base = "{copy}"\n')
    assert find_base(Folder("model", "/elsewhere", base.fingerprint), node) == copy


def test_the_file_that_a_base_was_made_of_is_the_nodes_own(tmp_path: Path, node: Home) -> None:
    folder, copy = (Path(shutil.copytree(load_base("tiny").path, tmp_path / name)) for name in ("base", "a copy"))
    (folder / "model.gguf").touch()
    node.config.write_text(f'base = "{copy}"\n')
    base = load_base(folder)
    there = named({"gguf": str(base.gguf)}, base, Home(tmp_path / "home"))
    assert resolve(there, node) == {"gguf": str(copy / "model.gguf")}


def test_a_node_without_the_base_says_what_to_do(node: Home) -> None:
    with pytest.raises(BaseModelError, match="is not on this node") as caught:
        find_base(Folder("model", "/mnt/bases/qwen", "0123456789abcdef"), node)
    assert "marlaas.toml" in caught.value.hint


def test_another_base_at_the_same_path_is_not_taken(tmp_path: Path, node: Home) -> None:
    with pytest.raises(BaseModelError):
        find_base(Folder("model", str(load_base("tiny").path), "0123456789abcdef"), node)
