import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from marlaas.engine.adapters.statefile import (
    PolicyState,
    StateHeader,
    checksum,
    read_state,
    write_blank,
    write_state,
)
from marlaas.engine.errors import AdapterError

ADAPTER = {"q.lora_A": np.arange(6, dtype=np.float32).reshape(2, 3), "q.lora_B": np.ones((4, 2), dtype=np.float32)}
STATE = PolicyState(
    StateHeader(rank=2, alpha=4.0, step=7, base="abc"),
    ADAPTER,
    {name: array * 2 for name, array in ADAPTER.items()},
    {name: array * 3 for name, array in ADAPTER.items()},
)


@pytest.mark.parametrize("sync", [True, False])
def test_what_is_written_is_read(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "new" / "7.safetensors"
    assert write_state(path, STATE, sync) == path.stat().st_size
    read = read_state(path)
    assert read.header == STATE.header
    assert read.resumable
    for part in ("adapter", "moment1", "moment2"):
        expected, found = getattr(STATE, part), getattr(read, part)
        assert expected.keys() == found.keys()
        assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_moments_can_be_left_out(tmp_path: Path) -> None:
    write_state(tmp_path / "7", STATE)
    assert not read_state(tmp_path / "7", moments=False).resumable
    write_state(tmp_path / "7", replace(STATE, moment1={}, moment2={}))
    assert not read_state(tmp_path / "7").resumable


def test_the_checksum_is_of_names_shapes_and_values() -> None:
    reordered = dict(reversed(ADAPTER.items()))
    assert checksum(reordered) == checksum(ADAPTER)
    assert (
        len(
            {
                checksum(adapter)
                for adapter in (
                    ADAPTER,
                    {**ADAPTER, "q.lora_A": ADAPTER["q.lora_A"] + 1e-6},
                    {**ADAPTER, "q.lora_A": ADAPTER["q.lora_A"].reshape(3, 2)},
                    {name.replace("q", "k"): array for name, array in ADAPTER.items()},
                )
            }
        )
        == 4
    )


def test_a_refused_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    write_state(tmp_path / "7", STATE)
    before = (tmp_path / "7").read_bytes()
    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(AdapterError, match="could not be written: No space left"):
        write_state(tmp_path / "7", replace(STATE, moment1={}))
    assert (tmp_path / "7").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "7"
    with pytest.raises(AdapterError, match="cannot be read"):
        read_state(path)
    write_state(path, STATE)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(AdapterError, match="cannot be read"):
        read_state(path)
    path.write_bytes(b"not a safetensors file")
    with pytest.raises(AdapterError, match="cannot be read"):
        read_state(path)


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "7"
    save_file({"x": np.zeros(1, dtype=np.float32)}, path)
    with pytest.raises(AdapterError, match="no marlaas state file"):
        read_state(path)
    header = {"rank": 2, "alpha": 4.0, "step": 0, "base": "abc", "format": 2}
    save_file({"x": np.zeros(1, dtype=np.float32)}, path, metadata={"marlaas": json.dumps(header)})
    with pytest.raises(AdapterError, match="has format 2; this marlaas reads format 1"):
        read_state(path)
    save_file({"x": np.zeros(1, dtype=np.float32)}, path, metadata={"marlaas": json.dumps({**header, "format": 1})})
    with pytest.raises(AdapterError, match="holds no adapter"):
        read_state(path)


def test_a_blank_adapter_has_the_shapes_of_another_and_adds_nothing(tmp_path: Path) -> None:
    write_state(tmp_path / "7", STATE)
    found = write_blank(tmp_path / "7", tmp_path / "blank")
    blank = read_state(tmp_path / "blank")
    assert found == checksum(blank.adapter) and blank.header == replace(STATE.header, step=0) and not blank.resumable
    assert {name: array.shape for name, array in blank.adapter.items()} == {n: a.shape for n, a in ADAPTER.items()}
    assert not any(array.any() for array in blank.adapter.values())
    with pytest.raises(AdapterError):
        write_blank(tmp_path / "nothing", tmp_path / "blank")
