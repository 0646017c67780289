"""Set-up of ``.venv``: explains what it will install and how large it is, shows that it works, and does nothing twice.

Run by ``make``; standard library only, because nothing is installed yet. With ``--llama-behind`` it ends as soon as
everything but llama.cpp is there, which then comes in the background (``llama``). Environment: PROFILE (``cpu``;
``gpu`` for NVIDIA's cards; ``vulkan`` or ``metal`` for others, on which llama.cpp samples; else chosen by what is
there), TORCH_INDEX (a package index to take torch from; empty for pip's own), and those of ``llama``.

What is installed is what ``constraints/hashes`` lists, checked by hash: all but PyTorch, which differs by where it is
taken from, and the profile ``gpu``, for which vLLM chooses. llama.cpp is compiled for this processor, and kept for
other checkouts of this user.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import time
from pathlib import Path

from . import llama, steps
from .locks import locked
from .processor import instruction_sets
from .steps import HASHES, ROOT, Impossible, StepFailed, checked, fail, last_complaint, minutes, pip, step

PINS = ROOT / "constraints" / "cpu.txt"
EXTRAS = {"serve": ["serve"], "api": ["api"], "docs": ["docs"], "cluster": ["cluster"], "dev": ["serve", "api", "dev"]}
"""The lists in ``constraints/hashes`` that each extra takes besides ``install``."""
BEHIND = "--llama-behind"
SIZE = "about 1.5 GB with PyTorch's CPU wheels, 6 GB with its CUDA ones"
SIZES = {"cpu": SIZE, "gpu": "about 12 GB with vLLM", "vulkan": SIZE, "metal": "about 1.5 GB"}
NEEDS_CUDA = (
    "import sys, importlib.metadata as m;"
    "sys.exit(not any(r.startswith(('nvidia-', 'cuda-')) for r in m.requires('torch') or ()))"
)
LOCK = ".venv-setup.lock"


def main(words: list[str]) -> int:
    """Install the base profile and the further extras that are named."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the check is for people who run make with an older Python
        return fail("marlaas needs Python 3.11 or newer.", "Run `make PYTHON=python3.11 install`, for example.")
    extras = [word for word in words if word != BEHIND]
    profile = os.environ.get("PROFILE") or usual_profile()
    if profile not in SIZES:
        return fail(f"There is no profile {profile!r}.", f"PROFILE is one of {', '.join(SIZES)}.")
    if profile == "vulkan" and not llama.flags_of(profile):
        return fail(
            "glslc, the compiler of Vulkan's shaders, is missing.", "On Debian: apt-get install glslc libvulkan-dev."
        )
    if unknown := [extra for extra in extras if extra not in EXTRAS]:
        return fail(f"There is no extra {unknown[0]!r}.", f"EXTRAS is one of {', '.join(EXTRAS)}.")
    if stamped(profile, extras) and llama.held_build()[1] == instruction_sets():
        return 0
    started = time.monotonic()
    try:
        install(profile, extras, behind=BEHIND in words)
    except StepFailed as error:
        return fail(f"Set-up stopped while {error}: {last_complaint()}", f"The whole log is {steps.LOG}.")
    except Impossible as error:
        return fail(f"Set-up stopped: {error}", "")
    except OSError as error:
        return fail(f"Set-up stopped: {error}.", "Run it again once that is mended.")
    print(f"Set-up is done after {minutes(time.monotonic() - started)}.", flush=True)
    return 0


def install(profile: str, extras: list[str], behind: bool = False) -> None:
    """Install what is missing; llama.cpp last, and with ``behind`` in the background."""
    with locked(steps.VENV.with_name(LOCK), "another `make` is setting this up"):
        there = stamped(profile, extras)
        if not there:
            announce(profile, behind)
            packages(profile, extras, ["--no-compile"] if behind else [])
            stamp(profile, extras).write_text(fingerprint())
    if llama.held_build()[1] == instruction_sets() if there else llama.there(profile):
        return
    if behind:
        llama.behind(profile)
    else:
        llama.provide(profile)


