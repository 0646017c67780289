"""The suite in other surroundings: ``python -m tools.matrix pythons`` and ``python -m tools.matrix processors``.

``pythons``: under each other Python that marlaas promises and this machine has, without PyTorch and llama.cpp. As a
plugin of pytest, this module skips there what would import them. ``processors``: tests of arithmetic with each library,
instruction set and number of threads; then those of llama.cpp on one for AVX2, which is compiled into ``.avx2``, once.
Each round ends with its counts; a closing line names those that failed. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import environments
from .processor import instruction_sets
from .steps import ROOT, StepFailed, checked, fail, last_complaint, pip

PROMISED = ("3.11", "3.12", "3.13")
PLACES = (".pyenv/versions/{0}*/bin/python{0}", ".local/share/uv/python/cpython-{0}*/bin/python{0}")
"""Where pyenv and uv keep their Pythons, below the person's folder."""
MISSING = ("torch", "transformers", "peft", "llama_cpp")
"""Not installed under other Pythons, or in need of something that is not."""
WHOLE = {"end_to_end", "slow"}
"""Folders whose tests run real engines with all their workers."""
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


def main(what: str) -> int:
    """Run one of both; 1 if a test failed."""
    failed, count = [], 0
    try:
        for title, passed in {"pythons": pythons, "processors": processors}[what]():
            count += 1
            failed += [] if passed else [title]
    except StepFailed as error:
        return fail(f"Stopped while {error}: {last_complaint()}", "")
    if not count:
        return fail("There is nothing here to test with.", "Debian, uv and pyenv have other Pythons.")
    print(f"{count} rounds, {len(failed)} failed{': ' if failed else ''}{'; '.join(failed)}.")
    return int(bool(failed))


def pythons() -> Iterator[tuple[str, bool]]:
    """Each other Python that is promised: an environment, made once, with all listed packages but the missing ones."""
    for version in PROMISED:
        python = find(version)
        if version == f"{sys.version_info.major}.{sys.version_info.minor}" or python is None:
            continue  # `make test` does this one's own
        lists, plugin = ("install", "serve", "dev"), {"PYTEST_ADDOPTS": "-p tools.matrix -p no:cacheprovider"}
        inside = ROOT / ".pythons" / version / "bin" / "python"
        own = [python, "-m", "venv", "--clear", str(inside.parents[1])]
        here = pip("-e", str(ROOT), "--no-deps", "--no-build-isolation", python=inside)
        environments.made(inside.parents[1], lists, [own, pip(*checked(*lists), python=inside), here])
        yield tested(f"Python {version}", inside, plugin, [])


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


def find(version: str) -> str | None:
    """An interpreter of this version that runs: on the PATH, else pyenv's, else uv's."""
    known = [path for place in PLACES for path in sorted(Path.home().glob(place.format(version)), reverse=True)]
    for python in (shutil.which(f"python{version}"), *map(str, known)):
        code = "import sys, ssl; print(f'{sys.version_info.major}.{sys.version_info.minor}')"
        if (
            python
            and subprocess.run([python, "-I", "-c", code], capture_output=True).stdout.strip() == version.encode()
        ):
            return python
    return None


def tested(title: str, python: Path, variables: dict[str, str], options: Sequence[str]) -> tuple[str, bool]:
    """Run the suite; whether all tests passed."""
    environment = {name: value for name, value in os.environ.items() if name not in HELD} | variables
    print(f"=== {title}", flush=True)
    done = subprocess.run(
        [str(python), "-m", "tools.suite", *options], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL
    )
    return title, done.returncode == 0


class Skipper:
    """A finder of modules that skips the file, or the test, that imports one of ``MISSING``."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Skip, or leave the module to the next finder."""
        if name.partition(".")[0] in MISSING:
            import pytest

            pytest.skip(f"needs {name}", allow_module_level=True)


def pytest_configure() -> None:
    """Install the finder; pytest calls this before it collects."""
    sys.meta_path.insert(0, Skipper())


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out tests that need PyTorch in a child process: those marked ``torch``, and those of whole engines."""
    left_out = [item for item in items if item.get_closest_marker("torch") or WHOLE & set(item.path.parts)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
