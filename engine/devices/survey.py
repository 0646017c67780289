"""A survey of the machine: cards, the usable part, marlaas's own share, and measured rates.

The home keeps rates by device, driver and torch. They are measured in a child process, so a failure gives a reason:
``python -P -m marlaas.engine.devices.survey cpu CORE`` measures one core, ``cuda`` the only visible card, and prints
JSON. Never run on cards.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import pickle
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from ..programs import run_module
from ..tables import add_to_table, read_table
from .limits import address_space, read_processor
from .machine import Cpu, Gpu, Holder, Inventory, Machine, Mode, Rates, Software
from .software import usable_software, version_of
from .usable import (
    NOTHING,
    ORDER,
    VARIABLE,
    Ours,
    ResourceSettings,
    UsableResources,
    ambiguous,
    claimed,
    environment,
    usable_resources,
)

if TYPE_CHECKING:
    import torch


BUSY = 0.2
"""Share of the cores for others without a warning."""


class OtherPrograms:
    """Usage of ``cores`` (empty: all) by other programs, children excluded."""

    def __init__(self, cores: Collection[int] = ()) -> None:
        self._cores = cores or range(psutil.cpu_count() or 1)
        self._began = self._look()

    def used(self) -> float:
        (before, all_before, own_before), (now, everybody, own) = self._began, self._look()
        return max(0.0, (everybody - all_before - own + own_before) / max(1e-9, now - before))

    def warning(self) -> str:
        used, many = self.used(), len(self._cores)
        if used <= BUSY * many:
            return ""
        return f"This machine is busy: other programs use {used:.1f} of {many} {'core' if many == 1 else 'cores'}."

    def _look(self) -> tuple[float, float, float]:
        counted = psutil.cpu_times(percpu=True)
        ours = [counted[core] for core in self._cores]
        busy = sum(sum(times) - times.idle - getattr(times, "iowait", 0.0) for times in ours)
        process, own = psutil.Process(), 0.0
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                own += sum(one.cpu_times()[:4])  # user and system, also of ended children
        return time.monotonic(), busy, own


PROGRAM = "marlaas.engine.devices.survey"
MEASURE_SECONDS = 60.0


def with_rates(
    found: Inventory, path: Path, *, missing: bool = False, anew: bool = False
) -> tuple[Inventory, list[str]]:
    """Rates from the file ``path``; ``missing`` measures the others, ``anew`` all (seconds each). Also notes on
    failures."""
    table = {key: _rates(value) for key, value in read_table(path).items()}
    known = {key: rates for key, rates in table.items() if rates is not None}
    notes: list[str] = []
    rates: dict[str, Rates] = {}
    devices: list[Cpu | Gpu] = [found.machine.cpu, *found.machine.gpus]
    for device in devices:
        key = key_of(device, found)
        if key in known and not anew:
            rates[key] = known[key]
        elif (missing or anew) and (isinstance(device, Cpu) or device.kind == "cuda"):
            measured = measure(device)
            if isinstance(measured, Rates):
                rates[key] = measured
            else:
                label = device.label if isinstance(device, Gpu) else "the processor"
                notes.append(f"The rates of {label} could not be measured: {measured}.")
    if rates.keys() - known.keys() or anew:
        add_to_table(path, {key: asdict(each) for key, each in rates.items()})
    return replace(found, machine=_rated(found, rates)), notes


def _rated(found: Inventory, rates: Mapping[str, Rates]) -> Machine:
    machine, key = found.machine, key_of(found.machine.cpu, found)
    if key in rates and address_space() is not None:
        rates = {**rates, key: replace(rates[key], bfloat16=0.0)}
    gpus = (replace(gpu, rates=rates.get(key_of(gpu, found))) for gpu in machine.gpus)
    return Machine(replace(machine.cpu, rates=rates.get(key)), tuple(gpus))


def key_of(device: Cpu | Gpu, found: Inventory) -> str:
    """Device, driver and torch."""
    who = f"{device.uuid} {device.name} driver {found.driver}" if isinstance(device, Gpu) else f"cpu {device.name}"
    return f"{who} torch {version_of('torch')}"


def measure(device: Cpu | Gpu) -> Rates | str:
    """A device's rates, or why there are none."""
    words = (device.kind,) if isinstance(device, Gpu) else ("cpu", *map(str, device.cores[-1:]))
    variables = os.environ | environment([device] if isinstance(device, Gpu) else ())
    out, failure = run_module(PROGRAM, *words, seconds=MEASURE_SECONDS, environment=variables)
    last = out.decode("utf-8", "replace").strip().rpartition("\n")[2]
    with contextlib.suppress(ValueError):
        if not failure and (rates := _rates(json.loads(last))):
            return rates
    return failure or last or "it said nothing"


