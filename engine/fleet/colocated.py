"""Sampler and trainer in one process on one card, or on a processor: turns, gates, the base that both use."""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from threading import Condition
from time import perf_counter
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, UntypedStorage, nn

from ..base import ATTENTION, FEED_FORWARD, FUSED, PASS_BYTES, Base, BaseConfig, linear_shapes, load, load_base
from ..devices import end_process
from ..errors import BaseModelError
from ..rollout import (
    OnTokens,
    Sampler,
    SampleRequest,
    SampleResult,
    SamplerLimits,
    SamplerStats,
    VllmSampler,
    environment,
    require,
)
from ..training import (
    Batch,
    Criterion,
    Decoder,
    Groups,
    Layout,
    Model,
    PolicyMemory,
    TorchTrainer,
    compute_on,
    loaded_as,
    pass_room,
)
from ..trajectories import Logprobs, Tokens

# Passes are never interrupted. Between two passes the holder continues until it has had its slice and as much time as
# the other, or has nothing to do.

Party = Literal["sampler", "trainer"]

SHARE = 0.1
LATEST = 0.5
"""Weight of the latest switch in the moving mean of the switching cost."""


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
    cost: float = 0.0

    @property
    def least(self) -> float:
        """Seconds that a busy holder keeps the device while the other waits: switches take at most ``SHARE`` of the
        time.
        """
        return max(self.slice, self.cost * (1.0 - SHARE) / SHARE)

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

    def switched(self, seconds: float, now: float) -> DeviceTurns:
        cost = seconds if not self.cost else self.cost + LATEST * (seconds - self.cost)
        return replace(self, cost=cost, since=now, begun=now)

    def deserted(self) -> DeviceTurns:
        return replace(self, holder=None, begun=None, more=False)

    def _left(self, holder: Party, now: float) -> float:
        if not self.more:
            return 0.0
        return math.inf if self._ahead(holder) < 0.0 else max(0.0, self.since + self.least - now)

    def _ahead(self, party: Party) -> float:
        return self.lead if party == "sampler" else -self.lead


def nothing() -> None:
    """For parties without work at a switch."""


@dataclass(frozen=True)
class Move:
    """What a party does at the beginning and at the end of its turns."""

    come: Callable[[], None] = nothing
    """Before the first pass of a turn: brings what the party needs to the device, or raises and brings nothing."""
    go: Callable[[], None] = nothing


STAYS = Move()


