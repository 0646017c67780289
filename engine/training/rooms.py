"""How much memory of a card a trainer may use for passes, and how much for policies.

On a processor the memory plan decides that (``engine/base/memory.py``). On a card it depends on what the base leaves,
which is known once it is loaded.
"""

from __future__ import annotations

import torch

from ..base import PASS_BYTES

PASSES, POLICIES = 0.6, 0.3
"""Shares of what is free beside the base. The rest is for steps, and for gaps between blocks."""
HOST_BYTES = 1 << 30
"""Bytes of host memory for policies paged out of a device that has memory of its own."""


def limit(device: str, memory: int) -> None:
    """Limit this process to ``memory`` bytes of a card; 0 is no limit."""
    where = torch.device(device)
    if where.type == "cuda" and memory:
        total = torch.cuda.get_device_properties(where).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total), where)


def pass_room(device: str) -> int:
    """Bytes that a pass may take on the device, once the base is loaded."""
    free = _free(device)
    return PASS_BYTES if free is None else int(PASSES * free)


def policy_room(device: str) -> int:
    """Bytes for policies on the device; 0 where no limit is known."""
    free = _free(device)
    return 0 if free is None else int(POLICIES * free)


def host_room(device: str) -> int:
    """Bytes of host memory for policies that are paged out of the device."""
    return 0 if torch.device(device).type == "cpu" else HOST_BYTES


def _free(device: str) -> int | None:
    """Bytes of a card that this process may still take; None for other devices."""
    where = torch.device(device)
    if where.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(where)
    allowed = int(torch.cuda.get_per_process_memory_fraction(where) * total)
    return max(0, min(free + _cached(where), allowed - torch.cuda.memory_allocated(where)))


def _cached(where: torch.device) -> int:
    """Bytes that torch caches but does not use."""
    return torch.cuda.memory_reserved(where) - torch.cuda.memory_allocated(where)
