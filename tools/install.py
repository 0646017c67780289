"""Set-up of ``.venv``: says what it will install and how large it is, shows that it works, and does nothing twice.

Run by ``make``; standard library only, because nothing is installed yet. Environment: PROFILE (``cpu``; ``gpu`` for
NVIDIA's cards; ``vulkan`` or ``metal`` for others, on which llama.cpp samples; else chosen by what is there),
TORCH_INDEX (a package index to take torch from; empty for pip's own), CMAKE_ARGS (further ones for llama.cpp).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LLAMA = "llama-cpp-python"
SIZE = "about 1.5 GB with PyTorch's CPU wheels, 6 GB with its CUDA ones"
SIZES = {"cpu": SIZE, "gpu": "about 12 GB with vLLM", "vulkan": SIZE, "metal": "about 1.5 GB"}
BACKENDS = {
    "gpu": ("-DGGML_CUDA=on", "ggml-cuda", "nvcc"),
    "vulkan": ("-DGGML_VULKAN=on", "ggml-vulkan", "glslc"),
    "metal": ("-DGGML_METAL=on", "ggml-metal", "c++"),
}
"""What llama.cpp is compiled with for cards, how the library is then called, and which compiler it takes."""
TICK = 10.0
"""Seconds between signs of life."""


class StepFailed(Exception):
    """A step of the set-up ended badly; the text is the step's title."""


def main(extras: list[str]) -> int:
    """Install the base profile and the further extras that are named."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the check is for people who run make with an older Python
        return fail("marlaas needs Python 3.11 or newer.", "Run `make PYTHON=python3.11 install`, for example.")
    profile = os.environ.get("PROFILE") or usual_profile()
    if profile not in SIZES:
        return fail(f"There is no profile {profile!r}.", f"PROFILE is one of {', '.join(SIZES)}.")
    if profile == "vulkan" and not backend_of(profile):
        return fail(
            "glslc, the compiler of Vulkan's shaders, is missing.", "On Debian: apt-get install glslc libvulkan-dev."
        )
    wanted = ["cpu", *(["gpu"] if profile == "gpu" else []), *extras]
    stamp = VENV / f".installed-{'-'.join([profile, *extras])}"
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
    constraints = [] if profile == "gpu" else ["-c", str(ROOT / "constraints" / "cpu.txt")]
    if not PYTHON.exists():
        step("making .venv", [sys.executable, "-m", "venv", str(VENV)])
    index = os.environ.get("TORCH_INDEX", "")
    source = ["--extra-index-url", index] if index else []
    if profile == "gpu":  # vLLM needs one very version of PyTorch: together, or gigabytes come twice
        step("installing PyTorch and vLLM", pip("-e", f"{ROOT}[gpu]", *source))
    else:
        step("installing PyTorch", pip("torch", *constraints, *source))
    compile_llama(profile, constraints)
    step("installing marlaas", pip("-e", f"{ROOT}[{','.join(wanted)}]", *constraints, *source))


def compile_llama(profile: str, constraints: list[str]) -> None:
    """For this processor, and for the cards of the profile where their compiler is there.

    pip keeps what it has compiled, for whatever processor or card that was: what does not fit is compiled anew.
    """
    flags, library, _ = backend_of(profile) or ("", "", "")
    again = ("--no-cache-dir", "--force-reinstall", "--no-deps", "--no-binary", LLAMA)
    if flags:
        if not compiled_for(library):
            step(f"compiling llama.cpp with {flags}", pip(LLAMA, *again, *constraints), flags)
    else:
        step("compiling llama.cpp for this processor", pip(LLAMA, *constraints))
    if not runs("import llama_cpp; llama_cpp.llama_backend_init()"):
        title = "compiling llama.cpp again: the cached build is for another processor"
        step(title, pip(LLAMA, *again, *constraints), flags)


def backend_of(profile: str) -> tuple[str, ...]:
    """The row of ``BACKENDS``; empty where the profile has none, or its compiler is missing."""
    row = BACKENDS.get(profile, ())
    return row if row and shutil.which(row[2]) else ()


def compiled_for(library: str) -> bool:
    """Whether the llama.cpp in the environment came with this library."""
    return any(VENV.glob(f"lib/python*/site-packages/llama_cpp/lib/*{library}.*"))


def usual_profile() -> str:
    """By what is there."""
    return "gpu" if has_nvidia_driver() else "metal" if is_apple() else "cpu"


def is_apple() -> bool:
    """Whether this is a computer of Apple's with its own processor and card."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def has_nvidia_driver() -> bool:
    """Whether this machine can run CUDA programs."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def announce(profile: str) -> None:
    """Say what is about to happen."""
    found = "An NVIDIA driver was found" if has_nvidia_driver() else "No NVIDIA driver was found"
    free = shutil.disk_usage(ROOT).free / 1e9
    print(f"{found}: profile {profile} (PROFILE={', '.join(SIZES)} overrides).")
    print(f"Into {VENV}: PyTorch, transformers, PEFT, llama.cpp, Textual; {SIZES[profile]}; {free:.0f} GB are free.")
    if not os.environ.get("TORCH_INDEX") and profile in ("cpu", "vulkan"):
        print(
            "TORCH_INDEX=<address of PyTorch's CPU wheels> avoids gigabytes of CUDA libraries if pip would take them."
        )
    for sentence in llama_words(profile):
        print(sentence, flush=True)


def llama_words(profile: str) -> list[str]:
    """How llama.cpp will be compiled."""
    row = backend_of(profile)
    if row:
        return [f"llama.cpp is compiled here with {row[0]}: a quarter of an hour or more on 2 cores, once."]
    words = ["llama.cpp is compiled here: 5 to 7 minutes on 2 cores, once for this user and processor."]
    if profile == "gpu":
        words.append(
            "It is for the processor alone, since nvcc of NVIDIA's CUDA toolkit is missing. vLLM samples on the cards "
            "that it has kernels for; for others install the toolkit, delete .venv and run this again."
        )
    return words


def pip(*arguments: str) -> list[str]:
    """A pip call inside the new environment."""
    return [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", *arguments]


def step(title: str, command: list[str], flags: str = "") -> None:
    """Run one step with its output in the log and a sign of life every few seconds; ``flags`` are for llama.cpp."""
    print(f"  {title} …", flush=True)
    log_path().parent.mkdir(parents=True, exist_ok=True)
    words = ("-DLLAVA_BUILD=OFF", flags, os.environ.get("CMAKE_ARGS", ""))
    environment = os.environ | {"CMAKE_ARGS": " ".join(word for word in words if word)}
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
