"""Sampler and trainer in one process on one card, or on a processor: turns, gates, the base that both use."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from threading import Condition
from time import perf_counter
from typing import Any, Generic, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from ..errors import BaseModelError
from ..models.config import BaseConfig
from ..models.find import load_base
from ..models.memory import PASS_BYTES
from ..models.tensors import ATTENTION, FEED_FORWARD, FUSED, load
from ..models.weights import linear_shapes
from ..samplers.vllm.sampler import VllmSampler, environment, require
from ..trainer.decoder.decoder import Decoder, compute_on
from ..trainer.decoder.linear import loaded_as
from ..trainer.model import Batch, Criterion, Model, pass_room
from ..trainer.torch_trainer import TorchTrainer

# Passes are never interrupted. Between two passes the holder continues until it has had its slice and as much time as
# the other, or has nothing to do.

Party = Literal["sampler", "trainer"]


@dataclass(frozen=True)
class DeviceTurns:
    """The state of the device; each method gives the next one."""

    slice: float
    holder: Party | None = None
    """The last party that computed, with its weights on the device; None before the first turn."""
    since: float = 0.0
    begun: float | None = None
    more: bool = False
    waiting: frozenset[Party] = frozenset()
    lead: float = 0.0
    """Seconds by which the sampler is ahead, over time in which the other waited: alternation would favour longer
    passes."""

    def delay(self, party: Party, now: float) -> float:
        """Seconds until ``party`` may begin a pass; 0: at once; infinite: not before a change."""
        if self.begun is not None:
            return math.inf
        if self.holder is None:
            return 0.0
        left = self._left(self.holder, now)
        if self.holder == party:
            return math.inf if self.waiting - {party} and left == 0.0 else 0.0
        return left

    def wait(self, party: Party) -> DeviceTurns:
        return replace(self, waiting=self.waiting | {party})

    def begin(self, party: Party, now: float) -> DeviceTurns:
        """Begin a pass. Raises ``ValueError`` if it may not begin."""
        if self.delay(party, now) > 0.0:
            raise ValueError(f"The {party} may not compute at {now}: {self}.")
        since = self.since if self.holder == party else now
        return replace(self, holder=party, since=since, begun=now, more=True, waiting=self.waiting - {party})

    def end(self, now: float) -> DeviceTurns:
        if self.holder is None or self.begun is None:
            return replace(self, begun=None)
        ahead, spent = self._ahead(self.holder), max(0.0, now - self.begun)
        contested = bool(self.waiting - {self.holder})
        ahead = ahead + spent if contested else max(ahead, min(0.0, ahead + spent))
        return replace(self, begun=None, lead=ahead if self.holder == "sampler" else -ahead)

    def rest(self, party: Party) -> DeviceTurns:
        return replace(self, more=False) if self.holder == party else self

    def _left(self, holder: Party, now: float) -> float:
        if not self.more:
            return 0.0
        return math.inf if self._ahead(holder) < 0.0 else max(0.0, self.since + self.slice - now)

    def _ahead(self, party: Party) -> float:
        return self.lead if party == "sampler" else -self.lead


class Gate:
    """Lets one thread of one party compute at a time."""

    def __init__(self, slice: float, holder: Party | None = None, clock: Callable[[], float] = perf_counter) -> None:
        self._turns = DeviceTurns(slice, holder)
        self._clock = clock
        self._changed = Condition()
        self._calls: Counter[Party] = Counter()

    @property
    def turns(self) -> DeviceTurns:
        return self._turns

    @contextmanager
    def busy(self, party: Party) -> Iterator[None]:
        """Within, the party has work: between two passes it keeps the device for the rest of its slice.

        Does not wait, so an event loop may enter it.
        """
        with self._changed:
            self._calls[party] += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls[party] -= 1
                self._rest(party)

    @contextmanager
    def turn(self, party: Party) -> Iterator[None]:
        """Within, only this thread computes; waits for its turn."""
        with self._changed:
            self._turns = self._turns.wait(party)
            while delay := self._turns.delay(party, now := self._clock()):
                self._changed.wait(None if math.isinf(delay) else delay)
            self._turns = self._turns.begin(party, now)
        try:
            yield
        finally:
            with self._changed:
                self._turns = self._turns.end(self._clock())
                self._rest(party)

    def _rest(self, party: Party) -> None:
        if not self._calls[party]:
            self._turns = self._turns.rest(party)
        self._changed.notify_all()


# A pass takes tens to hundreds of milliseconds, by the trainer's memory; the sampler may have to wait for its end.

B = TypeVar("B", bound=Batch)


class Paced(Generic[B]):
    """``trainer.model.Model`` over another model, in turns with the sampler on its device."""

    def __init__(self, model: Model[B], gate: Gate, device: str) -> None:
        self._model = model
        self._gate = gate
        self._queued = device != "cpu"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def logprobs(self, batch: B, temperatures: tuple[float, ...], adapted: bool = True) -> Tensor:
        with self._turn():
            return self._model.logprobs(batch, temperatures, adapted)

    def differentiate(self, batch: B, temperatures: tuple[float, ...], criterion: Criterion) -> None:
        with self._turn():
            self._model.differentiate(batch, temperatures, criterion)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The turn ends when the pass is computed, not when it is queued."""
        with self._gate.turn("trainer"):
            yield
            if self._queued:
                torch.cuda.current_stream().synchronize()


