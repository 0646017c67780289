"""State files come back as they were written; damage is told from what cannot be read; what stays on the disk."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from safetensors.numpy import load_file, save_file

from marlaas.engine.adapters.statefile import (
    MARK,
    PolicyState,
    StateHeader,
    Swept,
    checksum,
    keep,
    lost_files,
    read_state,
    restart_moments,
    spare,
    sweep,
    write_blank,
    write_state,
)
from marlaas.engine.errors import AdapterDamaged, AdapterError, AdapterMissing, AdapterUnreachable

ADAPTER = {"q.lora_A": np.arange(6, dtype=np.float32).reshape(2, 3), "q.lora_B": np.ones((4, 2), dtype=np.float32)}
STATE = PolicyState(
    StateHeader(rank=2, alpha=4.0, step=7, base="abc"),
    ADAPTER,
    {name: array * 2 for name, array in ADAPTER.items()},
    {name: array * 3 for name, array in ADAPTER.items()},
)
FIRST = replace(STATE, header=replace(STATE.header, step=0))


@pytest.mark.parametrize("sync", [True, False])
def test_what_is_written_is_read(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "7.safetensors"
    assert write_state(path, STATE, sync) == path.stat().st_size
    read = read_state(path)
    assert read.header == STATE.header
    assert read.resumable
    for part in ("adapter", "moment1", "moment2"):
        expected, found = getattr(STATE, part), getattr(read, part)
        assert expected.keys() == found.keys()
        assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert not read_state(path, moments=False).resumable
    write_state(path, replace(STATE, moment1={}, moment2={}), sync)
    assert not read_state(path).resumable


def test_the_same_state_is_the_same_bytes_and_others_read_them(tmp_path: Path) -> None:
    shuffled = replace(STATE, adapter=dict(reversed(ADAPTER.items())))
    assert write_state(tmp_path / "7", STATE) == write_state(tmp_path / "8", shuffled)
    assert (tmp_path / "7").read_bytes() == (tmp_path / "8").read_bytes()
    read = load_file(tmp_path / "7")
    assert len(read) == 6 and all(np.array_equal(read[f"adapter/{name}"], array) for name, array in ADAPTER.items())


def test_the_checksum_is_of_names_shapes_and_values() -> None:
    reordered = dict(reversed(ADAPTER.items()))
    assert checksum(reordered) == checksum(ADAPTER)
    others: list[dict[str, Any]] = [
        {**ADAPTER, "q.lora_A": ADAPTER["q.lora_A"] + 1e-6},
        {**ADAPTER, "q.lora_A": ADAPTER["q.lora_A"].reshape(3, 2)},
        {name.replace("q", "k"): array for name, array in ADAPTER.items()},
    ]
    assert len({checksum(adapter) for adapter in (ADAPTER, *others)}) == 4


def test_a_refused_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    write_state(tmp_path / "7", STATE)
    before = (tmp_path / "7").read_bytes()
    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(AdapterUnreachable, match=r"could not be written: No space left.*by itself"):
        write_state(tmp_path / "7", replace(STATE, moment1={}))
    assert (tmp_path / "7").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_version_0_makes_its_folder_and_a_later_one_does_not(tmp_path: Path) -> None:
    """One that is gone may come back: a new one in its place would hide the files in it."""
    path = tmp_path / "task-1" / "v.safetensors"
    with pytest.raises(AdapterUnreachable, match="could not be written: its folder is not there"):
        write_state(path, STATE)
    with pytest.raises(AdapterUnreachable, match="could not be written"):
        write_state(path / "further" / "v", FIRST)
    write_state(path, FIRST)
    write_state(path, STATE)
    assert os.listdir(tmp_path / "task-1") == [path.name]


def test_names_are_brought_to_the_disk_with_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, real = [], os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr("os.fsync", fsync)
    path = tmp_path / "task-1" / "v.safetensors"
    write_state(path, FIRST)
    assert synced == [path.with_name(f".{path.name}.{os.getpid()}"), path.parent, tmp_path]
    synced.clear()
    write_state(path, STATE)
    assert synced[1:] == [path.parent]


ADAPTER_BYTES, *MOMENT_BYTES = (part["q.lora_B"].tobytes() for part in (ADAPTER, STATE.moment1, STATE.moment2))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *((needle, bytes(len(needle))) for needle in (ADAPTER_BYTES, *MOMENT_BYTES)),
        (rb"step\": 7", rb"step\": 8"),
        (rb"format\": 2", rb"format\": 1"),
    ],
)
def test_every_part_and_the_header_are_verified(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "7"
    write_state(path, STATE)
    payload = path.read_bytes()
    assert payload.count(before) == 1
    path.write_bytes(payload.replace(before, after))
    with pytest.raises(AdapterDamaged, match="its checksum is not that of its contents"):
        read_state(path)


def old_file(path: Path, state: PolicyState, **more: object) -> None:
    """As version 0.1.0 wrote it."""
    parts = {"adapter": state.adapter, "moment1": state.moment1, "moment2": state.moment2}
    tensors = {f"{part}/{name}": array for part, named in parts.items() for name, array in named.items()}
    header = {"rank": 2, "alpha": 4.0, "step": 7, "base": "abc", "format": 1, "updates": None, **more}
    save_file(tensors, path, metadata={"marlaas": json.dumps(header)})


def test_format_1_is_read_and_rewritten_as_format_2(tmp_path: Path) -> None:
    path = tmp_path / "7"
    old_file(path, STATE)
    assert read_state(path).header == replace(STATE.header, format=1)
    restart_moments(path, checksum(ADAPTER))
    assert read_state(path).header == replace(STATE.header, updates=0)


def test_what_is_damaged_is_told_from_what_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "7"
    with pytest.raises(AdapterUnreachable, match="is empty, but 7 should lie in it"):
        read_state(path)
    with pytest.raises(AdapterUnreachable, match=r"the folder is not there"):
        read_state(tmp_path / "task-1" / "7")
    write_state(tmp_path / "8", STATE)
    with pytest.raises(AdapterMissing, match="7: the state file is gone"):
        read_state(path)
    path.mkdir()
    with pytest.raises(AdapterUnreachable, match="7: cannot be read: Is a directory"):
        read_state(path)
    with pytest.raises(AdapterUnreachable, match="Not a directory"):
        read_state(tmp_path / "8" / "9")
    path.rmdir()
    path.symlink_to(tmp_path / "8")
    with pytest.raises(AdapterUnreachable, match="it is a link"):
        read_state(path)
    path.unlink()
    for payload in ((tmp_path / "8").read_bytes()[:-1], b"", b"not a safetensors file", bytes(8) + b"{}"):
        path.write_bytes(payload)
        with pytest.raises(AdapterDamaged):
            read_state(path)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_what_the_system_refuses_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    write_state(tmp_path / "7", STATE)
    monkeypatch.setattr("marlaas.engine.adapters.statefile.no_link", refuse)
    with pytest.raises(AdapterUnreachable, match=os.strerror(number)):
        read_state(tmp_path / "7")


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [8, 0]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}',
        b'{"a": {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [2, 1000000000000], "data_offsets": [0, 8000000000000]}}',
        b'{"a": 1}',
        b'{"adapter/\\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [0, 1000000000000000000000], "data_offsets": [0, 0]}}',
        b'{"__metadata__": {"marlaas": "\\ud800"}, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"__metadata__": {"marlaas": 5}, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
    ],
)
def test_hostile_headers_are_damage(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "7"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(AdapterDamaged):
        read_state(path)


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "7"
    save_file({"x": np.zeros(1, dtype=np.float32)}, path)
    with pytest.raises(AdapterDamaged, match="no marlaas state file"):
        read_state(path)
    header = {"rank": 2, "alpha": 4.0, "step": 0, "base": "abc", "format": 3}
    save_file({"x": np.zeros(1, dtype=np.float32)}, path, metadata={"marlaas": json.dumps(header)})
    with pytest.raises(AdapterError, match="has format 3; this marlaas reads formats up to 2") as caught:
        read_state(path)
    assert not isinstance(caught.value, AdapterDamaged)  # a newer marlaas reads it
    save_file({"x": np.zeros(1, dtype=np.float32)}, path, metadata={"marlaas": json.dumps({**header, "format": 1})})
    with pytest.raises(AdapterDamaged, match="holds no adapter"):
        read_state(path)


def test_a_blank_adapter_has_the_shapes_and_adds_nothing(tmp_path: Path) -> None:
    write_state(tmp_path / "7", STATE)
    found = write_blank(tmp_path / "7", tmp_path / "blank")
    blank = read_state(tmp_path / "blank")
    assert found == checksum(blank.adapter) and blank.header == replace(STATE.header, step=0) and not blank.resumable
    assert {name: array.shape for name, array in blank.adapter.items()} == {n: a.shape for n, a in ADAPTER.items()}
    assert not any(array.any() for array in blank.adapter.values())
    with pytest.raises(AdapterError):
        write_blank(tmp_path / "nothing", tmp_path / "blank")


# Arrays of a file come out as they went in.


# What becomes of files that no version names: they go, or are kept where a version was voided.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "adapters" / "task-1"
    folder.mkdir(parents=True)
    for name in ("v1", "v2", ".v3.123"):
        (folder / name).write_text(name)
    return folder


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_what_a_crash_left_behind_is_removed(folder: Path, tmp_path: Path) -> None:
    assert sweep(folder, {"v1"}, tmp_path / "lost") == Swept()
    assert files(folder) == {"v1": "v1"} and not (tmp_path / "lost").exists()
    for act in (lambda: sweep(tmp_path / "gone", set(), tmp_path / "lost"), lambda: spare(tmp_path / "gone")):
        with pytest.raises(AdapterUnreachable, match="gone: cannot be read: No such file"):
            act()


def test_nothing_is_removed_once_a_version_was_voided(folder: Path, tmp_path: Path) -> None:
    lost = tmp_path / "lost+found" / "task-1"
    for again, name in enumerate(("v2", "v2.2", "v2.3")):
        (folder / "v2").write_text(f"v2 {again}")
        spare(folder)
        assert lost / name in sweep(folder, {"v1"}, lost).moved
    assert files(folder) == {"v1": "v1"}
    assert files(lost) == {"v2": "v2 0", "v2.2": "v2 1", "v2.3": "v2 2", ".v3.123": ".v3.123"}
    (tmp_path / "lost+found" / "strange").write_text("of a file system")
    (found,) = lost_files(tmp_path / "lost+found")
    assert (found.folder, found.files, found.size) == (lost, 4, 19)
    (folder / "v4").write_text("of a crash later on")
    assert sweep(folder, {"v1"}, lost) == Swept() and files(folder) == {"v1": "v1"}


def test_what_cannot_be_moved_stays_and_is_tried_again(folder: Path, tmp_path: Path) -> None:
    spare(folder)
    (tmp_path / "lost+found").write_text("in the way")
    swept = sweep(folder, {"v1"}, tmp_path / "lost+found" / "task-1")
    assert not swept.moved and len(swept.problems) == 2 and "stays where it is: Not a directory" in swept.problems[0]
    assert files(folder) == {"v1": "v1", "v2": "v2", ".v3.123": ".v3.123", MARK: ""}
    (tmp_path / "lost+found").unlink()
    assert len(sweep(folder, {"v1"}, tmp_path / "lost+found" / "task-1").moved) == 2
    assert files(folder) == {"v1": "v1"}


def test_the_last_two_the_best_and_the_final_stay() -> None:
    """And every nth from version 0 on; version 0 itself only while training needs it to continue."""
    six, eight, four, last = ({number: True for number in reversed(range(count))} for count in (6, 8, 4, 1))
    assert keep(six, {1}) == ({1, 4, 5}, {4, 5})
    assert keep(six, {1, 2}) == ({1, 2, 4, 5}, {4, 5}), "the best of each series"
    assert keep(eight, set(), every=3) == ({0, 3, 6, 7}, {6, 7})
    assert keep(last, set()) == ({0}, {0})
    assert keep(four, {1}) == ({1, 2, 3}, {2, 3})
    assert keep(four, {1}, given=True) == ({0, 1, 2, 3}, {2, 3})
    assert keep({4: False, 3: False, 2: True, 1: True}, set()) == ({1, 2, 4}, {1, 2}), "the two with moments"


@given(st.dictionaries(st.integers(0, 99), st.booleans()), st.sets(st.integers(0, 99)), st.integers(0, 9))
def test_pruning_twice_prunes_nothing_more(versions: dict[int, bool], bests: set[int], every: int) -> None:
    files, moments = keep(versions, bests, every)
    assert moments <= files <= versions.keys()
    left = {number: resumable for number, resumable in versions.items() if number in files}
    assert keep(left, bests, every) == (files, moments)
