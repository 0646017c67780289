"""Prints the ids of the cards in CUDA's order, a line each, as a program.

``python -P -m marlaas.engine.devices.cards.cuda_order``. Only CUDA knows which cards it takes for the fastest, and it
may hang or crash, so a child process asks. It makes no context, and so takes no memory of a card. Functions:
https://docs.nvidia.com/cuda/cuda-driver-api.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import uuid

from .visible import VARIABLE

SECONDS = 20.0


def cuda_order() -> tuple[str, ...] | None:
    """Ids of all cards in CUDA's order, from a child process; None without an answer."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-P", "-m", "marlaas.engine.devices.cards.cuda_order"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=SECONDS, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return tuple(done.stdout.split()) or None if done.returncode == 0 else None


def main() -> int:
    """Print the ids; 1 if CUDA does not answer."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        identify = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
    except (OSError, AttributeError):
        return 1
    count, device, bytes_ = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return 1
    for place in range(count.value):
        if cuda.cuDeviceGet(ctypes.byref(device), place) or identify(ctypes.byref(bytes_), device):
            return 1
        print(f"GPU-{uuid.UUID(bytes=bytes(bytes_))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
