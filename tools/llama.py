"""llama.cpp for ``.venv``: kept from before, from an index, or compiled; at once, or in the background.

``python -m tools.llama PROFILE`` is the background's process. What it does, since when, and why it failed is in a file
in the environment, next to a lock that it holds; ``engine/devices/software.py`` reads both for the screen.
Standard library only. Environment: CMAKE_ARGS (further ones for llama.cpp), LLAMA_INDEX (a package index, or a folder,
to take a wheel from; one that contains more than this processor knows is not taken).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import steps
from .locks import holder, locked
from .processor import instruction_sets, misfit
from .steps import Impossible, StepFailed, alone, checked, pip

BACKENDS = {
    "gpu": ("-DGGML_CUDA=on", "nvcc"),
    "vulkan": ("-DGGML_VULKAN=on", "glslc"),
    "metal": ("-DGGML_METAL=on", "c++"),
}
"""By profile: what llama.cpp is compiled with for its cards, and which compiler that takes."""
STARTS_LLAMA = "import llama_cpp; llama_cpp.llama_backend_init()"
COMPILED_FOR = f"{STARTS_LLAMA}; print(llama_cpp.llama_print_system_info().decode())"
IS_THERE = "import importlib.util as u, sys; sys.exit(u.find_spec('llama_cpp') is None)"
COMPILERS = (("CC", ("cc", "gcc", "clang")), ("CXX", ("c++", "g++", "clang++")))
"""Variables that name a compiler, and the usual ones, of C and of C++."""
BACKGROUND_LOG = steps.ROOT / ".venv-llama.log"
STATE, LOCK = ".llama-state", ".llama-lock"
"""Files in the environment: what happens, and who does it."""
NICE = 10
"""How far the background lets others go first: the demo is to have the cores."""


def provide(profile: str) -> None:
    """Install a llama.cpp for this processor, and for the cards of the profile where their compiler is there.

    Waits for another process that does so already. Raises ``StepFailed``, or ``Impossible`` without a compiler.
    """
    with locked(steps.VENV / LOCK, "llama.cpp is being installed by another `make`, or in the background"):
        if there(profile):
            return
        began = time.time()
        record("compiling", began)
        try:
            _install(profile)
        except (StepFailed, Impossible, OSError) as error:
            record("failed", began, reason(error))
            raise
        except BaseException:
            with contextlib.suppress(OSError):
                (steps.VENV / STATE).unlink(missing_ok=True)
            raise
        record("done", began)


def there(profile: str) -> bool:
    """Whether the environment has the llama.cpp that it should have, and that runs."""
    return held_build() == (build_key(flags_of(profile)), instruction_sets()) and steps.runs(STARTS_LLAMA)


def behind(profile: str) -> None:
    """Have it installed in the background, unless one is kept that takes a moment. Says what happens; never fails."""
    if (process := holder(steps.VENV / LOCK)) is not None:
        print(f"llama.cpp is still being compiled in the background (process {process}).", flush=True)
        return
    try:
        if sorted(kept_builds(build_key(flags_of(profile))).glob("*.whl")):
            provide(profile)
            return
        if not os.environ.get("LLAMA_INDEX"):
            check_compilers()
        forget()
        _start(profile)
    except (StepFailed, Impossible, OSError) as error:
        record("failed", time.time(), reason(error))
        print(f"llama.cpp is left out: {reason(error)} This demo does without it.", flush=True)


def _start(profile: str) -> None:
    """Start the background's process, in its own session: Ctrl-C in the terminal does not reach it."""
    BACKGROUND_LOG.write_bytes(b"")
    with open(BACKGROUND_LOG, "ab") as log:
        command = [sys.executable, "-m", "tools.llama", profile]
        process = subprocess.Popen(
            command, cwd=steps.ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    while process.poll() is None and recorded().get("process") != process.pid:
        time.sleep(0.02)  # whoever looks from now on finds it at work
    print(
        f"llama.cpp is compiled meanwhile, in the background (process {process.pid}, log {BACKGROUND_LOG})."
        " The demo does without it.",
        flush=True,
    )


def main(profile: str) -> int:
    """Do it in the background: at low priority, until it is there or SIGTERM comes."""
    steps.LOG = BACKGROUND_LOG
    signal.signal(signal.SIGTERM, _end)
    os.nice(NICE)
    try:
        provide(profile)
    except (StepFailed, Impossible, OSError) as error:
        return steps.fail(f"llama.cpp is not there: {reason(error)}", "")
    return 0


def _end(number: int, frame: object) -> None:
    """End the compilers, which would go on without who called them, and then this process, which tidies up."""
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
    sys.exit(128 + signal.SIGTERM)


def _install(profile: str) -> None:
    flags = flags_of(profile)
    key = build_key(flags)
    forget()
    kept = sorted(kept_builds(key).glob("*.whl"))
    if kept:
        steps.step("installing the llama.cpp that was compiled for this processor", pip(*alone(kept[0])))
    if not kept or not steps.runs(STARTS_LLAMA):
        for damaged in kept:
            damaged.unlink(missing_ok=True)
        _install_new(key, flags)
    if profile == "gpu":  # nothing was installed from the lists, and vLLM does not need all that llama.cpp does
        steps.step("installing what llama.cpp needs", pip("llama-cpp-python"))
    if not steps.runs(STARTS_LLAMA):
        raise Impossible("the llama.cpp that was installed does not start on this processor.")
    held().write_text(f"{key}\n{instruction_sets()}")


def _install_new(key: str, flags: str) -> None:
    with tempfile.TemporaryDirectory(prefix="marlaas-wheel-", ignore_cleanup_errors=True) as folder:
        wheel = fitting_wheel(Path(folder), flags)
        if wheel is not None:
            steps.step("installing that wheel", pip(*alone(wheel)))
            return
    steps.step("installing llama.cpp", pip(*alone(build_llama(key, flags))))


def forget() -> None:
    """Remove a llama.cpp that the environment should not have: it may be for another processor."""
    held().unlink(missing_ok=True)
    if steps.runs(IS_THERE):
        words = [str(steps.python_of(steps.VENV)), "-m", "pip", "uninstall", "-q", "-y", "llama-cpp-python"]
        steps.step("removing a llama.cpp that is for something else", words)


# From an index.


def fitting_wheel(folder: Path, flags: str) -> Path | None:
    """The wheel at LLAMA_INDEX, downloaded into ``folder``; None, after a sentence, if none fits this processor."""
    source = os.environ.get("LLAMA_INDEX", "")
    if not source:
        return None
    if flags or os.environ.get("CMAKE_ARGS"):
        print("  LLAMA_INDEX is not used: with a card or CMAKE_ARGS llama.cpp is compiled.", flush=True)
        return None
    place = ["--no-index", "--find-links", source] if Path(source).is_dir() else ["--index-url", source]
    words = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "-d", str(folder)]
    command = [str(steps.python_of(steps.VENV)), "-m", "pip", "download", *place, *words, wanted_llama()]
    try:
        steps.step(f"looking for a wheel of llama.cpp at {source}", command)
        (wheel,) = folder.glob("*.whl")
        tried = folder / "tried"
        steps.step("trying that wheel", pip("--target", str(tried), "--no-deps", "--no-index", str(wheel)))
    except (StepFailed, ValueError):
        print(f"  LLAMA_INDEX has no wheel of {wanted_llama()} for this Python and system: it is compiled.", flush=True)
        return None
    said = steps.said(COMPILED_FOR, tried)
    why = "it does not start on this processor" if said is None else misfit(said, instruction_sets())
    if why:
        print(f"  The wheel at LLAMA_INDEX is not taken: {why}. llama.cpp is compiled.", flush=True)
        return None
    return wheel


