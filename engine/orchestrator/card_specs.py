"""What workers on cards are started with: a worker's arguments for the processor and its post flow in, those for its
cards flow out. Starts nothing.

A worker sees its own cards alone, under numbers from 0, by variables of its process; which ones they are on the machine
is said to people.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..base.needs import Wanted
from ..devices.machine import Gpu, Machine
from ..devices.placement.limits import sampler_limits
from ..devices.plan import Place, SamplerPost, TrainerPost
from ..devices.visible import environment, llama_devices
from .shared_plan import IN_ONE_PROCESS
from .worker_plan import WorkerSpec


def sampler_on_card(spec: WorkerSpec, post: SamplerPost, machine: Machine, wanted: Wanted) -> WorkerSpec:
    """The same sampler on the card of its post; ``spec`` has the conversations that fit there already."""
    gpus = _gpus(post.place, machine)
    if post.kind == "vllm":
        limits = sampler_limits(post, wanted)
        # less than there is room for where memory has run out before, and fewer conversations are asked for
        cache = limits.cache * spec.kwargs["sequences"] // max(1, limits.sequences)
        own: dict[str, Any] = {"device": "cuda", "memory": cache, "slots": limits.slots}
    else:
        own = {"devices": llama_devices(gpus), "memory": post.place.memory, "weights": post.weights}
    return _on(gpus, spec, own)


def trainer_on_cards(spec: WorkerSpec, post: TrainerPost, machine: Machine) -> WorkerSpec:
    """The same trainer on the cards of its post; one that is a process with a sampler has no limit of its own."""
    gpus = _gpus(post.place, machine)
    own: dict[str, Any] = {
        "devices": tuple(f"cuda:{number}" for number in range(len(gpus))),
        "names": tuple(gpu.label for gpu in gpus),
        "memory": 0 if post.sharing in IN_ONE_PROCESS else post.place.memory,
    }
    return _on(gpus, spec, own)


def _gpus(place: Place, machine: Machine) -> list[Gpu]:
    found = {gpu.uuid: gpu for gpu in machine.gpus}
    return [found[uuid] for uuid in place.gpus]


def _on(gpus: list[Gpu], spec: WorkerSpec, own: dict[str, Any]) -> WorkerSpec:
    numbers = tuple(sorted(gpu.index for gpu in gpus))
    return replace(spec, kwargs=spec.kwargs | own, environment=environment(gpus), gpus=numbers)
