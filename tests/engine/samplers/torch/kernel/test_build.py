"""What is compiled, where it is kept, and what happens where it cannot be."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.torch import sampler
from marlaas.engine.samplers.torch.context import TorchContext
from marlaas.engine.samplers.torch.kernel import compare as comparing, library
from marlaas.engine.samplers.torch.kernel.compare import compare, disagreement
from marlaas.engine.samplers.torch.kernel.context import CompiledContext
from marlaas.engine.samplers.torch.kernel.library import Library, NotCompiled, compile_to, compiled
from marlaas.engine.samplers.torch.sampler import context_of, nbytes


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


@pytest.fixture
def cache(tmp_path: Path, compiled_files: Path) -> Path:
    """A folder with what was compiled once."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for file in compiled_files.glob("*.so"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(autouse=True)
def without_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "users_folder", lambda: None)


def test_it_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    path, _ = compiled(cache)
    assert list(cache.iterdir()) == [path]


@pytest.mark.parametrize("left", [0, 9000])
def test_a_damaged_file_is_replaced(cache: Path, left: int) -> None:
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:left])
    path, _ = compiled(cache)
    assert list(cache.iterdir()) == [path] and path.stat().st_size > left


def test_homes_of_a_user_share_what_is_compiled(
    tmp_path: Path, cache: Path, base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "users_folder", lambda: cache)
    monkeypatch.setenv("CC", "false")
    for _ in range(2):
        assert isinstance(context_of(base, 4, 64, "f32", str(tmp_path / "home")), CompiledContext)
    assert sorted(file.suffix for file in cache.iterdir()) == [".so", ".verdict"]


def test_files_of_another_processor_are_left_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "processor", lambda: "fewer instructions")
    compiled(cache)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo broken pipe dream >&2; exit 1", "broken pipe dream"),
        ("exit 0", "it says nothing"),
        ('while [ "$1" != -o ]; do shift; done; echo no library > "$2"', "invalid ELF header|file too short|cannot"),
    ],
)
def test_a_broken_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    monkeypatch.setenv("CC", script(tmp_path / "broken", text))
    with pytest.raises(NotCompiled, match=said):
        compiled(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_without_a_compiler_torch_computes(
    tmp_path: Path, base: BaseModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(context_of(base, 4, 64, "f32", str(tmp_path / "cache")), TorchContext)
    assert "There is no C compiler." in caplog.text


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, base: BaseModel) -> None:
    (tmp_path / "file").write_text("")
    assert isinstance(context_of(base, 4, 64, "f32", str(tmp_path / "file")), TorchContext)


def test_what_dies_in_its_trial_is_not_used(tmp_path: Path, compiled_files: Path, base: BaseModel) -> None:
    source = tmp_path / "dies.c"
    text = (
        library.SOURCE.read_text().replace("void decode(", "void decode_(")
        + "\nvoid decode(void) { *(volatile int *)0 = 1; }"
    )
    source.write_text(text)
    made = compile_to(tmp_path / "dies.so", source)
    for _ in range(2):  # found out once, and kept
        assert "ends with -" in disagreement(made, base)
    assert len(list(tmp_path.glob("dies-*.verdict"))) == 1


def test_a_comparison_that_fails_is_made_again(
    cache: Path, tmp_path: Path, base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loaded machine, or a base that cannot be read for a moment, says nothing about the passes."""
    (made,) = cache.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(comparing, "SECONDS", 0.01)
        assert "timed out" in disagreement(made, base)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "gone"))
        assert "No such file" in disagreement(made, base)
    assert "BaseModelError" in disagreement(made, replace(base, path=tmp_path / "gone"))
    assert list(cache.iterdir()) == [made] and disagreement(made, base) == ""
    assert len(list(cache.glob("*.verdict"))) == 1


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("head < base->queries ? base->scale : 1.0f", "1.0f"),
        pytest.param("rows->positions[row] + 1, qkv", "rows->positions[row], qkv", marks=pytest.mark.slow),
        ("own->columns[module], dy, ADD", "own->columns[module], dy, SET"),
    ],
)
def test_passes_that_are_wrong_are_refused(
    tmp_path: Path, compiled_files: Path, base: BaseModel, right: str, wrong: str
) -> None:
    source, text = tmp_path / "wrong.c", library.SOURCE.read_text()
    assert text.count(right) == 1
    source.write_text(text.replace(right, wrong))
    made = compile_to(tmp_path / "wrong.so", source)
    assert compare(base, Library(made)) == "Their results differ from torch's."


def test_tokens_that_are_drawn_wrongly_are_refused(tmp_path: Path, compiled_files: Path, base: BaseModel) -> None:
    source, text = tmp_path / "draws.c", library.SOURCE.read_text()
    assert text.count("> noise[row] * total") == 1
    source.write_text(text.replace("> noise[row] * total", "> 0.9 * noise[row] * total"))
    made = compile_to(tmp_path / "draws.so", source)
    assert compare(base, Library(made)) == "The tokens that they draw differ from numpy's."


def test_rows_that_depend_on_others_are_refused(tmp_path: Path, compiled_files: Path, base: BaseModel) -> None:
    source, text = tmp_path / "mixed.c", library.SOURCE.read_text()
    right = "float factor = 1.0f / sqrtf(sum / (float)size + eps);"
    assert right in text
    source.write_text(text.replace(right, "static int n; " + right + " factor *= 1.0f + 1e-6f * (float)(++n % 7);"))
    made = compile_to(tmp_path / "mixed.so", source)
    assert compare(base, Library(made)) == "A row's last bits depend on other rows."


def test_large_bases_and_bfloat16_are_for_torch(cache: Path, base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(context_of(base, 4, 64, "bf16", str(cache)), TorchContext)
    assert isinstance(context_of(base, 4, 64, "f32", ""), TorchContext)
    monkeypatch.setattr(sampler, "SMALL", nbytes(base) - 1)
    assert isinstance(context_of(base, 4, 64, "f32", str(cache)), TorchContext)


def test_building_needs_no_torch() -> None:
    code = f"import {library.__name__}, sys; sys.exit('torch' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
