"""Set-up of ``.venv``: says what it will install and how large it is, shows that it works, and does nothing twice.

Run by ``make``; standard library only, because nothing is installed yet. Environment: PROFILE (cpu or gpu, else chosen
by whether an NVIDIA driver is there), TORCH_INDEX (a package index to take torch from; empty for pip's own).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LLAMA = "llama-cpp-python"
SIZES = {"cpu": "about 1.5 GB with PyTorch's CPU wheels, 6 GB with its CUDA ones", "gpu": "about 12 GB"}
TICK = 10.0
"""Seconds between signs of life."""


class StepFailed(Exception):
    """A step of the set-up ended badly; the text is the step's title."""


def main(extras: list[str]) -> int:
    """Install the base profile and the further extras that are named."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the check is for people who run make with an older Python
        return fail("marlaas needs Python 3.11 or newer.", "Run `make PYTHON=python3.11 install`, for example.")
    profile = os.environ.get("PROFILE") or ("gpu" if has_nvidia_driver() else "cpu")
    wanted = ["cpu", *(["gpu"] if profile == "gpu" else []), *extras]
    stamp = VENV / f".installed-{'-'.join(wanted)}"
    if stamp.exists() and stamp.read_text() == fingerprint():
        return 0
    announce(profile)
    started = time.monotonic()
    try:
        install(profile, wanted)
    except StepFailed as error:
        return fail(f"Set-up stopped while {error}: {last_complaint()}", f"The whole log is {log_path()}.")
    stamp.write_text(fingerprint())
    print(f"Set-up is done after {minutes(time.monotonic() - started)}.", flush=True)
    return 0


def install(profile: str, wanted: list[str]) -> None:
    """All steps, in the order in which each needs the one before."""
    constraints = ["-c", str(ROOT / "constraints" / "cpu.txt")] if profile == "cpu" else []
    if not PYTHON.exists():
        step("making .venv", [sys.executable, "-m", "venv", str(VENV)])
    index = os.environ.get("TORCH_INDEX", "")
    step("installing PyTorch", pip("torch", *constraints, *(["--extra-index-url", index] if index else [])))
    step("compiling llama.cpp for this processor", pip(LLAMA, *constraints))
    if not runs("import llama_cpp; llama_cpp.llama_backend_init()"):
        again = ("--no-cache-dir", "--force-reinstall", "--no-deps", "--no-binary", LLAMA)
        step("compiling llama.cpp again: the cached build is for another processor", pip(LLAMA, *again, *constraints))
    step("installing marlaas", pip("-e", f"{ROOT}[{','.join(wanted)}]", *constraints))


def has_nvidia_driver() -> bool:
    """Whether this machine can run CUDA programs."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def announce(profile: str) -> None:
    """Say what is about to happen."""
    found = "An NVIDIA driver was found" if has_nvidia_driver() else "No NVIDIA driver was found"
    free = shutil.disk_usage(ROOT).free / 1e9
    print(f"{found}: profile {profile} (PROFILE=cpu or PROFILE=gpu overrides).")
    print(f"Into {VENV}: PyTorch, transformers, PEFT, llama.cpp, Textual; {SIZES[profile]}; {free:.0f} GB are free.")
    if not os.environ.get("TORCH_INDEX") and profile == "cpu":
        print(
            "TORCH_INDEX=<address of PyTorch's CPU wheels> avoids gigabytes of CUDA libraries if pip would take them."
        )
    print("llama.cpp is compiled here: 5 to 7 minutes on 2 cores, once for this user and processor.", flush=True)


def pip(*arguments: str) -> list[str]:
    """A pip call inside the new environment."""
    return [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", *arguments]


def step(title: str, command: list[str]) -> None:
    """Run one step with its output in the log and a sign of life every few seconds."""
    print(f"  {title} …", flush=True)
    log_path().parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"CMAKE_ARGS": f"-DLLAVA_BUILD=OFF {os.environ.get('CMAKE_ARGS', '')}".strip()}
    started = time.monotonic()
    with open(log_path(), "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=ROOT)
        while True:
            try:
                code = process.wait(TICK)
                break
            except subprocess.TimeoutExpired:
                print(f"    still {title.split(':')[0]}, {minutes(time.monotonic() - started)}", flush=True)
            except BaseException:
                process.terminate()
                raise
    if code:
        raise StepFailed(title)


def runs(program: str) -> bool:
    """Whether a line of Python ends well in a child, which an illegal instruction may kill."""
    return subprocess.run([str(PYTHON), "-c", program], capture_output=True).returncode == 0


def fingerprint() -> str:
    """Changes whenever an installation would give something else."""
    digest = hashlib.sha256(sys.version.encode())
    for name in ("pyproject.toml", "constraints/cpu.txt", "tools/install.py"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def log_path() -> Path:
    """Where the words of pip and the compiler go."""
    return VENV.with_name(".venv-setup.log")


def last_complaint() -> str:
    """The last line of the log that speaks of an error."""
    lines = log_path().read_text(encoding="utf-8", errors="replace").splitlines()
    complaints = [line.strip() for line in lines if "error" in line.lower()]
    return complaints[-1] if complaints else "no reason was given."


def minutes(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s" if seconds >= 60 else f"{seconds:.0f} s"


def fail(message: str, hint: str) -> int:
    """One sentence and a way out."""
    print(f"{message} {hint}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