class Gate:
    """Lets one thread of one party compute at a time."""

    def __init__(
        self,
        slice: float,
        moves: Mapping[Party, Move] | None = None,
        holder: Party | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._turns = DeviceTurns(slice, holder)
        self._moves = moves or {}
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
        """Within, only this thread computes; waits for its turn.

        Raises the errors of ``Move.come``; then neither party has the device.
        """
        before = self._begin(party)
        try:
            if before != party:
                self._switch(before, party)
            yield
        finally:
            with self._changed:
                self._turns = self._turns.end(self._clock())
                self._rest(party)

    def _begin(self, party: Party) -> Party | None:
        with self._changed:
            self._turns = self._turns.wait(party)
            while delay := self._turns.delay(party, now := self._clock()):
                self._changed.wait(None if math.isinf(delay) else delay)
            before = self._turns.holder
            self._turns = self._turns.begin(party, now)
            return before

    def _rest(self, party: Party) -> None:
        if not self._calls[party]:
            self._turns = self._turns.rest(party)
        self._changed.notify_all()

    def _switch(self, before: Party | None, party: Party) -> None:
        begun = self._clock()
        try:
            if before is not None:
                self._moves.get(before, STAYS).go()
            self._moves.get(party, STAYS).come()
        except BaseException:
            with self._changed:
                self._turns = self._turns.deserted()
            raise
        with self._changed:
            now = self._clock()
            self._turns = self._turns.switched(now - begun, now)


# A pass takes tens to hundreds of milliseconds, by the trainer's memory; the sampler may have to wait for its end.

B = TypeVar("B", bound=Batch)


class Paced(Generic[B]):
    """Implements ``training.model.Model`` over another model, in turns with the sampler on its device."""

    def __init__(self, model: Model[B], gate: Gate, device: str) -> None:
        self._model = model
        self._gate = gate
        self._queued = device != "cpu"

    @property
    def vocabulary(self) -> int:
        return self._model.vocabulary

    @property
    def mixes(self) -> bool:
        return self._model.mixes

    def layout(self, rank: int) -> Layout:
        return self._model.layout(rank)

    def mount(self, policies: Sequence[PolicyMemory]) -> None:
        self._model.mount(policies)

    def unmount(self) -> None:
        self._model.unmount()

    def batches(self, jobs: Sequence[Groups]) -> Iterator[B]:
        return self._model.batches(jobs)

    def shrink(self) -> bool:
        return self._model.shrink()

    def logprobs(self, batch: B, temperatures: tuple[float, ...], adapted: bool = True) -> Tensor:
        with self._gate.turn("trainer"):
            result = self._model.logprobs(batch, temperatures, adapted)
            self._finish()
        return result

    def differentiate(self, batch: B, temperatures: tuple[float, ...], criterion: Criterion) -> None:
        with self._gate.turn("trainer"):
            self._model.differentiate(batch, temperatures, criterion)
            self._finish()

    def _finish(self) -> None:
        """Wait for the device: the turn ends when the pass is computed, not when it is queued."""
        if self._queued:
            torch.cuda.current_stream().synchronize()


# Values stay in main memory (pinned for cards) and are written again into the same tensors; only the storage is freed,
# as in PyTorch's FSDP. Bringing a base of 16 GB costs under a second over PCIe, a tenth of vLLM's waking.


class OffloadedBase:
    """A base that is on the device only during the trainer's turns: its storages, and copies in main memory."""

    def __init__(self) -> None:
        self._kept: list[tuple[UntypedStorage, UntypedStorage]] = []

    def pack(self, tensors: Iterator[Tensor]) -> None:
        found = {storage.data_ptr(): storage for storage in (tensor.untyped_storage() for tensor in tensors)}
        self._kept = [(storage, _copy(storage)) for storage in found.values() if storage.resizable()]

    @property
    def size(self) -> int:
        return sum(values.nbytes() for _, values in self._kept)

    def come(self) -> None:
        """Bring the values. Raises ``torch.OutOfMemoryError`` if not all fit, and then brings none."""
        try:
            for storage, values in self._kept:
                storage.resize_(values.nbytes())
                storage.copy_(values, True)
        except torch.OutOfMemoryError:
            self.go()
            raise

    def go(self) -> None:
        for storage, _ in self._kept:
            storage.resize_(0)
        torch.cuda.empty_cache()


def tensors_of(record: object) -> Iterator[Tensor]:
    """Every tensor in a dataclass, nested dataclasses and tuples."""
    if isinstance(record, Tensor):
        yield record
    elif isinstance(record, tuple):
        for part in record:
            yield from tensors_of(part)
    elif is_dataclass(record):
        for field in fields(record):
            yield from tensors_of(getattr(record, field.name))


def _copy(storage: UntypedStorage) -> UntypedStorage:
    copy = UntypedStorage(storage.nbytes())  # type: ignore[no-untyped-call]
    copy.copy_(storage, False)
    return copy if storage.device.type == "cpu" else copy.pin_memory()


# vLLM stacks q, k, v and gate, up as our trainer does. Tensors that it quantises, repacks for a processor or splits
# over cards cannot be shared and are refused.

WRAPPED = ".base_layer"
HINT = 'Write `share = "memory"` under [resources] in marlaas.toml: sampler and trainer then hold a copy each.'


def named_tensors(model: nn.Module, config: BaseConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """vLLM's own tensors by their names in the folder, or those of ``base.tensors.FUSED``.

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


T = TypeVar("T")

NONE_YET = SamplerStats(0, 0, 0.0, 0, 0)


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


class LightSleeper:
    """``Sampler`` over one that takes turns with the trainer. Waking costs seconds, so only computing wakes it.

    Releasing conversations and retiring versions wait until it is awake, and come before later requests.
    """

    def __init__(self, sampler: Sampler, gate: Gate) -> None:
        self._sampler = sampler
        self._gate = gate
        self._later: list[Callable[[], Awaitable[None]]] = []
        self._catching_up = asyncio.Lock()
        self._stats = NONE_YET

    async def limits(self) -> SamplerLimits:
        return await self._sampler.limits()

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        return await self._awake(partial(self._sampler.generate, request, stream_to=stream_to))

    async def load(self, version: str, path: str) -> str:
        return await self._awake(partial(self._sampler.load, version, path))

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        return await self._awake(partial(self._sampler.score, version, tokens, start, temperature))

    async def release(self, conversation: str) -> None:
        """A turn in progress while the sampler sleeps is ended when it next wakes."""
        await self._when_awake(partial(self._sampler.release, conversation))

    async def retire(self, version: str) -> None:
        await self._when_awake(partial(self._sampler.retire, version))

    async def stats(self) -> SamplerStats:
        if not self._asleep:
            self._stats = await self._sampler.stats()
        return self._stats

    @property
    def _asleep(self) -> bool:
        return self._gate.turns.holder == "trainer"

    async def _awake(self, call: Callable[[], Awaitable[T]]) -> T:
        with self._gate.busy("sampler"):
            await self._catch_up()
            return await call()

    async def _when_awake(self, call: Callable[[], Awaitable[None]]) -> None:
        if self._asleep:
            self._later.append(call)
            return
        await self._catch_up()
        await call()

    async def _catch_up(self) -> None:
        if self._later or self._catching_up.locked():
            await asyncio.shield(asyncio.ensure_future(self._do_what_was_put_off()))

    async def _do_what_was_put_off(self) -> None:
        async with self._catching_up:
            later, self._later = self._later, []
            with self._gate.busy("sampler"):
                ends = await asyncio.gather(*(call() for call in later), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end


# With ``sharing = "base"`` the trainer computes with vLLM's own tensors. With ``"sleep"`` each has its own, and leaves
# the device for the other; vLLM recomputes interrupted sequences when it wakes.
#
# It was run only on a processor, with vLLM's CPU build, whose sleep does nothing. It is written for cards after vLLM
# 0.32.

Shared = Literal["base", "sleep"]

SLICE = 0.05
"""Seconds of a slice: some steps of the sampler, a small batch of the trainer. On two busy cores, with passes of a
second and steps of fifty milliseconds, each reached half its separate speed."""


class ColocatedWorker:
    """Serves ``rollout.protocol.Sampler`` as ``sampler`` and ``training.protocol.Trainer`` as ``trainer``."""

    def __init__(self, sharing: Shared, sampler: dict[str, Any], trainer: dict[str, Any], slice: float = SLICE) -> None:
        """Start both, with the arguments of ``VllmSampler`` and ``TorchTrainer``; ``slice`` in seconds.

        Raises ``BaseModelError`` if vLLM cannot be used, or keeps the base in a form that cannot be shared.
        """
        require()
        self._base = load_base(trainer["base"])
        self._compute = compute_on(trainer.get("devices", ("cpu",))[0], trainer.get("precision", "f32"))
        self._room = trainer.get("room", PASS_BYTES)
        self._offloaded = OffloadedBase()
        on_card = self._compute.device.type != "cpu"
        moves: dict[Party, Move] = {
            "sampler": Move(self._wake, self._doze),
            "trainer": Move(self._offloaded.come, self._offloaded.go),
        }
        self._gate = Gate(slice, moves if sharing == "sleep" else None, holder="sampler")
        self._vllm = self._start_vllm(sampler, dozes=on_card and sharing == "sleep")
        model = self._borrow if sharing == "base" else self._lodge
        self._trainer = TorchTrainer(**{**trainer, "memory": 0, "model": model})
        self.trainer = Announced(self._trainer, self._gate, "trainer")
        announced = Announced(self._vllm, self._gate, "sampler")
        self.sampler = LightSleeper(self._vllm, self._gate) if sharing == "sleep" else announced

    def tidy(self) -> None:
        self._vllm.tidy()
        self._trainer.tidy()

    def _start_vllm(self, arguments: dict[str, Any], dozes: bool) -> VllmSampler:
        extra = {**(arguments.get("extra") or {}), **({"enable_sleep_mode": True} if dozes else {})}
        with considerate_vllm() if self._compute.device.type == "cpu" else nullcontext():
            return VllmSampler(**{**arguments, "extra": extra, "gate": self._sampling})

    def _sampling(self) -> AbstractContextManager[None]:
        return self._gate.turn("sampler")

    def _borrow(self) -> Model[Any]:
        base, dtype = self._base, loaded_as(self._compute.precision)
        tensors = named_tensors(self._vllm.engine.model, base.config, dtype)
        return self._paced(self._decoder(load(base, self._compute.device, dtype, tensors)))

    def _lodge(self) -> Model[Any]:
        """A model over its own tensors, on the device only during the trainer's turns; the first is now.

        A base in four bits is so small that it stays.
        """
        with self._gate.turn("trainer"):
            if self._compute.precision == "nf4":
                return self._paced(Decoder.of(self._base, self._compute, self._room))
            base = load(self._base, self._compute.device, loaded_as(self._compute.precision))
            self._offloaded.pack(tensors_of(base))
        return self._paced(self._decoder(base))

    def _decoder(self, base: Base) -> Decoder:
        room = self._room or pass_room(str(self._compute.device))
        return Decoder(self._base.config, base, self._compute, room)

    def _paced(self, model: Model[Any]) -> Model[Any]:
        return Paced(model, self._gate, self._compute.device.type)

    def _wake(self) -> None:
        self._or_end(self._vllm.engine.llm.wake_up)

    def _doze(self) -> None:
        self._or_end(partial(self._vllm.engine.llm.sleep, level=1, mode="keep"))

    def _or_end(self, change: Callable[[], Any]) -> None:
        """Run ``change``; if it fails, vLLM is partly asleep and useless, and the process ends."""
        try:
            change()
        except Exception as error:
            end_process(f"vLLM could not give the device away or take it back: {error}", error)
