"""What is compiled, where it is kept, and what happens where it cannot be."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.torch import sampler
from marlaas.engine.samplers.torch.context import TorchContext
from marlaas.engine.samplers.torch.kernel import library
from marlaas.engine.samplers.torch.kernel.context import CompiledContext
from marlaas.engine.samplers.torch.kernel.library import Library, NotCompiled, compile_to, compiled, tried
from marlaas.engine.samplers.torch.sampler import context_of, nbytes, refusal


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
    _, name = compiled(cache)
    assert [file.stem for file in cache.iterdir()] == [name]


@pytest.mark.parametrize("left", [0, 9000])
def test_a_damaged_file_is_replaced(cache: Path, left: int) -> None:
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:left])
    _, name = compiled(cache)
    assert [one.stem for one in cache.iterdir()] == [name] and next(cache.iterdir()).stat().st_size > left


def test_homes_of_a_user_share_what_is_compiled(
    tmp_path: Path, cache: Path, base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "users_folder", lambda: cache)
    monkeypatch.setenv("CC", "false")
    assert isinstance(context_of(base, 4, 64, "f32", str(tmp_path / "home")), CompiledContext)
    assert [file.suffix for file in (tmp_path / "home").iterdir()] == [".verdict"]


def test_files_of_another_processor_are_left_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "instructions", lambda: "fewer")
    compiled(cache)
    assert len(list(cache.iterdir())) == 2


def test_processes_that_compile_at_once_agree(tmp_path: Path, compiled_files: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        names = {future.result()[1] for future in [pool.submit(compiled, tmp_path / "new") for _ in range(2)]}
    assert {file.stem for file in (tmp_path / "new").iterdir()} == names


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


def test_what_dies_in_its_trial_is_not_used(tmp_path: Path, compiled_files: Path) -> None:
    source = tmp_path / "dies.c"
    text = (
        library.SOURCE.read_text().replace("void decode(", "void decode_(")
        + "\nvoid decode(void) { *(volatile int *)0 = 1; }"
    )
    source.write_text(text)
    with pytest.raises(NotCompiled, match="ends with -"):
        tried(compile_to(tmp_path / "dies.so", source))


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
    """Each is right for a single output matrix, which the trial looks at."""
    source, text = tmp_path / "wrong.c", library.SOURCE.read_text()
    assert text.count(right) == 1
    source.write_text(text.replace(right, wrong))
    made = compile_to(tmp_path / "wrong.so", source)
    tried(made)
    assert refusal(base, Library(made)) == "their results differ from torch's"


def test_rows_that_depend_on_others_are_refused(tmp_path: Path, compiled_files: Path, base: BaseModel) -> None:
    source, text = tmp_path / "mixed.c", library.SOURCE.read_text()
    right = "float factor = 1.0f / sqrtf(sum / (float)size + eps);"
    assert right in text
    source.write_text(text.replace(right, "static int n; " + right + " factor *= 1.0f + 1e-6f * (float)(++n % 7);"))
    made = compile_to(tmp_path / "mixed.so", source)
    assert refusal(base, Library(made)) == "a row's last bits depend on other rows"


def test_a_verdict_is_found_once(cache: Path, base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter(["torch is faster"])
    monkeypatch.setattr(sampler, "refusal", lambda *_: next(given))
    for _ in range(2):
        assert isinstance(context_of(base, 4, 64, "f32", str(cache)), TorchContext)
    (told,) = cache.glob("*.verdict")
    told.write_text("used\n")
    assert isinstance(context_of(base, 4, 64, "f32", str(cache)), CompiledContext)


def test_large_bases_and_bfloat16_are_for_torch(cache: Path, base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(context_of(base, 4, 64, "bf16", str(cache)), TorchContext)
    assert isinstance(context_of(base, 4, 64, "f32", ""), TorchContext)
    monkeypatch.setattr(sampler, "SMALL", nbytes(base) - 1)
    assert isinstance(context_of(base, 4, 64, "f32", str(cache)), TorchContext)


def test_neither_building_nor_its_trial_needs_torch() -> None:
    code = f"import {library.__name__}, sys; sys.exit('torch' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
