"""What of /proc/cpuinfo and sysctl says which instructions a compiled program may contain."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import processor

MILAN = (
    "fpu vme de pse sse sse2 ht syscall nx constant_tsc pni ssse3 fma sse4_1 avx f16c bmi1 avx2 smep bmi2 sha_ni vaes"
)
GENOA = f"{MILAN} avx512f avx512_bf16 avx512vl"


@pytest.fixture
def cpuinfo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of a Linux machine with Intel's instructions."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "CPUINFO", path)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return path


def says(path: Path, flags: str) -> str:
    path.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: spectre_v1\n\nprocessor\t: 1\nflags\t\t: {flags}\n")
    return processor.instruction_sets()


def test_other_instructions_are_another_processor(cpuinfo: Path) -> None:
    assert says(cpuinfo, MILAN) != says(cpuinfo, GENOA)
    assert "avx512_bf16" in says(cpuinfo, GENOA) and says(cpuinfo, GENOA).startswith("x86_64 ")


def test_arm(cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd sve i8mm\n")
    assert processor.instruction_sets() == "aarch64 asimd fp i8mm sve"


def test_apple(cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    said = "hw.optional.neon: 1\nhw.optional.arm.FEAT_SME: 0\nhw.optional.arm.FEAT_BF16: 1\n"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=said))
    assert processor.instruction_sets() == "arm64 hw.optional.arm.FEAT_BF16 hw.optional.neon"


V3 = "x86_64 " + " ".join(processor.V3)
REPORTED = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | FMA = 1 | AVX512 = 0 | LLAMAFILE = 1 | OPENMP = 1 | REPACK = 1 | "


@pytest.mark.parametrize(
    ("reported", "known", "why"),
    [
        (REPORTED, V3, ""),
        (REPORTED, f"{V3} avx512f", ""),
        (REPORTED, V3.replace("movbe", ""), "this processor lacks movbe"),
        (REPORTED.replace("AVX512 = 0", "AVX512 = 1"), f"{V3} avx512f", "one kind of processor (AVX512)"),
        (REPORTED + "AVX_VNNI = 1 |", V3, "(AVX_VNNI)"),
        (REPORTED + "SOMETHING_NEW = 1 |", V3, "(SOMETHING_NEW)"),
        ("Metal : EMBED_LIBRARY = 1 | ", V3, "does not say"),
        ("CPU : NEON = 1 | ARM_FMA = 1 | ", "aarch64 asimd fp", ""),
        ("CPU : NEON = 1 | ARM_FMA = 1 | DOTPROD = 1 | ", "aarch64 asimd asimddp fp", "(DOTPROD)"),
        ("CPU : NEON = 1 | ", "arm64 hw.optional.neon", "does not say"),
    ],
)
def test_only_a_generic_llama_fits_and_only_a_known_processor(reported: str, known: str, why: str) -> None:
    said = processor.misfit(reported, known)
    assert why in said if why else said == ""


@pytest.mark.torch
def test_the_llama_of_this_environment_says_what_it_contains() -> None:
    """It was compiled for this processor, with at least what makes products fast; so only a generic one may fit."""
    import llama_cpp

    reported = llama_cpp.llama_print_system_info().decode()
    assert reported.startswith("CPU : ") and " = 1 | " in reported
    said = processor.misfit(reported, processor.instruction_sets())
    assert said == "" or "one kind of processor" in said