def wanted_llama() -> str:
    """The package and version that is compiled otherwise: ``llama-cpp-python==0.3.36``."""
    found = re.search(r"(?m)^llama-cpp-python==[^\s\\]+", (steps.HASHES / "llama.txt").read_text())
    if found is None:
        raise Impossible("constraints/hashes/llama.txt names no llama-cpp-python.")
    return found[0]


# Compiled.


def build_llama(key: str, flags: str) -> Path:
    """Compile llama.cpp in a temporary environment, with compilers that were checked by hash; one at a time by key."""
    with locked(kept_builds(key) / ".lock", "llama.cpp is being compiled for another checkout of yours"):
        if kept := sorted(kept_builds(key).glob("*.whl")):
            return kept[0]
        check_compilers()
        with tempfile.TemporaryDirectory(prefix="marlaas-build-", ignore_cleanup_errors=True) as folder:
            return _compiled(Path(folder), key, flags)


def _compiled(folder: Path, key: str, flags: str) -> Path:
    out = folder / "wheels"
    steps.step("making room to compile", [sys.executable, "-m", "venv", "--without-pip", str(folder)])
    steps.step("installing what compiles llama.cpp", pip(*checked("build"), into=folder))
    words = ["--no-build-isolation", "--no-cache-dir", "--no-deps", "--require-hashes", "-w", str(out)]
    title = f"compiling llama.cpp {f'with {flags}' if flags else 'for this processor'}"
    own = [str(steps.python_of(steps.VENV)), "-m", "pip", "--python", str(steps.python_of(folder))]
    path = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [*own, "wheel", *words, "-r", str(steps.HASHES / "llama.txt")]
    shown = " ".join(word for word in ("-DLLAVA_BUILD=OFF", flags, os.environ.get("CMAKE_ARGS", "")) if word)
    steps.step(title, command, {"CMAKE_ARGS": shown, "PATH": path})
    (wheel,) = out.glob("*.whl")
    kept = kept_builds(key)
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = shutil.copy(wheel, kept / f".{os.getpid()}")
    return Path(unfinished).replace(kept / wheel.name)


