"""Which llama.cpp an environment gets: kept, from an index, or compiled; nothing is compiled here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools import llama, steps

from .conftest import Steps, command, compiled

V3 = "x86_64 abm avx avx2 bmi1 bmi2 cx16 f16c fma lahf_lm movbe pni popcnt sse4_2 ssse3"
GENERIC = "CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | BMI2 = 1 | OPENMP = 1 | REPACK = 1 | "


def test_it_is_compiled_once_for_a_processor_card_and_wish(
    ran: Steps, processor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    processor("with AVX-512")
    llama.provide("cpu")
    llama.provide("cpu")
    assert compiled(ran) == [""], "it is there"
    llama.held().unlink()
    llama.provide("cpu")
    assert compiled(ran) == [""], "another checkout of the same user"
    assert "llama.whl" in command(ran, "installing the llama.cpp that was compiled for this processor")
    processor("with AVX2")
    llama.provide("cpu")
    assert compiled(ran) == ["", ""]
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    llama.provide("vulkan")
    assert compiled(ran)[2:] == ["-DGGML_VULKAN=on"]
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_BLAS=on")
    llama.provide("vulkan")
    assert compiled(ran)[3:] == ["-DGGML_VULKAN=on -DGGML_BLAS=on"]


def test_one_that_does_not_run_is_made_for_the_same_card(ran: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was kept is not taken a second time; if the new one does not run either, the set-up says so."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    llama.provide("vulkan")
    monkeypatch.setattr(steps, "runs", lambda program: False)
    with pytest.raises(steps.Impossible, match="does not start on this processor"):
        llama.provide("vulkan")
    assert compiled(ran) == ["-DGGML_VULKAN=on"] * 2 and llama.held_build() == ("", "")


def test_another_one_is_removed_before_anything_is_begun(ran: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the background, too: else the engine that starts meanwhile may load one for another processor."""
    monkeypatch.setattr(steps, "runs", lambda program: True)
    seen: list[list[str]] = []
    monkeypatch.setattr(llama, "_start", lambda profile: seen.append([title for title, _, _ in ran]))
    llama.behind("cpu")
    assert seen == [["removing a llama.cpp that is for something else"]]


def test_a_compiler_is_needed_by_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(steps.Impossible, match=r"no C\+\+ compiler.*apt-get install g\+\+"):
        llama.check_compilers()
    monkeypatch.setenv("CC", "clang-19 -m64")
    monkeypatch.setenv("CXX", "clang++-19")
    monkeypatch.setattr("shutil.which", lambda name: name if name in ("clang-19", "clang++-19") else None)
    llama.check_compilers()


def test_a_background_that_cannot_begin_leaves_the_reason(
    ran: Steps, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise steps.Impossible(" ".join(llama.NO_COMPILER))

    monkeypatch.setattr(llama, "check_compilers", none)
    llama.behind("cpu")
    assert "llama.cpp is left out: There is no C++ compiler" in capsys.readouterr().out
    assert '"failed"' in (steps.VENV / llama.STATE).read_text()


@pytest.fixture
def index(ran: Steps, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str | None], None]:
    """An index with a wheel that reports what it was compiled for; None: it crashes."""
    monkeypatch.setenv("LLAMA_INDEX", "https://wheels.example")
    before = steps.step

    def step(title: str, words: list[str], variables: dict[str, str] | None = None) -> None:
        before(title, words, variables)
        if "download" in words:
            Path(words[words.index("-d") + 1], "offered.whl").touch()

    monkeypatch.setattr(steps, "step", step)

    def reports(said: str | None) -> None:
        monkeypatch.setattr(steps, "said", lambda program, path: said)

    return reports


def test_a_wheel_that_fits_is_taken(
    ran: Steps, index: Callable[[str | None], None], processor: Callable[[str], None]
) -> None:
    processor(V3)
    index(GENERIC)
    llama.provide("cpu")
    assert compiled(ran) == [] and "offered.whl" in command(ran, "installing that wheel")
    looked = command(ran, "looking for a wheel of llama.cpp at https://wheels.example")
    assert llama.wanted_llama() in looked and "--index-url https://wheels.example" in looked
    ran.clear()
    llama.provide("cpu")
    assert ran == []


@pytest.mark.parametrize(
    ("said", "machine", "why"),
    [
        (None, V3, "it does not start on this processor"),
        (GENERIC, V3.replace(" avx2", ""), "this processor lacks avx2"),
        (GENERIC + "AVX512 = 1 | ", f"{V3} avx512f", "it was compiled for one kind of processor (AVX512)"),
        ("", V3, "it does not say which instructions it contains"),
    ],
)
def test_a_wheel_that_may_not_fit_is_not_taken(
    said: str | None,
    machine: str,
    why: str,
    ran: Steps,
    index: Callable[[str | None], None],
    processor: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    processor(machine)
    index(said)
    llama.provide("cpu")
    assert compiled(ran) == [""] and why in capsys.readouterr().out


def test_where_a_card_is_asked_for_the_index_is_left_alone(
    ran: Steps, index: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    llama.provide("vulkan")
    assert compiled(ran) == ["-DGGML_VULKAN=on"] and not any("download" in words for _, words, _ in ran)


def test_a_folder_is_an_index_too(
    ran: Steps, index: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LLAMA_INDEX", str(tmp_path))
    index(None)
    llama.provide("cpu")
    assert f"--no-index --find-links {tmp_path}" in command(ran, f"looking for a wheel of llama.cpp at {tmp_path}")
