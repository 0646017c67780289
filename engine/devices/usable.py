"""The usable part of the machine, each process's cards, others' changes."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..spec.validation import between, one_of
from .machine import Cpu, Gpu, Holder, Inventory, Machine

# Read as by the driver (CUDA C++ Programming Guide; ``torch.cuda._parse_visible_devices``): no card hides all later
# entries, a repeated card hides all.

VARIABLE, ORDER, BY_BUS = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)


@dataclass(frozen=True)
class Mask:
    """Visible cards."""

    uuids: tuple[str, ...]
    note: str = ""
    """If the variable probably does not do what was meant."""


def masked(value: str | None, gpus: Sequence[Gpu], order: Sequence[str] | None = None) -> Mask:
    """None (not set): all.

    ``order``: ids in CUDA's order, if not the driver's. A divided card's number means its first part.
    """
    if value is None:
        return Mask(tuple(gpu.uuid for gpu in gpus))
    kind = next((prefix for prefix in ("GPU-", "MIG-") if value.strip().startswith(prefix)), "")
    texts = [text.strip() for text in value.split(",")] if value.strip() else []
    names = list(itertools.takewhile(lambda name: name is not None, (_name(text, kind) for text in texts)))
    chosen = list(itertools.takewhile(lambda uuid: uuid is not None, (_meant(name, gpus, order) for name in names)))
    if len(set(names)) < len(names) or len(set(chosen)) < len(chosen):
        return Mask((), f"{VARIABLE} names a card twice, which hides all of them.")
    wrong = texts[len(chosen)] if len(chosen) < len(texts) else "-1"
    note = "" if wrong == "-1" else f"{VARIABLE} names {wrong!r}, which is no card here."
    return Mask(tuple(uuid for uuid in chosen if uuid is not None), note)


def ambiguous(value: str | None, order: str | None, gpus: Sequence[Gpu]) -> bool:
    """True if only CUDA knows the cards.

    By default (``order``) CUDA numbers the fastest first, the driver by bus.
    """
    numbered = value is not None and bool(_NUMBER.match(value.strip()))
    return numbered and order != BY_BUS and len({(gpu.name, gpu.memory) for gpu in gpus if gpu.part is None}) > 1


def find(name: str, gpus: Sequence[Gpu]) -> str | None:
    """The one card with an id that begins so; None: none or several."""
    found = [gpu.uuid for gpu in gpus if gpu.uuid.startswith(name)]
    return found[0] if len(found) == 1 else None


def _name(text: str, kind: str) -> int | str | None:
    if kind:
        return text if text.startswith(kind) else None
    number = _NUMBER.match(text)
    return int(number[0]) if number and int(number[0]) >= 0 else None


def _meant(name: int | str | None, gpus: Sequence[Gpu], order: Sequence[str] | None) -> str | None:
    if isinstance(name, str):
        return find(name, gpus)
    if name is None or order is not None:
        return order[name] if order is not None and name is not None and name < len(order) else None
    return next((gpu.uuid for gpu in gpus if gpu.index == name), None)


def environment(gpus: Sequence[Gpu]) -> dict[str, str]:
    """For a worker; empty ``gpus``: the processor."""
    cuda = {VARIABLE: ",".join(gpu.uuid for gpu in gpus if gpu.kind == "cuda")}
    return cuda if any(gpu.kind == "rocm" for gpu in gpus) else {**cuda, "HIP_VISIBLE_DEVICES": ""}


def llama_devices(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """llama.cpp's names in such a process, for ``LlamaSampler``: NVIDIA's visible cards count from 0."""
    numbers = itertools.count()
    return tuple(f"CUDA{next(numbers)}" if gpu.kind == "cuda" else gpu.uuid for gpu in gpus)


@dataclass(frozen=True)
class ResourceSettings:
    """The table ``[resources]`` of ``marlaas.toml``."""

    gpus: str | tuple[int | str, ...] = "all"
    shared_gpus: bool = False
    gpu_memory: float = between(1.0, 0.01, 1e6)
    share: str = one_of("auto", "auto", "base", "memory")
    cores: int = between(0, 0, 65536)
    memory: float = between(0.0, 0.0, 1e6)
    active_hours: str = ""
    idle_minutes: float = between(10.0, 0.0, 1e6)
    nice: int = between(0, 0, 19)


# In a container the driver hides its processes: unseen memory on our cards counts as ours.


@dataclass(frozen=True)
class Ours:
    """This engine's processes and cards."""

    processes: Collection[int] = ()
    cards: Collection[str] = ()


NOTHING = Ours()


def claimed(found: Inventory, ours: Ours) -> Inventory:
    """Unseen processes' memory on our cards is ours."""
    gpus = tuple(
        replace(gpu, holders=tuple(replace(one, ours=one.ours or not one.account) for one in gpu.holders))
        if gpu.uuid in ours.cards
        else gpu
        for gpu in found.machine.gpus
    )
    return replace(found, machine=replace(found.machine, gpus=gpus))


# ``CUDA_VISIBLE_DEVICES``, then ``[resources]``, then other accounts (not display servers) on a card.

GB = 1e9
_MENDED = f"set {ORDER}={BY_BUS} as well, or name them by their ids"


@dataclass(frozen=True)
class UsableResources:
    """The usable part, and the rest."""

    machine: Machine
    """``free`` includes what this engine holds."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why, by card."""
    notes: tuple[str, ...] = ()
    """Rules that probably do not do what was meant."""

    @property
    def reasons(self) -> tuple[str, ...]:
        return (*self.left_out.values(), *self.notes)