# vLLM stacks q, k, v and gate, up as our trainer does. Tensors that it quantises, repacks for a processor or splits
# over cards cannot be shared and are refused.

WRAPPED = ".base_layer"
HINT = 'Write `share = "memory"` under [resources] in marlaas.toml: sampler and trainer then hold a copy each.'


def named_tensors(model: nn.Module, config: BaseConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """vLLM's own tensors by their names in the folder, or those of ``models.tensors.FUSED``.

    Raises ``BaseModelError`` if a linear layer is not complete, or not in ``dtype``: it would have to be copied.
    """
    tensors = {name.replace(WRAPPED, ""): parameter.detach() for name, parameter in model.named_parameters()}
    for name, shape in _expected(config).items():
        held = tensors.get(name)
        found = "nothing" if held is None else _form(held.dtype, tuple(held.shape))
        if found != _form(dtype, shape):
            raise BaseModelError(
                f"vLLM keeps this base in another form than the trainer reads: {name} is {found}, not "
                f"{_form(dtype, shape)}.",
                HINT,
            )
    return tensors


def _expected(config: BaseConfig) -> dict[str, tuple[int, int]]:
    shapes = {name: shape for name, shape in linear_shapes(config).items() if name.startswith("model.layers.")}
    expected: dict[str, tuple[int, int]] = {}
    for module, (outputs, inputs) in shapes.items():
        name = f"{_stacked(module)}.weight"
        expected[name] = expected.get(name, (0, inputs))[0] + outputs, inputs
    return expected


def _stacked(module: str) -> str:
    for parts in (ATTENTION, FEED_FORWARD):
        for part in parts:
            if module.endswith(part):
                return module.removesuffix(part) + FUSED[parts]
    return module


def _form(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"


# vLLM's CPU builds rewrite each matrix and free the original (``model_executor/layers/utils.py:
# dispatch_cpu_unquantized_gemm``), and disable ``torch.set_num_threads`` (``v1/worker/cpu_worker.py: init_device``);
# read in 0.32. On cards they do neither.


@contextmanager
def considerate_vllm() -> Iterator[None]:
    """Within, vLLM keeps an engine's matrices as loaded, and torch multiplies with them.

    After the block ``torch.set_num_threads`` works again.
    """
    os.environ.update(environment("cpu"))
    from vllm.model_executor.layers import utils

    rewrite, set_num_threads = utils.dispatch_cpu_unquantized_gemm, torch.set_num_threads
    utils.dispatch_cpu_unquantized_gemm = _plain
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = rewrite
        torch.set_num_threads = set_num_threads


def _plain(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


class Announced:
    """Wraps a service of a worker: while a call of its methods lasts, ``party`` has work."""

    def __init__(self, service: Any, gate: Gate, party: Party) -> None:
        self._service = service
        self._gate = gate
        self._party = party

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._service, name)

        async def call(*args: Any, **named: Any) -> Any:
            with self._gate.busy(self._party):
                return await method(*args, **named)

        return call


# The trainer computes with vLLM's own tensors. This was run only on a processor, with vLLM's CPU build; it is written
# for cards after vLLM 0.32.

SLICE = 0.05
"""Seconds of a slice: some steps of the sampler, a small batch of the trainer. On two busy cores, with passes of a
second and steps of fifty milliseconds, each reached half its separate speed."""


class ColocatedWorker:
    """Serves ``samplers.protocol.Sampler`` as ``sampler`` and ``trainer.protocol.Trainer`` as ``trainer``."""

    def __init__(self, sampler: dict[str, Any], trainer: dict[str, Any], slice: float = SLICE) -> None:
        """Start both, with the arguments of ``VllmSampler`` and ``TorchTrainer``; ``slice`` in seconds.

        Raises ``BaseModelError`` if vLLM cannot be used, or keeps the base in a form that cannot be shared.
        """
        require()
        base = load_base(trainer["base"])
        compute = compute_on(trainer.get("devices", ("cpu",))[0], trainer.get("precision", "f32"))
        device, dtype = compute.device, loaded_as(compute.precision)
        gate = Gate(slice, holder="sampler")
        with considerate_vllm() if device.type == "cpu" else nullcontext():
            self._vllm = VllmSampler(**{**sampler, "gate": lambda: gate.turn("sampler")})

        def model() -> Model[Any]:
            tensors = named_tensors(self._vllm.engine.model, base.config, dtype)
            room = trainer.get("room", PASS_BYTES) or pass_room(str(device))
            decoder = Decoder(base.config, load(base, device, dtype, tensors), compute, room)
            return cast(Model[Any], Paced(decoder, gate, device.type))

        self._trainer = TorchTrainer(**{**trainer, "memory": 0, "model": model})
        self.trainer = Announced(self._trainer, gate, "trainer")
        self.sampler = Announced(self._vllm, gate, "sampler")

    def tidy(self) -> None:
        self._vllm.tidy()
        self._trainer.tidy()
