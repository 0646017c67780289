"""Which cards a worker process sees, and by which names. Pure.

For NVIDIA's and AMD's cards an environment variable hides all others, so that a worker cannot use them; the visible
ones are numbered from 0. Backends without such a variable are chosen by name, and so is Vulkan, whose variable numbers
cards otherwise than its list.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..machine import Gpu, Kind

VARIABLES: dict[Kind, str] = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}
GGML: dict[Kind, str] = {"cuda": "CUDA", "rocm": "ROCm"}
"""ggml's name for a card of each kind, before the number."""


def environment(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Environment variables for a worker that computes on ``gpus``, or on the processor if that is empty.

    Without them, a library may take memory of a card that was not assigned to the worker.
    """
    return {name: ",".join(gpu.uuid for gpu in gpus if gpu.kind == kind) for kind, name in VARIABLES.items()}


def llama_devices(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """llama.cpp's names for ``gpus`` in a process with that environment, for ``LlamaSampler``."""
    counted: dict[Kind, int] = {}
    names = []
    for gpu in gpus:
        if gpu.kind in GGML:
            number = counted.get(gpu.kind, 0)
            counted[gpu.kind] = number + 1
            names.append(f"{GGML[gpu.kind]}{number}")
        else:
            names.append(gpu.uuid)
    return tuple(names)
