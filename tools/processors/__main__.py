"""``python -m tools.processors``: tests of arithmetic in every way in which this processor can compute.

Run by ``make test-slow-processors``; standard library only. A line of counts for each way, the names of what failed,
and a closing line. llama.cpp is compiled for a processor, so a second one, for AVX2 alone, is compiled into ``.avx2``,
once, and the tests of that sampler run on it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..beside import make
from ..processor import instruction_sets
from ..pythons.__main__ import counted, failures, in_words
from ..steps import ROOT
from .ways import HELD, ways

AVX2 = ROOT / ".avx2"
FLAGS = "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
WORDS = "llama.cpp for AVX2; 5 to 7 minutes on 2 cores, once"
ARITHMETIC = (
    "tests/engine/base",
    "tests/engine/training",
    "tests/engine/fleet/colocated",
    "tests/engine/rollout/torch_sampler/test_sampler.py",
    "tests/engine/rollout/test_sampler_memory.py",
    "tests/engine/rollout/torch_sampler/test_cache.py",
    "tests/engine/rollout/torch_sampler/test_tiles.py",
    "tests/tools/base",
    "tests/end_to_end/run/test_repeatable.py",
)
"""Tests whose results depend on how products are computed."""
LLAMA = (
    "tests/engine/rollout/llama/test_sampler.py",
    "tests/engine/rollout/llama/test_native.py",
    "tests/engine/rollout/llama/test_memory.py",
    "tests/engine/rollout/llama/test_opening.py",
    "tests/engine/rollout/torch_sampler/test_sampler.py",
)
LOG = ROOT / ".processors.log"


def main() -> int:
    """All ways, then the other llama.cpp; exit code 1 if a test failed."""
    flags, cores = instruction_sets(), os.cpu_count() or 1
    LOG.unlink(missing_ok=True)
    total: Counter[str] = Counter()
    for way in ways(flags, cores):
        total += tested(way.title, Path(sys.executable), way.environment, ARITHMETIC, cores // way.threads)
    if "avx2" in flags.split():
        if code := make(AVX2, FLAGS, WORDS):
            return code
        total += tested("llama.cpp for AVX2", AVX2 / "bin" / "python", {}, LLAMA, cores)
    print(in_words(total))
    return 1 if total["failed"] else 0


def tested(title: str, python: Path, environment: dict[str, str], files: Sequence[str], workers: int) -> Counter[str]:
    """Run these files; prints the tests that failed, the rest goes to the log."""
    kept = {name: value for name, value in os.environ.items() if name not in HELD}
    done = subprocess.run(
        [str(python), "-m", "tools.suite", "--processes", str(workers), "--timeout=600", *files],
        cwd=ROOT,
        env=kept | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    counts = counted(done.stdout)
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"=== {title}\n{done.stdout}\n")
    print(f"{title}: {in_words(counts)}", flush=True)
    for line in failures(done.stdout):
        print(f"  {line}")
    if counts["failed"]:
        print(f"  The log is {LOG}.")
    return counts


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