def packages(profile: str, extras: list[str], how: list[str]) -> None:
    """Install all but llama.cpp: each step needs the one before. ``how`` are further words for pip: the demo leaves it
    to Python to compile what it imports, which takes a quarter of the time."""
    if not steps.python_of(steps.VENV).exists():
        step("making .venv", [sys.executable, "-m", "venv", str(steps.VENV)])
    index = os.environ.get("TORCH_INDEX", "")
    source = ["--extra-index-url", index] if index else []
    if profile == "gpu":  # vLLM needs one exact version of PyTorch: installed together, or gigabytes come twice
        step("installing PyTorch and vLLM", pip(*how, "-e", f"{ROOT}[{','.join(['gpu', *extras])}]", *source))
        return
    lists = ["install", *dict.fromkeys(name for extra in extras for name in EXTRAS[extra])]
    step("installing what marlaas needs", pip(*how, *checked(*lists)))
    step("installing PyTorch", pip(*how, "torch", "--no-deps", "-c", str(PINS), *source))
    if steps.runs(NEEDS_CUDA):  # a PyTorch from another index brings its own ones
        words = ["torch", "-c", str(PINS), *source] if index else checked("cuda")
        step("installing what PyTorch needs", pip(*how, *words))
    step("installing marlaas", pip(*how, "-e", str(ROOT), "--no-deps", "--no-build-isolation"))


def stamp(profile: str, extras: list[str]) -> Path:
    """The file that reports that this combination is installed, but for llama.cpp, which has its own file."""
    return steps.VENV / f".installed-{'-'.join([profile, *extras])}"


def stamped(profile: str, extras: list[str]) -> bool:
    """Whether this combination is installed as it would be installed today."""
    file = stamp(profile, extras)
    return file.exists() and file.read_text() == fingerprint()


def usual_profile() -> str:
    """The profile for what this machine has."""
    apple = ("darwin", "arm64")  # with its own processor and card
    return "gpu" if has_nvidia_driver() else "metal" if (sys.platform, platform.machine()) == apple else "cpu"


def has_nvidia_driver() -> bool:
    """Whether this machine can run CUDA programs."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def announce(profile: str, behind: bool = False) -> None:
    """Say what will be installed, how large it is, and how llama.cpp will come."""
    found = "An NVIDIA driver was found" if has_nvidia_driver() else "No NVIDIA driver was found"
    print(f"{found}: profile {profile} (PROFILE={', '.join(SIZES)} overrides).")
    print(
        f"Into {steps.VENV}: PyTorch, transformers, PEFT, llama.cpp, Textual; {SIZES[profile]};"
        f" {shutil.disk_usage(ROOT).free / 1e9:.0f} GB are free."
    )
    if not os.environ.get("TORCH_INDEX") and profile in ("cpu", "vulkan"):
        print(
            "TORCH_INDEX=<address of PyTorch's CPU wheels> avoids gigabytes of CUDA libraries if pip would take them."
        )
    flags = llama.flags_of(profile)
    when = "in the background, while the demo runs" if behind else "here"
    first = (
        "taken from LLAMA_INDEX if a wheel there fits this processor, else " if os.environ.get("LLAMA_INDEX") else ""
    )
    words = f"llama.cpp is {first}compiled {when}: 5 to 7 minutes on 2 cores, once for this user and processor."
    if any(llama.kept_builds(llama.build_key(flags)).glob("*.whl")):
        words = "llama.cpp was compiled for this processor before, and is taken from your cache folder."
    elif flags:
        words = f"llama.cpp is compiled {when}, with {flags}: a quarter of an hour or more on 2 cores, once."
    if profile == "gpu" and not flags:
        words += (
            "\nIt is for the processor alone, since nvcc of NVIDIA's CUDA toolkit is missing. vLLM samples on the cards"
            " that it has kernels for; for others install the toolkit, delete .venv and run this again."
        )
    print(words, flush=True)


def fingerprint() -> str:
    """A fingerprint that changes whenever an installation would give something else."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (ROOT / "pyproject.toml", PINS, *sorted(HASHES.iterdir()), Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
