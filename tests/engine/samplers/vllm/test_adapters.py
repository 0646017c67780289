"""Adapters on their way into vLLM: their folders, and what becomes of them. vLLM's part is played by a list."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from marlaas.engine.adapters.export import read_peft_folder
from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.errors import AdapterError
from marlaas.engine.home.guard import PrivateFolder
from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.vllm.sampler import Engine, FolderAdapters

from ...rollout.contract.asking import State


class Reader:
    """Reads adapters as vLLM does: once, when it is told to."""

    def __init__(self) -> None:
        self.held: dict[int, dict[str, np.ndarray]] = {}
        self.refuses = False

    def add_adapter(self, handle: int, folder: Path) -> None:
        if self.refuses:
            raise AdapterError("It is refused.")
        self.held[handle] = read_peft_folder(folder).adapter

    def remove_adapter(self, handle: int) -> None:
        del self.held[handle]


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def folder(tmp_path: Path) -> PrivateFolder:
    return PrivateFolder(tmp_path / "scratch", "vllm-")


@pytest.fixture
def adapters(reader: Reader, base: BaseModel, folder: PrivateFolder) -> FolderAdapters:
    return FolderAdapters(cast(Engine, reader), base.path, folder, 16)


def test_an_adapter_arrives_as_it_is(adapters: FolderAdapters, reader: Reader, state: State) -> None:
    sent = read_state(state(1)).adapter
    arrived = reader.held[adapters.load_adapter(sent, 16.0)]
    assert all(np.array_equal(arrived[name], array) for name, array in sent.items()) and len(arrived) == len(sent)


def test_every_adapter_has_a_folder_and_a_handle_for_ever(
    adapters: FolderAdapters, reader: Reader, state: State, folder: PrivateFolder
) -> None:
    sent = read_state(state(0)).adapter
    first, second = adapters.load_adapter(sent, 4.0), adapters.load_adapter(sent, 4.0)
    adapters.free_adapter(first)
    third = adapters.load_adapter(sent, 4.0)
    assert len({first, second, third}) == 3
    assert {path.name for path in folder.path.iterdir() if path.is_dir()} == {str(second), str(third)}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir() if path.is_dir()} == {0o700}


def test_a_refused_adapter_leaves_nothing(
    adapters: FolderAdapters, reader: Reader, state: State, folder: PrivateFolder
) -> None:
    reader.refuses = True
    with pytest.raises(AdapterError, match="refused"):
        adapters.load_adapter(read_state(state(0)).adapter, 4.0)
    assert not [path for path in folder.path.iterdir() if path.is_dir()]


def test_too_large_a_rank_is_refused(reader: Reader, base: BaseModel, folder: PrivateFolder, state: State) -> None:
    with pytest.raises(AdapterError, match=r"rank 4; vLLM was started for ranks up to 1\."):
        FolderAdapters(cast(Engine, reader), base.path, folder, 1).load_adapter(read_state(state(0)).adapter, 4.0)


def test_what_was_deleted_is_made_again_and_freed_all_the_same(
    adapters: FolderAdapters, reader: Reader, state: State, folder: PrivateFolder
) -> None:
    sent = read_state(state(0)).adapter
    first = adapters.load_adapter(sent, 4.0)
    shutil.rmtree(folder.path)
    adapters.load_adapter(sent, 4.0)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    adapters.free_adapter(first)
    assert len(reader.held) == 1


def test_a_full_disk_is_said(
    adapters: FolderAdapters, reader: Reader, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("marlaas.engine.samplers.vllm.sampler.write_peft_folder", full)
    with pytest.raises(AdapterError, match=r"could not be written to .*No space left on device"):
        adapters.load_adapter(read_state(state(0)).adapter, 4.0)
    assert not reader.held
