"""Which cards a worker process sees, and by which names: cards flow in, variables and names flow out. Pure.

A card of NVIDIA's or AMD's is shown by a variable and counted from 0 inside, so that a worker cannot take another. The
backends without such a variable, and Vulkan, whose variable counts otherwise than its list, are chosen by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from .machine import Gpu, Kind

VARIABLES: dict[Kind, str] = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}
GGML: dict[Kind, str] = {"cuda": "CUDA", "rocm": "ROCm"}
"""What ggml calls their cards, before the number."""


def environment(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Variables for the process of a worker that computes on ``gpus``, or on the processor where there are none.

    Without the variables, a library may make itself at home on a card that nobody gave it.
    """
    return {name: ",".join(gpu.uuid for gpu in gpus if gpu.kind == kind) for kind, name in VARIABLES.items()}


def llama_devices(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """What llama.cpp calls them in a process with that environment, for ``LlamaSampler``."""
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
