"""In which ways a processor is tried, by what it has."""

from __future__ import annotations

import pytest

from tools.processors.__main__ import ARITHMETIC, LLAMA
from tools.processors.ways import Way, ways
from tools.steps import ROOT


@pytest.mark.parametrize(
    ("flags", "instructions"),
    [
        ("aarch64 asimd", ["all instructions"]),
        ("x86_64 avx avx2 fma", ["SSE4", "all instructions"]),
        ("x86_64 avx2 avx512f avx512vl", ["SSE4", "AVX2", "all instructions"]),
        ("x86_64 amx_tile avx2 avx512_bf16 avx512f", ["SSE4", "AVX2", "AVX-512", "all instructions"]),
    ],
)
def test_every_older_instruction_set_and_all_with_each_library(flags: str, instructions: list[str]) -> None:
    found = list(ways(flags, 1))
    assert found == [Way(library, name, 1) for name in instructions for library in ("mkl", "onednn")]
    assert list(ways(flags, 2)) == [*found, Way("mkl", "all instructions", 2), Way("onednn", "all instructions", 2)]


def test_a_way_is_told_by_variables() -> None:
    way = Way("onednn", "AVX2", 1)
    assert way.title == "onednn, AVX2, 1 thread"
    assert way.environment == {
        "MARLAAS_KERNELS": "onednn",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }
    way = Way("mkl", "all instructions", 2)
    assert way.title == "mkl, all instructions, 2 threads"
    assert way.environment == {"MARLAAS_KERNELS": "mkl", "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}


def test_what_is_tried_is_there() -> None:
    assert all((ROOT / path).exists() for path in (*ARITHMETIC, *LLAMA))
