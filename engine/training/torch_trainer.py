"""The trainer over torch: opens policies, accumulates gradients of groups, makes steps."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import logging
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

import torch

from ..adapters import PolicyState, checksum, read_state, write_state
from ..base import PASS_BYTES, library, load_base, unsupported
from ..devices import LentCores, Loan, Precision
from ..errors import AdapterError
from ..faults import Point, reach
from ..trajectories import Logprobs, Tokens
from .decoder.decoder import Decoder, compute_on, nothing
from .group_pass import Step, Work, check_config, make_step
from .memory import AdapterCache, MovedState, PolicyMemory, fresh, from_state, to_device, to_state, weights_of
from .model import Model, limit, policy_room
from .protocol import GroupStats, Job, PolicyConfig, Probe, Refused, StepResult, TrainGroup
from .replicas import Jobs, PassBackoff, Replicas, once_more

log = logging.getLogger(__name__)


def load_model(
    folder: str,
    device: str = "cpu",
    room: int = PASS_BYTES,
    precision: Precision = "f32",
    settle: Callable[[], None] = nothing,
) -> Model[Any]:
    """Load the base in a Hugging Face folder onto a torch device; a pass over it may take ``room`` bytes.

    Our own decoder calls ``settle`` before each layer. Raises ``BaseModelError``.
    """
    library()
    base = load_base(folder)
    reason = unsupported(base.config)
    if not reason:
        return Decoder.of(base, replace(compute_on(device, precision), settle=settle), room)
    log.warning("The base in %s is trained through transformers and PEFT, which is slower: %s.", folder, reason)
    from .peft_model import PeftModel

    return PeftModel(folder, device, room, precision)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGEST = 32 << 20
"""Bytes. Glibc always maps a larger block by itself."""


def keep_freed_memory() -> None:
    """Make this process keep freed memory, if its C library is glibc.

    Else page faults for tens of megabytes would take a third of a step's time.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(M_MMAP_THRESHOLD, LARGEST)
        tune(M_TRIM_THRESHOLD, (1 << 31) - 1)
        tune(M_ARENA_MAX, 1)


# All computation runs in one thread, in call order. A second thread writes state files meanwhile; a third reads the
# states of policies that move.

P = ParamSpec("P")
R = TypeVar("R")


