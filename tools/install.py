"""Set-up of ``.venv``: says what it will install and how large it is, shows that it works, and does nothing twice.

Run by ``make``; standard library only, because nothing is installed yet. Environment: PROFILE (``cpu``; ``gpu`` for
NVIDIA's cards; ``vulkan`` or ``metal`` for others, on which llama.cpp samples; else chosen by what is there),
TORCH_INDEX (a package index to take torch from; empty for pip's own), CMAKE_ARGS (further ones for llama.cpp).

What is installed is what ``constraints/hashes`` lists, checked by hash: all but PyTorch, which differs by where it is
taken from, and the profile ``gpu``, for which vLLM chooses. llama.cpp is compiled for this processor, and kept for
other checkouts of this user.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .processor import instruction_sets

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PINS = ROOT / "constraints" / "cpu.txt"
HASHES = ROOT / "constraints" / "hashes"
LLAMA = "llama-cpp-python"
EXTRAS = {"serve": ["serve"], "docs": ["docs"], "dev": ["serve", "dev"]}
"""The lists in ``constraints/hashes`` that each extra takes besides ``install``."""
SIZE = "about 1.5 GB with PyTorch's CPU wheels, 6 GB with its CUDA ones"
SIZES = {"cpu": SIZE, "gpu": "about 12 GB with vLLM", "vulkan": SIZE, "metal": "about 1.5 GB"}
BACKENDS = {
    "gpu": ("-DGGML_CUDA=on", "nvcc"),
    "vulkan": ("-DGGML_VULKAN=on", "glslc"),
    "metal": ("-DGGML_METAL=on", "c++"),
}
"""By profile: what llama.cpp is compiled with for its cards, and which compiler that takes."""
NEEDS_CUDA = (
    "import sys, importlib.metadata as m;"
    "sys.exit(not any(r.startswith(('nvidia-', 'cuda-')) for r in m.requires('torch') or ()))"
)
STARTS_LLAMA = "import llama_cpp; llama_cpp.llama_backend_init()"
HEAD = "\n=== "
"""Begins the words of each step in the log."""
MISMATCH = re.compile(r"DO NOT MATCH THE HASHES[^\n]*\n\s+(\S+)")
"""How pip reports a wrong hash, and of which package."""
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
    if unknown := [extra for extra in extras if extra not in EXTRAS]:
        return fail(f"There is no extra {unknown[0]!r}.", f"EXTRAS is one of {', '.join(EXTRAS)}.")
    stamp = VENV / f".installed-{'-'.join([profile, *extras])}"
    if stamp.exists() and stamp.read_text() == fingerprint() and held_build()[1] == instruction_sets():
        return 0
    announce(profile)
    started = time.monotonic()
    try:
        install(profile, extras)
    except StepFailed as error:
        return fail(f"Set-up stopped while {error}: {last_complaint()}", f"The whole log is {log_path()}.")
    except OSError as error:
        return fail(f"Set-up stopped: {error}.", "Run it again once that is mended.")
    stamp.write_text(fingerprint())
    print(f"Set-up is done after {minutes(time.monotonic() - started)}.", flush=True)
    return 0


def install(profile: str, extras: list[str]) -> None:
    """All steps, in the order in which each needs the one before."""
    if not PYTHON.exists():
        step("making .venv", [sys.executable, "-m", "venv", str(VENV)])
    index = os.environ.get("TORCH_INDEX", "")
    source = ["--extra-index-url", index] if index else []
    if profile == "gpu":  # vLLM needs one exact version of PyTorch: installed together, or gigabytes come twice
        step("installing PyTorch and vLLM", pip("-e", f"{ROOT}[gpu]", *source))
        compile_llama(profile)
        step("installing marlaas", pip("-e", f"{ROOT}[{','.join(['cpu', 'gpu', *extras])}]", *source))
        return
    lists = ["install", *dict.fromkeys(name for extra in extras for name in EXTRAS[extra])]
    step("installing what marlaas needs", pip(*checked(*lists)))
    step("installing PyTorch", pip("torch", "--no-deps", "-c", str(PINS), *source))
    if runs(NEEDS_CUDA):  # a PyTorch from another index brings its own ones
        step(
            "installing what PyTorch needs", pip("torch", "-c", str(PINS), *source) if index else pip(*checked("cuda"))
        )
    compile_llama(profile)
    step("installing marlaas", pip("-e", str(ROOT), "--no-deps", "--no-build-isolation"))


def checked(*lists: str) -> list[str]:
    """Arguments for pip: install the packages of some lists and no others, each with one of the hashes there."""
    files = [word for name in lists for word in ("-r", str(HASHES / f"{name}.txt"))]
    return ["--require-hashes", "--no-deps", "--only-binary", ":all:", *files]


def compile_llama(profile: str) -> None:
    """Install a llama.cpp for this processor, and for the cards of the profile where their compiler is there.

    A compiled one is kept under all that it depends on. The environment says which one it holds: on a disk that several
    machines share, it may be for another processor.
    """
    flags, *_ = backend_of(profile) or ("",)
    key = build_key(flags)
    if held_build()[0] == key and runs(STARTS_LLAMA):
        return
    held().unlink(missing_ok=True)
    kept = sorted(kept_builds(key).glob("*.whl"))
    if kept:
        step("installing the llama.cpp that was compiled for this processor", pip(*alone(kept[0])))
    if not kept or not runs(STARTS_LLAMA):
        step("installing llama.cpp", pip(*alone(build_llama(key, flags))))
    held().write_text(f"{key}\n{instruction_sets()}")


def held() -> Path:
    """The file in the environment that says which llama.cpp it has."""
    return VENV / ".llama"


def held_build() -> tuple[str, str]:
    """The key of the llama.cpp in the environment, and the processor that it was compiled for."""
    key, _, processor = held().read_text().partition("\n") if held().exists() else ("", "", "")
    return key, processor


def alone(wheel: Path) -> list[str]:
    """Arguments for pip: install this one file in place of an installed version."""
    return ["--force-reinstall", "--no-deps", "--no-index", str(wheel)]


def build_llama(key: str, flags: str) -> Path:
    """Compile llama.cpp in a temporary environment, with compilers that were checked by hash."""
    with tempfile.TemporaryDirectory(prefix="marlaas-build-") as folder:
        python, out = Path(folder, "bin", "python"), Path(folder, "wheels")
        step("making room to compile", [sys.executable, "-m", "venv", folder])
        step("installing what compiles llama.cpp", pip(*checked("build"), python=python))
        words = ["--no-build-isolation", "--no-cache-dir", "--no-deps", "--require-hashes", "-w", str(out)]
        title = f"compiling llama.cpp {f'with {flags}' if flags else 'for this processor'}"
        step(title, [str(python), "-m", "pip", "wheel", *words, "-r", str(HASHES / "llama.txt")], flags)
        (wheel,) = out.glob("*.whl")
        kept = kept_builds(key)
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = shutil.copy(wheel, kept / f".{os.getpid()}")
        return Path(unfinished).replace(kept / wheel.name)


def build_key(flags: str) -> str:
    """A key that differs wherever llama.cpp would be compiled to something else."""
    words = (instruction_sets(), *platform.libc_ver(), flags, os.environ.get("CMAKE_ARGS", ""))
    lists = ((HASHES / f"{name}.txt").read_text() for name in ("llama", "build"))
    return hashlib.sha256("\n".join((*words, *lists)).encode()).hexdigest()[:16]


def kept_builds(key: str) -> Path:
    """The folder in which this user's machines keep that build."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "marlaas", "llama", key)


