"""What the benchmark of a card works on: the device, its limits, the base, what samples there, and how long is left.

A look at the machine flows in, a ``Stage`` flows out; workers are started as the engine starts them, with the same
arguments. On the processor, where the script itself is tried, everything is the same but for the device.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from marlaas.engine.base.model import BaseModel
from marlaas.engine.base.modules import linear_shapes
from marlaas.engine.devices.cards.visible import environment, llama_devices
from marlaas.engine.devices.machine import Cpu, Gpu, Machine, Precision, Rates, SamplerKind
from marlaas.engine.devices.software import notes
from marlaas.engine.devices.survey import Survey, survey_machine
from marlaas.engine.devices.usable import ResourceSettings
from marlaas.engine.fleet.worker_specs import LLAMA, TORCH, TRAINER, VLLM, WorkerSpec
from tools.random_base.make import make_base

from ..machinery.cores import all_cores
from ..report.figures import Unmeasurable

FAMILY = "qwen2.5"
CONTEXT, CONVERSATIONS, MOST_ADAPTERS, RANK = 512, 256, 32, 16
SAMPLER_SHARE = 0.4
"""Of the card's free memory, for vLLM's keys and values."""


@dataclass(frozen=True)
class Clock:
    """The time of the whole benchmark."""

    end: float
    """Of ``monotonic``."""

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - monotonic()


@dataclass(frozen=True)
class Stage:
    """Where everything is measured."""

    base: BaseModel
    folder: Path
    clock: Clock
    kinds: tuple[SamplerKind, ...]
    """Samplers that work here."""
    precision: Precision
    """Of the trainer's base."""
    rates: Rates | None
    """The device's; None where they could not be measured."""
    gpu: Gpu | None
    """None: the processor."""
    cpu: Cpu
    remarks: tuple[str, ...]
    """What is not measured, and why."""

    @property
    def name(self) -> str:
        """The device, for people."""
        return self.gpu.name if self.gpu else f"{self.cpu.name or 'processor'}, {len(all_cores())} cores"

    @property
    def layers(self) -> int:
        """Weights of the layers' matrices: two operations each for a token."""
        return sum(out * into for module, (out, into) in linear_shapes(self.base.config).items() if module != "lm_head")

    @property
    def head(self) -> int:
        """Weights of the output matrix."""
        return self.base.config.vocab_size * self.base.config.hidden_size

    def sampler(self, kind: SamplerKind) -> WorkerSpec:
        """A worker of that kind that holds ``CONVERSATIONS``."""
        kwargs: dict[str, Any] = {"base": str(self.base.path), "sequences": CONVERSATIONS, "context": CONTEXT}
        kwargs["threads"] = len(all_cores())
        if kind == "vllm":
            kwargs |= {"device": "cuda" if self.gpu else "cpu", "slots": MOST_ADAPTERS, "largest_rank": RANK}
            kwargs |= {"memory": int(SAMPLER_SHARE * self.gpu.free) if self.gpu else 0, "scratch": str(self.folder)}
            return self._worker("rollout", VLLM, kwargs)
        if kind == "llama.cpp":
            kwargs |= {"devices": llama_devices(self._gpus), "weights": "f16" if self.gpu else "f32"}
            return self._worker("rollout", LLAMA, kwargs | {"cache": str(self.folder), "exact": False})
        return self._worker("rollout", TORCH, kwargs)

    def trainer(self) -> WorkerSpec:
        """The training worker."""
        kwargs: dict[str, Any] = {
            "base": str(self.base.path),
            "fingerprint": self.base.fingerprint,
            "threads": len(all_cores()),
            "sync": False,
            "scratch": str(self.folder),
            "precision": self.precision,
        }
        return self._worker("training", TRAINER, kwargs | ({"devices": ("cuda:0",)} if self.gpu else {}))

    @property
    def _gpus(self) -> tuple[Gpu, ...]:
        return (self.gpu,) if self.gpu else ()

    def _worker(self, name: str, factory: str, kwargs: dict[str, Any]) -> WorkerSpec:
        return WorkerSpec(name, factory, kwargs, () if self.gpu else all_cores(), environment(self._gpus))


@contextmanager
def staged(shape: str, device: str, seconds: float) -> Iterator[Stage]:
    """A base of random weights of that shape, and the first card that marlaas may use, or the processor.

    Raises ``Unmeasurable`` with a sentence where there is no card, or none that anything can use.
    """
    clock = Clock(monotonic() + seconds)
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        seen = survey_machine(ResourceSettings(), folder / "rates.json", missing=True)
        gpu, kinds = chosen(seen, device)
        base = make_base(folder / "base", FAMILY, shape)
        rates = _rates(seen.usable.machine, gpu)
        remarks = (*seen.notes, *notes(seen.software))
        precision: Precision = "bf16" if gpu else "f32"
        yield Stage(base, folder, clock, kinds, precision, rates, gpu, seen.usable.machine.cpu, remarks)


def chosen(seen: Survey, device: str) -> tuple[Gpu | None, tuple[SamplerKind, ...]]:
    """The device, and the samplers that work there. Raises ``Unmeasurable``."""
    if device == "cpu":
        return None, ("llama.cpp", "torch")
    cards = [gpu for gpu in seen.usable.machine.gpus if gpu.kind == "cuda"]
    if not cards:
        why = f": {seen.found.reason}" if seen.found.reason else ""
        left = (out.reason for out in seen.usable.left_out)
        raise Unmeasurable(" ".join([f"There is no card here that marlaas may use{why}.", *left]))
    known = seen.software
    if not known.torch_cuda:
        raise Unmeasurable(known.torch_reason)
    kinds: list[SamplerKind] = ["vllm"] if known.vllm else []
    kinds += ["llama.cpp"] if known.llama_backend == "cuda" else []
    return cards[0], tuple(kinds)


def _rates(machine: Machine, gpu: Gpu | None) -> Rates | None:
    """Of one core times the cores: threads of one product share the last cache, and memory's bandwidth."""
    if gpu is not None:
        return next((other.rates for other in machine.gpus if other.uuid == gpu.uuid), None)
    one = machine.cpu.rates
    return Rates(one.matrix * len(all_cores()), one.bandwidth) if one else None
