"""From a policy in a device's memory to its state on the host, and back, bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor

from ..adamw import AdamState
from .policy_memory import PolicyMemory
from .training_state import Numbers, TrainingState

ALIGNED = 64
"""Bytes at a multiple of which torch begins a tensor, and a policy's vectors must: kernels then take the same path."""


def to_host(memory: PolicyMemory) -> TrainingState:
    """A policy's state. On a processor its arrays are views: use them before the policy's next call."""
    optimised = memory.optimised
    return TrainingState(
        config=memory.config,
        layout=memory.layout,
        weights=_array(optimised.weights),
        moment1=_array(optimised.moment1),
        moment2=_array(optimised.moment2),
        gradient=_array(memory.gradient) if memory.gathers else None,
        reference=_array(memory.reference.optimised.weights) if memory.reference else None,
        updates=optimised.step,
        version=memory.version,
        tokens=memory.tokens,
        rehearsal=tuple(memory.rehearsal),
        fault=memory.fault,
    )


def to_device(state: TrainingState, device: str) -> PolicyMemory:
    """Bring a state to the memory of a device. On a processor it takes the arrays over, where it can write to them."""
    weights, moment1, moment2 = (_tensor(part, device) for part in (state.weights, state.moment1, state.moment2))
    gradient = None if state.gradient is None else _tensor(state.gradient, device)
    optimised = AdamState(weights, moment1, moment2, state.updates)
    memory = PolicyMemory.holding(state.config, state.layout, optimised, gradient, state.version)
    if state.reference is not None:
        memory.pulled_to(_tensor(state.reference, device))
    memory.tokens, memory.rehearsal, memory.fault = state.tokens, list(state.rehearsal), state.fault
    return memory


def _array(vector: Tensor) -> Numbers:
    array: Numbers = vector.detach().cpu().numpy()
    return array


def _tensor(array: Numbers, device: str) -> Tensor:
    if not array.flags.writeable or array.ctypes.data % ALIGNED:
        own = torch.empty(len(array))
        own.numpy()[:] = array
        return own.to(device)
    return torch.from_numpy(array).to(device)
