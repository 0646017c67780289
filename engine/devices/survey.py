"""A survey of the machine: cards, the usable part, marlaas's own share."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from ..programs import run_module
from .calibration import with_rates
from .limits import read_processor
from .machine import Cpu, Gpu, Holder, Inventory, Machine, Mode, Software
from .software import usable_software
from .usable import (
    NOTHING,
    ORDER,
    VARIABLE,
    Ours,
    ResourceSettings,
    UsableResources,
    ambiguous,
    claimed,
    usable_resources,
)

PEOPLE = 500 if sys.platform == "darwin" else 1000
"""Lower account numbers are the system's (``UID_MIN`` of login.defs)."""


def holders_of(listed: Iterable[tuple[int, int, bool]], ours: Collection[int]) -> tuple[Holder, ...]:
    """One holder per process, largest first; ``ours``: this home's engine.

    ``listed``: id, bytes (0: not reported) and True if computing, else it only draws.
    """
    merged: dict[int, tuple[int, bool]] = {}
    for pid, memory, computes in listed:  # one that draws and computes is in both lists, with the same memory
        known, computed = merged.get(pid, (0, False))
        merged[pid] = max(known, memory), computed or computes
    holders = (_holder(pid, *facts, ours) for pid, facts in merged.items())
    return tuple(sorted(holders, key=lambda holder: (-holder.memory, holder.pid)))


def own_account() -> str:
    """As ``Holder.account``."""
    return psutil.Process().username()


def _holder(pid: int, memory: int, computes: bool, ours: Collection[int]) -> Holder:
    account, system, is_ours = "", False, pid in ours
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        account = process.username()
        system = not computes and process.uids().real < PEOPLE
        is_ours = is_ours or (bool(ours) and any(parent.pid in ours for parent in process.parents()))
    return Holder(pid, account, memory, is_ours, screen=system)


# No card, driver or library is no error. NVML takes no card memory, may hang: ``survey`` uses a child process. See
# https://docs.nvidia.com/deploy/nvml-api. Run against an imaginary library only.

LIBRARY = "libnvidia-ml.so.1"
NO_DRIVER = "there is no NVIDIA driver"
UNSEEN, UNSEEN_ROUGHLY = 200_000_000, 1_000_000_000
"""Unseen bytes that count as a process; by the older question of drivers before R510, which counts the driver's own."""
_MODES: dict[int, Mode] = {1: "exclusive", 2: "prohibited", 3: "exclusive"}


def has_driver() -> bool:
    """Does not call the driver."""
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    if any(Path(folder, LIBRARY).exists() for folder in folders):
        return True
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def read_cards(cpu: Cpu, ours: Collection[int] = ()) -> Inventory:
    """As the driver describes it; ``ours``: ids of this engine's processes."""
    try:
        import pynvml as nvml
    except ImportError:
        return Inventory(
            Machine(cpu), reason="NVIDIA cards cannot be looked for: the package nvidia-ml-py is not installed"
        )
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Inventory(Machine(cpu), reason=_why(nvml, error))
    try:
        return _read(nvml, cpu, ours)
    except nvml.NVMLError as error:
        return Inventory(Machine(cpu), reason=f"the NVIDIA driver does not answer: {error}")


def _why(nvml: Any, error: Any) -> str:
    reasons = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: NO_DRIVER,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "an NVIDIA driver is installed and not loaded: there is no card for it, or"
        " it was built for another kernel",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was updated while the old one runs: restart the"
        " machine",
        nvml.NVML_ERROR_NO_PERMISSION: "this account may not use the NVIDIA driver",
    }
    return reasons.get(error.value, f"the NVIDIA driver does not answer: {error}")


def _read(nvml: Any, cpu: Cpu, ours: Collection[int]) -> Inventory:
    driver = _ask(nvml, nvml.nvmlSystemGetDriverVersion) or ""
    version = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2) or 0
    cuda = f"{version // 1000}.{version % 1000 // 10}" if version else ""
    gpus: list[Gpu] = []
    notes = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus += _devices(nvml, index, ours)
        except nvml.NVMLError as error:
            notes.append(f"gpu {index} cannot be used: {error}; restarting the machine may bring it back.")
    reason = "" if gpus or notes else f"the NVIDIA driver {driver} runs and has no card"
    return Inventory(Machine(cpu, tuple(gpus)), driver, cuda, reason, tuple(notes))