def usable_resources(
    found: Inventory,
    resources: ResourceSettings,
    environment: Mapping[str, str],
    account: str,
) -> UsableResources:
    """For an engine of ``account``."""
    gpus = found.machine.gpus
    nvidia = [gpu for gpu in gpus if gpu.kind == "cuda"]
    seen = _seen(environment, nvidia, found.order)
    wanted, unknown = _wanted(resources.gpus, gpus)
    kept, left_out = [], {}
    for gpu in gpus:
        reason = (
            _hidden(gpu, seen, environment)
            or ("" if gpu.uuid in wanted else "`gpus` under [resources] leaves it out")
            or _unfit(gpu, found)
            or ("" if resources.shared_gpus else _held(gpu, account))
        )
        if reason:
            left_out[gpu.uuid] = f"{gpu.label} is left alone: {reason}."
        else:
            ours = sum(holder.memory for holder in gpu.holders if holder.ours)
            kept.append(replace(gpu, free=min(gpu.free + ours, share_of(gpu.memory, resources.gpu_memory))))
    notes = [seen.note] if seen.note else []
    notes += [f"`gpus` under [resources] names {name!r}, which is no card here." for name in unknown]
    return UsableResources(Machine(processor(found.machine.cpu, resources), tuple(kept)), left_out, tuple(notes))


def processor(cpu: Cpu, resources: ResourceSettings) -> Cpu:
    """Cores and memory that ``resources`` allow."""
    count = min(cpu.count, resources.cores or cpu.count)
    memory = min(cpu.memory, int(resources.memory * GB)) if resources.memory else cpu.memory
    return replace(cpu, cores=cpu.cores[:count], count=count, memory=memory)


def share_of(memory: int, limit: float) -> int:
    """``limit``: a share up to 1, gigabytes above."""
    return int(memory * limit if limit <= 1 else min(memory, limit * GB))


def _seen(environment: Mapping[str, str], gpus: Sequence[Gpu], order: Sequence[str] | None) -> Mask:
    value = environment.get(VARIABLE)
    if order is None and ambiguous(value, environment.get(ORDER), gpus):
        return Mask((), f"{VARIABLE} numbers unequal cards, which CUDA counts in an order of its own: {_MENDED}.")
    return masked(value, gpus, order)


def _wanted(names: str | Sequence[int | str], gpus: Sequence[Gpu]) -> tuple[set[str], list[int | str]]:
    if isinstance(names, str):
        return ({gpu.uuid for gpu in gpus} if names == "all" else set()), []
    named = {name: _cards(name, gpus) for name in names}
    return {uuid for uuids in named.values() for uuid in uuids}, [name for name, uuids in named.items() if not uuids]


def _cards(name: int | str, gpus: Sequence[Gpu]) -> set[str]:
    if isinstance(name, int):
        return {gpu.uuid for gpu in gpus if gpu.index == name}
    by_id = find(name, gpus) if name else None
    return {gpu.uuid for gpu in gpus if gpu.label == f"gpu {name}"} or ({by_id} if by_id else set())


def _hidden(gpu: Gpu, seen: Mask, environment: Mapping[str, str]) -> str:
    if gpu.kind != "cuda" or gpu.uuid in seen.uuids:
        return ""
    return f"{VARIABLE}={environment[VARIABLE]} leaves it out"


def _unfit(gpu: Gpu, found: Inventory) -> str:
    if gpu.kind == "cuda" and not found.cuda:
        return f"the driver {found.driver} has no CUDA (its library libcuda is missing)"
    if gpu.mode == "prohibited":
        return "it is set to compute for nobody (`nvidia-smi -c DEFAULT` changes that)"
    return ""


def _held(gpu: Gpu, account: str) -> str:
    amounts: Counter[str] = Counter()
    for holder in gpu.holders:
        if foreign(holder, account):
            amounts[holder.account] += holder.memory
    sentences = []
    for name, memory in amounts.most_common():
        who = f"account {name} holds" if name else "processes that cannot be seen from here hold"
        sentences.append(f"{who} {memory / GB:.1f} GB" if memory else f"{who} part")
    if not sentences:
        return ""
    return f"{'; '.join(sentences)} of it; `shared_gpus = true` under [resources] takes it all the same"


def foreign(holder: Holder, account: str) -> bool:
    """Another account holds the memory."""
    return not holder.ours and not holder.screen and holder.account != account


MOVED = 0.05
"""Smaller changes of others' share of a card are not reported."""


def changes(before: Inventory, after: Inventory, account: str) -> tuple[str, ...]:
    """Sentences on lost and new cards, and others' memory."""
    old, new = ({gpu.uuid: gpu for gpu in one.machine.gpus} for one in (before, after))
    told = [note for note in after.notes if note not in before.notes]
    if before.machine.gpus and not new and after.reason:
        return (*told, f"The cards can no longer be looked at: {after.reason}.")
    named = " ".join(told)
    told += [
        f"{gpu.label} ({gpu.name}) has disappeared."
        for uuid, gpu in old.items()
        if uuid not in new and f"{gpu.label} " not in named
    ]
    told += [f"{gpu.label} ({gpu.name}) is there." for uuid, gpu in new.items() if uuid not in old]
    for uuid in old.keys() & new.keys():
        told += _moved(old[uuid], new[uuid], account)
    return tuple(told)


def _moved(old: Gpu, new: Gpu, account: str) -> list[str]:
    was, now = (sum(holder.memory for holder in gpu.holders if foreign(holder, account)) for gpu in (old, new))
    if abs(now - was) < MOVED * new.memory and bool(now) == bool(was):
        return []
    who = " and ".join(sorted({h.account or "somebody unseen" for h in new.holders if foreign(h, account)}))
    took = f"{who} took memory of {new.label}: {now / GB:.1f} GB are theirs, {new.free / GB:.1f} GB are free."
    return [took if now > was else f"Others gave back memory of {new.label}: {new.free / GB:.1f} GB are free."]