def check_compilers() -> None:
    """Raise ``Impossible`` if there is no compiler."""
    for variable, usual in COMPILERS:
        named = os.environ.get(variable, "").split()
        if not any(shutil.which(name) for name in (named[:1] or usual)):
            raise Impossible(
                "There is no C++ compiler, which llama.cpp is compiled with."
                " On Debian: apt-get install g++. On macOS: xcode-select --install."
            )


def build_key(flags: str) -> str:
    """A key that differs wherever llama.cpp would be compiled to something else."""
    words = (instruction_sets(), *platform.libc_ver(), flags, os.environ.get("CMAKE_ARGS", ""))
    lists = ((steps.HASHES / f"{name}.txt").read_text() for name in ("llama", "build"))
    return hashlib.sha256("\n".join((*words, *lists)).encode()).hexdigest()[:16]


def kept_builds(key: str) -> Path:
    """The folder in which this user's machines keep that build."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "marlaas", "llama", key)


def flags_of(profile: str) -> str:
    """What CMake needs for a profile's cards; empty if it has none, or their compiler is missing."""
    flags, compiler = BACKENDS.get(profile, ("", ""))
    return flags if shutil.which(compiler) else ""


# What is known about it.


def held() -> Path:
    """The file in the environment that names which llama.cpp it has."""
    return steps.VENV / ".llama"


def held_build() -> tuple[str, str]:
    """The key of the llama.cpp in the environment, and the processor that it was compiled for."""
    key, _, processor = held().read_text().partition("\n") if held().exists() else ("", "", "")
    return key, processor


def record(state: str, began: float, why: str = "") -> None:
    """Write what happens, for whoever looks; the file is replaced whole. Times are in seconds since 1970."""
    facts: dict[str, Any] = {"state": state, "began": began, "reason": why}
    facts |= {"log": str(steps.LOG), "process": os.getpid()}
    if state != "compiling":
        facts["ended"] = time.time()
    file = steps.VENV / STATE
    with contextlib.suppress(OSError):  # a full disk, or an environment that is gone: the log has it
        unfinished = file.with_name(f"{STATE}.{os.getpid()}")
        unfinished.write_text(json.dumps(facts))
        unfinished.replace(file)


def recorded() -> dict[str, Any]:
    """What was written last; empty if nothing was."""
    try:
        facts = json.loads((steps.VENV / STATE).read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def reason(error: Exception) -> str:
    """Why it failed, in a sentence or two."""
    if isinstance(error, StepFailed):
        return f"it stopped while {error}: {steps.last_complaint()}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
