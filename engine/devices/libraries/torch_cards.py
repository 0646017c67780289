"""Prints PyTorch's, and if asked vLLM's, view of this machine's cards: a line of JSON for each library.

It runs in a separate process, since a driver may hang or crash, and takes no memory of a card.
"""

from __future__ import annotations

import ctypes
import json
import logging
import sys
import warnings
from importlib import import_module


def main(names: list[str]) -> None:
    """Ask PyTorch, and also vLLM if ``vllm`` is among ``names``."""
    warnings.simplefilter("ignore")
    tell("torch", _torch())
    if "vllm" in names:
        logging.disable(logging.CRITICAL)
        tell("vllm", _vllm())


def tell(library: str, facts: dict[str, object]) -> None:
    """Print one line at once, so that a library's output, or a later crash, does not break it."""
    print(json.dumps({"library": library, **facts}), flush=True)


def _torch() -> dict[str, object]:
    try:
        import torch
    except Exception as error:
        return {"error": _sentence(error)}
    facts: dict[str, object] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda or "",
        "rocm": getattr(torch.version, "hip", None) or "",
        "driver_cuda": _driver_cuda(),
        "count": 0,
    }
    if not facts["cuda"] and not facts["rocm"]:
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


def _vllm() -> dict[str, object]:
    try:
        platform = import_module("vllm.platforms").current_platform
    except Exception as error:
        return {"error": _sentence(error)}
    return {"platform": str(getattr(platform, "device_type", "") or "")}


def _sentence(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


if __name__ == "__main__":
    main(sys.argv[1:])
