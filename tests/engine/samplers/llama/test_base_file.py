"""One file for each base and precision, by our writer or llama.cpp's quantiser, and how exact each is."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from marlaas.engine.errors import BaseModelError
from marlaas.engine.models import gguf
from marlaas.engine.models.config import PRECISIONS, REPEATABLE, WRITTEN
from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.gguf import read_header
from marlaas.engine.samplers.llama import model as module
from marlaas.engine.samplers.llama.model import TYPES, base_file, ensure_base_gguf, open_base, quantise

from ...rollout.random_base import write_base

FILE_TYPE = {"f32": 0, "f16": 1, **TYPES}


@pytest.fixture
def wide(tmp_path: Path) -> BaseModel:
    """Wide enough for every type: their blocks hold 256 weights."""
    return write_base(tmp_path / "wide", hidden_size=256, intermediate_size=512, head_dim=64)


def logits(base: BaseModel, folder: Path, weights: str) -> NDArray[np.float32]:
    context = open_base(base_file(base, folder, weights), 2, 256, exact=True).context
    tokens = np.arange(40, dtype=np.int32)
    result = context.decode(tokens, tokens, np.zeros(40, np.int32), np.ones(40, np.int8)).copy()
    context.close()
    return result


def test_each_precision_has_a_file_and_less_is_less_exact(wide: BaseModel, tmp_path: Path) -> None:
    sizes, errors = [], []
    exact = logits(wide, tmp_path / "cache", "f32")
    for weights in PRECISIONS:
        path = ensure_base_gguf(wide, tmp_path / "cache", weights)
        assert path.name == f"{wide.fingerprint}-{weights}.gguf" and path.exists()
        assert read_header(path).fields["general.file_type"] == FILE_TYPE[weights]
        before = path.stat().st_mtime_ns
        assert ensure_base_gguf(wide, tmp_path / "cache", weights).stat().st_mtime_ns == before
        sizes.append(path.stat().st_size)
        errors.append(float(np.abs(logits(wide, tmp_path / "cache", weights) - exact).mean()))
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 5 * sizes[-1]
    assert errors == sorted(errors) and 0 < errors[1] < 0.01 < errors[-1] < 1
    assert len(list((tmp_path / "cache").iterdir())) == len(PRECISIONS)
    assert set(PRECISIONS) == {*WRITTEN, *TYPES}


@pytest.mark.parametrize("weights", ["f32", "q8_0"])
@pytest.mark.parametrize("left", [0, 100, -1])
def test_a_file_that_was_cut_is_written_again(base: BaseModel, tmp_path: Path, weights: str, left: int) -> None:
    path = ensure_base_gguf(base, tmp_path, weights)
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    assert ensure_base_gguf(base, tmp_path, weights) == path and path.read_bytes() == whole


@pytest.mark.parametrize("weights", [weights for weights in REPEATABLE if weights in PRECISIONS])
def test_a_row_is_the_same_whatever_runs_beside(wide: BaseModel, tmp_path: Path, weights: str) -> None:
    context = open_base(base_file(wide, tmp_path / "cache", weights), 32, 256).context
    rows = []
    for count in (2, 3, 7, 8, 31):
        sequences = np.arange(count, dtype=np.int32)
        for sequence in range(count):
            context.cut(sequence, 0)
        for place in range(3):
            positions = np.full(count, place, np.int32)
            logits = context.decode(sequences + 5 + place, positions, sequences, np.ones(count, np.int8))
        rows.append(logits[0].copy())
    context.close()
    assert all(np.array_equal(row, rows[0]) for row in rows)


def test_the_file_between_goes_unless_it_was_there(wide: BaseModel, tmp_path: Path) -> None:
    path = ensure_base_gguf(wide, tmp_path / "a", "q8_0")
    assert list((tmp_path / "a").iterdir()) == [path]
    plain = ensure_base_gguf(wide, tmp_path / "b")
    twin = ensure_base_gguf(wide, tmp_path / "b", "q8_0")
    assert plain.exists() and twin.read_bytes() == path.read_bytes()


def test_a_quantiser_that_fails_leaves_nothing(
    wide: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    with pytest.raises(BaseModelError, match=r"llama\.cpp could not write the base model as q8_0 \("):
        quantise(tmp_path / "no.gguf", tmp_path / "out.gguf", "q8_0")

    def into_nowhere(source: Path, _target: Path, weights: str, threads: int) -> None:
        quantise(source, tmp_path / "nowhere" / "out.gguf", weights, threads)

    with monkeypatch.context() as patch, pytest.raises(BaseModelError, match="as q4_k_m"):
        patch.setattr(module, "quantise", into_nowhere)
        ensure_base_gguf(wide, tmp_path / "cache", "q4_k_m")
    assert list((tmp_path / "cache").iterdir()) == []


def test_space_for_the_file_between_is_asked_for(
    wide: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(gguf, "check_space", lambda _folder, needed: asked.append(needed))
    plain = 0
    for weights in ("q8_0", "f32", "q4_k_m", "f16"):
        size = ensure_base_gguf(wide, tmp_path / "cache", weights).stat().st_size
        plain = size if weights == "f32" else plain
        assert size <= asked[-1]
    between, whole, small, half = asked
    assert between > whole >= plain > half > small


def test_a_cache_that_cannot_be_written_is_named(wide: BaseModel, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(BaseModelError, match="could not be written"):
        ensure_base_gguf(wide, tmp_path / "cache")