async def _in(thread: Executor, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return await asyncio.get_running_loop().run_in_executor(thread, partial(work, *args, **kwargs))


@dataclass(frozen=True)
class _Written:
    checksum: str
    size: int
    seconds: float


@dataclass(frozen=True)
class _Made:
    opening: int
    step: Step
    state: PolicyState
    seconds: float


class TorchTrainer:
    """Implements ``protocol.Trainer``.

    ``base`` is a Hugging Face folder, ``fingerprint`` its fingerprint in state files, ``threads`` the number of cores,
    ``sync`` flushes state files to the disk, ``names`` are the devices' names for people, ``memory`` the most bytes of
    each card (0: no limit). A pass may take ``room`` bytes of each device. At most ``slots`` policies are held, in
    ``held`` bytes; 0: as the base leaves on a card, unlimited on a processor. Other policies are paged out below
    ``scratch``. With a ``loan``, passes that need not repeat borrow a sampler's idle cores. ``model`` makes the model
    in the computing thread instead of loading ``base``.

    Raises ``BaseModelError`` if the folder cannot be loaded. Call ``shutdown`` to end its threads.
    """

    def __init__(
        self,
        base: str,
        fingerprint: str,
        threads: int = 1,
        sync: bool = True,
        devices: Sequence[str] = ("cpu",),
        room: int = PASS_BYTES,
        slots: int = 0,
        held: int = 0,
        largest_rank: int = 512,
        scratch: str = "",
        model: Callable[[], Model[Any]] | None = None,
        precision: Precision = "f32",
        memory: int = 0,
        names: Sequence[str] = (),
        loan: Loan | None = None,
    ) -> None:
        keep_freed_memory()
        self._fingerprint = fingerprint
        self._sync = sync
        self._device = devices[0]
        self._largest_rank = largest_rank
        # OpenMP's number of threads is set per calling thread, hence the initializer. A second computing thread would
        # oversubscribe the cores.
        self._cores = LentCores(loan, torch.set_num_threads) if loan else None
        self._repeats = True
        self._thread = ThreadPoolExecutor(1, "trainer", initializer=torch.set_num_threads, initargs=(threads,))
        self._disk = ThreadPoolExecutor(1, "state files")
        self._moves = ThreadPoolExecutor(1, "moves")

        def make(device: str) -> Model[Any]:
            limit(device, memory)
            return model() if model is not None else load_model(base, device, room, precision, self._settle)

        self._replicas = self._thread.submit(Replicas, make, devices, names or devices, threads).result()
        self._model = self._replicas.primary.model
        self._backoff = PassBackoff(self._replicas.shrink)
        self._cache = AdapterCache(
            Path(scratch or tempfile.gettempdir()), slots, held or policy_room(self._device), self._device
        )
        self._jobs = Jobs(self._model.vocabulary, self._gradients, self._logprobs, self._cache, self._close)
        self._openings = itertools.count()
        self._opened: dict[str, int] = {}

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        """Bring a policy into memory, from its state file or fresh; raises ``AdapterError`` or ``ValueError``."""
        return await self._run(self._open, policy, config, Path(path), resume)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        """Add the groups' gradients; raises ``ValueError`` on bad input and then changes nothing.

        A group whose advantages are all zero is skipped unless there is a KL term or an entropy bonus: only its tokens
        count. With a ``path``, raises as ``step`` does; the gradients then stay.
        """
        stats, made = await self._run(self._accumulate, Job(policy, groups, probe, path))
        return stats if made is None else replace(stats, step=await self._finish(policy, path, made))

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats | Refused, ...]:
        """``accumulate`` for several policies in shared passes; one result per job.

        If a shared pass fails, its jobs are run one by one. A policy that fails again is closed.
        """
        results = await self._run(self._together, jobs)
        return tuple(await asyncio.gather(*(self._end(job, *one) for job, one in zip(jobs, results, strict=True))))

    async def step(self, policy: str, path: str) -> StepResult:
        """Make the step's updates and write its state file.

        Raises ``AdapterError`` if a loss or gradient is not finite or the disk refuses; the step can then be repeated.
        """
        return await self._finish(policy, path, await self._run(self._make, policy))

    async def _finish(self, policy: str, path: str, made: _Made) -> StepResult:
        written = await _in(self._disk, self._write, Path(path), made.state)
        version, seconds = await self._run(self._adopt, policy, made)
        return StepResult(
            step=version,
            path=path,
            checksum=written.checksum,
            size=written.size,
            grad_norm=made.step.grad_norm,
            seconds=made.seconds + written.seconds + seconds,
            divisor=made.step.divisor,
            learning_rate=made.step.learning_rate,
            notice=self._backoff.notice(),
        )

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        return await self._run(self._score, policy, tokens, start, temperature)

    async def close(self, policy: str) -> None:
        await self._run(self._close, policy)

    async def get_state(self, policy: str) -> MovedState:
        """A policy's state, read while others compute; raises ``AdapterError`` if it is not open."""

        def get() -> MovedState:
            state = self._cache.look(policy)
            return MovedState(state, state.checksum())

        return await _in(self._moves, get)

    async def set_state(self, policy: str, moved: MovedState) -> None:
        """Open a policy with this state; raises ``AdapterError`` if it is damaged or belongs to another base."""
        found = await _in(self._moves, moved.state.checksum)
        await self._run(self._set_state, policy, moved, found)

    def tidy(self) -> None:
        self._cache.close()

    def shutdown(self) -> None:
        self._thread.shutdown()
        self._replicas.shutdown()
        self._disk.shutdown()
        self._moves.shutdown()
        self.tidy()

    async def _run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await _in(self._thread, self._at_work, partial(work, *args, **kwargs))

    def _at_work(self, work: Callable[[], R]) -> R:
        if self._cores is None:
            return work()
        with self._cores.round():
            try:
                return work()
            finally:
                self._cores.rest()

    def _settle(self) -> None:
        if self._cores is not None:
            self._cores.settle(not self._repeats)

    def _open(self, policy: str, config: PolicyConfig, path: Path, resume: bool) -> StepResult:
        begun = perf_counter()
        self._close(policy)
        check_config(config)
        if config.rank > self._largest_rank:
            raise ValueError(
                f"rank is {config.rank}, but a slot takes {self._largest_rank} at most: lower `rank` in the task file, "
                "or raise `largest_rank` under [training] in marlaas.toml and start the engine again."
            )
        layout, reference = self._model.layout(config.rank), None
        if config.reference:
            reference = weights_of(read_state(Path(config.reference)), config, layout, self._fingerprint)
        if resume:
            state = read_state(path)
            optimised, version = from_state(state, config, layout, self._fingerprint), state.header.step
            written = _Written(checksum(state.adapter), path.stat().st_size, 0.0)
        else:
            optimised, version = fresh(config, layout), 0
            written = self._write(path, to_state(optimised, version, config, layout, self._fingerprint))
        self._cache.add(policy, PolicyMemory.of(config, layout, optimised, self._device, version, reference))
        self._opened[policy] = next(self._openings)
        return StepResult(version, str(path), written.checksum, written.size, 0.0, perf_counter() - begun)

    def _gradients(self, work: Work) -> tuple[GroupStats, ...]:
        before = [memory.gathered() for memory, _ in work]
        self._repeats = any(memory.config.repeats for memory, _ in work)

        def undo() -> None:
            for (memory, _), gathered in zip(work, before, strict=True):
                memory.go_back(gathered)

        stats = self._backoff.make(partial(self._replicas.add_gradients, work), undo)
        return (replace(stats[0], notice=self._backoff.notice()), *stats[1:])

    async def _end(self, job: Job, result: GroupStats | Refused, made: _Made | None) -> GroupStats | Refused:
        if made is None or isinstance(result, Refused):
            return result
        try:
            return replace(result, step=await self._finish(job.policy, job.path, made))
        except AdapterError as error:
            return Refused.of(error)

    def _accumulate(self, job: Job) -> tuple[GroupStats, _Made | None]:
        (result,) = self._jobs.run((job,))
        if isinstance(result, Refused):
            raise result.error()
        return result, self._make(job.policy) if job.path else None

    def _together(self, jobs: Sequence[Job]) -> list[tuple[GroupStats | Refused, _Made | None]]:
        found: list[tuple[GroupStats | Refused, _Made | None]] = []
        for job, result in zip(jobs, self._jobs.run(jobs), strict=True):
            made = None
            if job.path and not isinstance(result, Refused):
                try:
                    made = self._make(job.policy)
                except AdapterError as error:
                    result = Refused.of(error)
            found.append((result, made))
        return found

    def _make(self, policy: str) -> _Made:
        begun = perf_counter()
        (memory,) = self._cache.use(policy)
        reach(Point.STEP_READY)
        step = once_more(self._replicas.primary.name, partial(make_step, self._gradients, memory))
        state = to_state(step.optimised, memory.version + 1, memory.config, memory.layout, self._fingerprint)
        return _Made(self._opened[policy], step, state, perf_counter() - begun)

    def _write(self, path: Path, state: PolicyState) -> _Written:
        begun = perf_counter()
        size = write_state(path, state, self._sync)
        return _Written(checksum(state.adapter), size, perf_counter() - begun)

    def _adopt(self, policy: str, made: _Made) -> tuple[int, float]:
        begun = perf_counter()
        if self._opened.get(policy) != made.opening:
            raise AdapterError(f"Policy {policy} was closed while a step of it was being written.")
        (memory,) = self._cache.use(policy)
        memory.adopt(made.step.optimised)
        reach(Point.STEP_MADE)
        return memory.version, perf_counter() - begun

    def _set_state(self, policy: str, moved: MovedState, found: str) -> None:
        self._close(policy)
        state = moved.state
        if found != moved.checksum:
            raise AdapterError(f"The state of policy {policy} was damaged on its way here: {found}, {moved.checksum}.")
        if state.layout != self._model.layout(state.config.rank):
            raise AdapterError(f"The state of policy {policy} belongs to another base than this trainer's.")
        self._cache.add(policy, to_device(state, self._device))
        self._opened[policy] = next(self._openings)

    def _score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        (memory,) = self._cache.use(policy)
        return self._logprobs(memory, tokens, start, temperature)

    def _logprobs(self, memory: PolicyMemory, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        self._repeats = memory.config.repeats
        return self._backoff.make(partial(self._replicas.logprobs, memory, tokens, start, temperature))

    def _close(self, policy: str) -> None:
        self._cache.drop(policy)
        if self._opened.pop(policy, None) is not None:
            self._replicas.unmount()