def _devices(nvml: Any, index: int, ours: Collection[int]) -> Iterator[Gpu]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    capability = _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle) or (0, 0)
    mode = _MODES.get(_ask(nvml, nvml.nvmlDeviceGetComputeMode, handle) or 0, "shared")
    card = replace(_device(nvml, index, handle, ours), capability=capability, mode=mode)
    divided, _ = _ask(nvml, nvml.nvmlDeviceGetMigMode, handle) or (0, 0)
    if not divided:
        yield card
        return
    for part in range(_ask(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        inner = _ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, part)
        if inner is not None:
            found = _device(nvml, index, inner, ours)
            yield replace(found, part=part, capability=capability, mode=mode, name=found.name or card.name)


def _device(nvml: Any, index: int, handle: Any, ours: Collection[int]) -> Gpu:
    uuid = str(nvml.nvmlDeviceGetUUID(handle))
    exact = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    memory = exact or _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    if memory is None:  # a card without its own memory uses the machine's
        shared = psutil.virtual_memory()
        total, used, free = shared.total, 0, shared.available
    else:
        total, used, free = memory.total, memory.used, memory.free
    holders = holders_of(_processes(nvml, handle), ours)
    told = all(holder.memory for holder in holders)
    rest = int(used) - sum(holder.memory for holder in holders)
    if told and rest > (UNSEEN if exact else UNSEEN_ROUGHLY):
        holders += (Holder(0, "", rest),)
    rates = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    return Gpu(
        index,
        uuid,
        str(_ask(nvml, nvml.nvmlDeviceGetName, handle) or ""),
        "cuda",
        int(total),
        int(free),
        utilisation=None if rates is None else min(1.0, rates.gpu / 100),
        holders=holders,
    )


def _processes(nvml: Any, handle: Any) -> list[tuple[int, int, bool]]:
    lists = (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses)
    return [
        (int(one.pid), int(one.usedGpuMemory or 0), computes)
        for ask, computes in zip(lists, (True, False), strict=True)
        for one in _ask(nvml, ask, handle) or ()
    ]


def _ask(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """None: no answer. Raises if the card has failed."""
    try:
        return question(*arguments)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED, nvml.NVML_ERROR_UNKNOWN):
            raise
        return None


# ``python -P -m marlaas.engine.devices.survey`` prints CUDA's order. CUDA may crash, so a child asks. No card memory:
# https://docs.nvidia.com/cuda/cuda-driver-api.

PROGRAM = "marlaas.engine.devices.survey"
ORDER_SECONDS = 20.0


def cuda_order() -> tuple[str, ...] | None:
    """From a child process; None: no answer."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    out, failure = run_module(PROGRAM, "order", seconds=ORDER_SECONDS, environment=environment)
    return None if failure else tuple(out.decode("utf-8", "replace").split()) or None


def print_cuda_order() -> int:
    """Returns 1 if CUDA does not answer."""
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


# ``python -P -m marlaas.engine.devices.survey PID,PID…`` writes a pickled ``Inventory``, as a driver may hang or crash.

SECONDS = 30.0
"""An unloaded driver takes some seconds a card."""


def probe(ours: Collection[int] = (), seconds: float = SECONDS) -> Inventory:
    """In a child process; ``ours``: ids of this engine's processes.

    Here without a driver that could hang.
    """
    if not has_driver():
        return _nothing(NO_DRIVER)
    out, failure = run_module(PROGRAM, ",".join(map(str, ours)), seconds=seconds, environment=os.environ)
    with contextlib.suppress(Exception):  # an incomplete pickle may raise anything
        inventory = pickle.loads(out)
        if isinstance(inventory, Inventory):
            return inventory
    return _nothing(f"looking for cards failed: {failure or 'it said nothing'}")


def look(ours: Collection[int] = ()) -> Inventory:
    """Here; ``ours`` as in ``probe``."""
    found = read_cards(read_processor(), ours)
    unclear = ambiguous(os.environ.get(VARIABLE), os.environ.get(ORDER), found.machine.gpus)
    return replace(found, order=cuda_order() if unclear else None)


def _nothing(reason: str) -> Inventory:
    return Inventory(Machine(read_processor()), reason=reason)


def main() -> None:
    """Write the inventory; ``order``: CUDA's order."""
    if sys.argv[1:] == ["order"]:
        sys.exit(print_cuda_order())
    out = os.dup(1)
    os.dup2(2, 1)
    ours = frozenset(int(word) for word in sys.argv[1].split(",") if word) if len(sys.argv) > 1 else frozenset()
    with os.fdopen(out, "wb") as stream:
        pickle.dump(look(ours), stream)


@dataclass(frozen=True)
class Survey:
    """All known facts of the machine."""

    found: Inventory
    usable: UsableResources
    software: Software
    account: str
    notes: tuple[str, ...] = ()


def survey_machine(
    resources: ResourceSettings,
    rates: Path,
    ours: Ours = NOTHING,
    *,
    missing: bool = False,
    anew: bool = False,
) -> Survey:
    """``ours`` is the engine's; ``missing`` and ``anew`` as in ``with_rates``."""
    found, account = claimed(probe(ours.processes), ours), own_account()
    usable = usable_resources(found, resources, os.environ, account)
    installed = usable_software(usable.machine.gpus)
    if installed.cards and not found.machine.gpus:  # Apple's, AMD's and Intel's, as llama.cpp lists them
        found = replace(found, machine=replace(found.machine, gpus=installed.cards))
        usable = usable_resources(found, resources, os.environ, account)
    notes: list[str] = []
    if missing or anew:
        _, notes = with_rates(replace(found, machine=usable.machine), rates, missing=missing, anew=anew)
    found, _ = with_rates(found, rates)
    return Survey(found, usable_resources(found, resources, os.environ, account), installed, account, tuple(notes))


if __name__ == "__main__":
    main()