def _rates(value: object) -> Rates | None:
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # what else a file may have
        numbers = [float(value[name]) for name in ("matrix", "bandwidth", "bfloat16")]  # type: ignore[index]
        rates = Rates(*numbers)
        if all(map(math.isfinite, numbers)) and min(numbers[:2]) > 0 and rates.bfloat16 >= 0:
            return rates
    return None


# Medians over short runs, in float32 and bfloat16; a core's of its processor time.

RUN_SECONDS = 0.4
RUNS = 5
SIDES = {"cpu": 1024, "cuda": 8192}
"""Rows of the square matrices."""
FEW = 32
EMULATED = 20e9
"""Bfloat16 operations a second of a core with instructions, at least."""
MOVED = {"cpu": 1 << 26, "cuda": 1 << 30}


def measure_here(kind: str) -> Rates:
    """Raises torch's errors."""
    import torch

    side, moved, dtype, halves = SIDES[kind], MOVED[kind], torch.float32, 0.0
    if kind == "cuda":
        free, _ = torch.cuda.mem_get_info()
        moved = max(1 << 20, min(moved, free // 8))
        side = side if free > 32 * side**2 else 1024
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    left, right, out = (torch.ones(side, side, dtype=dtype, device=kind) for _ in range(3))
    multiply = _pace(lambda: torch.mm(left, right, out=out), kind)
    if kind == "cpu":
        multiply = min(multiply, _pace_of_onednn(left, right))
        halves = _bfloat16_rate(side)
    source = torch.ones(moved, dtype=torch.uint8, device=kind)
    target = torch.empty_like(source)
    move = _pace(lambda: target.copy_(source), kind)
    return Rates(2 * side**3 / multiply, 2 * moved / move, halves)


def _pace_of_onednn(left: torch.Tensor, right: torch.Tensor) -> float:
    """Median seconds of oneDNN's float32 product, inf without it."""
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return math.inf
    try:
        return _pace(lambda: torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], ""))
    except RuntimeError:
        return math.inf


def _bfloat16_rate(side: int) -> float:
    """Operations a second; 0.0 if the product is wrong.

    Few rows come first: without instructions, all take a second.
    """
    import torch

    whole = torch.ones(side, side, dtype=torch.bfloat16)
    rate = 0.0
    for rows in (FEW, side):
        left = whole[:rows]
        if not bool((torch.mm(left, whole) == side).all()):
            return 0.0
        rate = 2 * rows * side * side / _pace(lambda left=left: torch.mm(left, whole))  # type: ignore[misc]
        if rate < EMULATED:
            break
    return rate


def _pace(work: Callable[[], object], kind: str = "cpu") -> float:
    import torch

    clock = time.perf_counter if kind == "cuda" else time.thread_time

    def run() -> float:
        begun = clock()
        work()
        if kind == "cuda":
            torch.cuda.synchronize()
        return clock() - begun

    run()
    taken: list[float] = []
    end = time.perf_counter() + RUN_SECONDS
    while len(taken) < RUNS or time.perf_counter() < end:
        taken.append(run())
    return median(taken)


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

ORDER_SECONDS = 20.0


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
    if not unclear:
        return found
    # CUDA may crash, so a child asks
    others = {name: value for name, value in os.environ.items() if name != VARIABLE}
    out, failure = run_module(PROGRAM, "order", seconds=ORDER_SECONDS, environment=others)
    return replace(found, order=None if failure else tuple(out.decode("utf-8", "replace").split()) or None)


def _nothing(reason: str) -> Inventory:
    return Inventory(Machine(read_processor()), reason=reason)


def main() -> None:
    """Write the inventory; ``order``: CUDA's order; ``cpu`` or ``cuda``: a device's rates."""
    if sys.argv[1:] == ["order"]:
        sys.exit(print_cuda_order())
    if sys.argv[1:] and sys.argv[1] in SIDES:
        kind, *core = sys.argv[1:]
        if core and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {int(core[0])})
        if kind == "cpu":
            os.environ["OMP_NUM_THREADS"] = "1"  # must be set before torch is loaded
        print(json.dumps(asdict(measure_here(kind))))
        return
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