def backend_of(profile: str) -> tuple[str, ...]:
    """The row of ``BACKENDS``; empty where the profile has none, or its compiler is missing."""
    row = BACKENDS.get(profile, ())
    return row if row and shutil.which(row[1]) else ()


def usual_profile() -> str:
    """The profile for what this machine has."""
    return "gpu" if has_nvidia_driver() else "metal" if is_apple() else "cpu"


def is_apple() -> bool:
    """Whether this is a computer of Apple's with its own processor and card."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def has_nvidia_driver() -> bool:
    """Whether this machine can run CUDA programs."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def announce(profile: str) -> None:
    """Say what will be installed, and how large it is."""
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
    """A sentence on how llama.cpp will be compiled."""
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


def pip(*arguments: str, python: Path | None = None) -> list[str]:
    """Arguments that call pip inside the new environment, or with another Python."""
    return [str(python or PYTHON), "-m", "pip", "install", "--disable-pip-version-check", *arguments]


def step(title: str, command: list[str], flags: str = "") -> None:
    """Run one step with its output in the log and a sign of life every few seconds; ``flags`` are for llama.cpp."""
    print(f"  {title} …", flush=True)
    log_path().parent.mkdir(parents=True, exist_ok=True)
    words = ("-DLLAVA_BUILD=OFF", flags, os.environ.get("CMAKE_ARGS", ""))
    environment = os.environ | {"CMAKE_ARGS": " ".join(word for word in words if word)}
    started = time.monotonic()
    with open(log_path(), "ab") as log:
        log.write(f"{HEAD}{title}\n".encode())
        log.flush()
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
    """Whether a line of Python runs without error in a child process, which an illegal instruction may kill."""
    return subprocess.run([str(PYTHON), "-c", program], capture_output=True).returncode == 0


def fingerprint() -> str:
    """A fingerprint that changes whenever an installation would give something else."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (ROOT / "pyproject.toml", PINS, *sorted(HASHES.iterdir()), Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def log_path() -> Path:
    """The file for the output of pip and the compiler."""
    return VENV.with_name(".venv-setup.log")


def last_complaint() -> str:
    """The last line of the log that speaks of an error."""
    text = log_path().read_text(encoding="utf-8", errors="replace")
    text = text[text.rfind(HEAD) + 1 :]
    if found := MISMATCH.search(text):
        return f"the file that came for {found[1]} is not the one that was tested: it has none of its hashes."
    lines = text.splitlines()
    complaints = [line.strip() for line in lines if "error" in line.lower()]
    return complaints[-1] if complaints else "no reason was given."


def minutes(seconds: float) -> str:
    """A duration in words."""
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s" if seconds >= 60 else f"{seconds:.0f} s"


def fail(message: str, hint: str) -> int:
    """Print an error in one sentence and how to mend it; the exit code."""
    print(f"{message} {hint}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
