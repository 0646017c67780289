"""Tests of arithmetic in other surroundings: ``python -m tools.matrix``.

With each library, instruction set and number of threads; then those of llama.cpp on one for AVX2, which is compiled
into ``.avx2``, once. Each round ends with its counts; a closing line names those that failed. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import environments
from .processor import instruction_sets
from .steps import ROOT, StepFailed, fail, last_complaint

SETS = {
    "all instructions": ("", ()),
    "SSE4": ("avx2", ("default", "SSE41", "SSE4_2")),
    "AVX2": ("avx512f", ("avx2", "AVX2", "AVX2")),
    "AVX-512": ("avx512_bf16", ("avx512", "AVX512_CORE", "AVX512")),
}
"""The processor's flag for the next newer set, without which a limit changes nothing; and the values of ``HELD``."""
HELD = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""What makes PyTorch, oneDNN and MKL use nothing newer. MKL obeys on Intel's processors only."""
ARITHMETIC = (
    "tests/engine/models",
    "tests/engine/trainer",
    "tests/engine/samplers/test_torch.py",
    "tests/engine/rollout/test_sampler_memory.py",
    "tests/tools/test_base.py",
    "tests/end_to_end/test_repeatable.py",
)
"""Tests whose results depend on how products are computed."""
LLAMA = (
    "tests/engine/samplers/test_llama.py",
    "tests/engine/samplers/test_llama_memory.py",
    "tests/engine/samplers/test_torch.py",
)
AVX2 = "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"


def main() -> int:
    """Run all rounds; 1 if a test failed."""
    try:
        rounds = list(processors())
    except StepFailed as error:
        return fail(f"Stopped while {error}: {last_complaint()}", "")
    failed = [title for title, passed in rounds if not passed]
    print(f"{len(rounds)} rounds, {len(failed)} failed{': ' if failed else ''}{'; '.join(failed)}.")
    return int(bool(failed))


def processors() -> Iterator[tuple[str, bool]]:
    """Each instruction set on one thread, and the newest on two if there are two cores; then the other llama.cpp."""
    flags, cores = instruction_sets().split(), os.cpu_count() or 1
    for threads in (1, 2)[:cores]:
        for name, (flag, values) in SETS.items():
            for library in ("mkl", "onednn"):
                if (not flag or flag in flags) and not (flag and threads == 2):
                    own = {"MARLAAS_KERNELS": library, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
                    title = f"{library}, {name}, {threads} thread{'s' * (threads > 1)}"
                    options = [f"--processes={cores // threads}", "--timeout=600", *ARITHMETIC]
                    yield tested(title, Path(sys.executable), own | dict(zip(HELD, values, strict=False)), options)
    if "avx2" in flags:
        environments.with_llama(ROOT / ".avx2", AVX2)
        yield tested("llama.cpp for AVX2", ROOT / ".avx2" / "bin" / "python", {}, ["--timeout=600", *LLAMA])


def tested(title: str, python: Path, variables: dict[str, str], options: Sequence[str]) -> tuple[str, bool]:
    """Run the suite; whether all tests passed."""
    environment = {name: value for name, value in os.environ.items() if name not in HELD} | variables
    print(f"=== {title}", flush=True)
    done = subprocess.run(
        [str(python), "-m", "tools.suite", *options], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL
    )
    return title, done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
