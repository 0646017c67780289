"""Sampler and trainer in one process: turns and a shared base."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
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

Party = Literal["sampler", "trainer"]


class Gate:
    """Lets one thread of one party compute; passes are not interrupted.

    With work on both sides, the party with more computing time waits. Time by itself counts only against arrears.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._changed = Condition()
        self._calls: Counter[Party] = Counter()
        self._computing = False
        self._lead = 0.0
        """Seconds by which the sampler is ahead."""

    @contextmanager
    def busy(self, party: Party) -> Iterator[None]:
        """The party has work, also between passes. Never waits: safe in an event loop."""
        with self._changed:
            self._calls[party] += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls[party] -= 1
                self._changed.notify_all()

    @contextmanager
    def turn(self, party: Party) -> Iterator[None]:
        """Waits for its turn."""
        other: Party = "trainer" if party == "sampler" else "sampler"
        sign = 1 if party == "sampler" else -1
        with self.busy(party):
            with self._changed:
                self._changed.wait_for(
                    lambda: not self._computing and not (self._calls[other] and sign * self._lead > 0)
                )
                self._computing, begun = True, self._clock()
            try:
                yield
            finally:
                with self._changed:
                    ahead, spent = sign * self._lead, self._clock() - begun
                    ahead = ahead + spent if self._calls[other] else max(ahead, min(0.0, ahead + spent))
                    self._lead = sign * ahead
                    self._computing = False
                    self._changed.notify_all()


# A pass takes tens to hundreds of milliseconds.

B = TypeVar("B", bound=Batch)


class Paced(Generic[B]):
    """``trainer.model.Model`` in turns with the sampler."""

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
        with self._gate.turn("trainer"):
            yield
            if self._queued:
                torch.cuda.current_stream().synchronize()


# vLLM stacks q, k, v and gate, up as our trainer. Quantised, repacked and split tensors are refused.

WRAPPED = ".base_layer"
HINT = 'Write `share = "memory"` under [resources] in marlaas.toml: sampler and trainer then hold a copy each.'


def named_tensors(model: nn.Module, config: BaseConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """vLLM's tensors by their names, or of ``models.tensors.FUSED``.

    Raises ``BaseModelError`` if a linear layer is not complete or not in ``dtype``.
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


# vLLM's CPU builds rewrite and free matrices (``model_executor/layers/utils.py: dispatch_cpu_unquantized_gemm``) and
# disable ``torch.set_num_threads`` (``v1/worker/cpu_worker.py: init_device``); read in 0.32; not on cards.


@contextmanager
def considerate_vllm() -> Iterator[None]:
    """vLLM keeps matrices as loaded during the block.

    Afterwards ``torch.set_num_threads`` works again.
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
    """``party`` has work during the service's calls."""

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


# The trainer computes with vLLM's tensors. Run only on a processor.


class ColocatedWorker:
    """Serves ``samplers.protocol.Sampler`` and ``trainer.protocol.Trainer``."""

    def __init__(self, sampler: dict[str, Any], trainer: dict[str, Any]) -> None:
        """Arguments as of ``VllmSampler`` and ``TorchTrainer``. Raises ``BaseModelError`` if vLLM cannot be used or
        shared."""
        require()
        base = load_base(trainer["base"])
        compute = compute_on(trainer.get("devices", ("cpu",))[0], trainer.get("precision", "f32"))
        device, dtype = compute.device, loaded_as(compute.precision)
        gate = Gate()
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
