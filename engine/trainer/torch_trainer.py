"""The torch trainer on one or several devices."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import logging
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

import torch

from ..adapters.statefile import PolicyState, checksum, read_state, write_state
from ..devices.limits import LentCores, Loan, ran_out
from ..devices.machine import Precision
from ..errors import AdapterError
from ..faults import Point, reach
from ..models.config import unsupported
from ..models.find import load_base
from ..models.kernels import library
from ..models.memory import PASS_BYTES
from ..models.weights import pairs
from ..trajectories import Logprobs, Tokens
from .decoder.decoder import Decoder, compute_on, nothing
from .group_pass import (
    Step,
    Work,
    add_gradients,
    check_group,
    group_logprobs,
    make_step,
    scored_group,
    with_references,
)
from .memory import AdapterCache, PolicyMemory, TrainingState, fresh, from_state, to_device, to_state, weights_of
from .model import Model, limit, policy_room
from .protocol import GroupStats, Job, PolicyConfig, Probe, Refused, StepResult, TrainGroup

# A failed pass is undone and repeated at half the size: nothing counts twice.

log = logging.getLogger(__name__)
R = TypeVar("R")


class DeviceFull(Exception):
    """``args``: the device's name for people. Holds none of the pass's tensors."""


def on(name: str, work: Callable[[], R]) -> R:
    """Raises ``DeviceFull`` for torch's out-of-memory error."""
    try:
        return work()
    except Exception as error:
        if not ran_out(error):
            raise
        log.warning("No memory on %s: %s", name, error)
    raise DeviceFull(name)  # outside of the handler, so that the pass's frames and tensors are freed


def once_more(name: str, work: Callable[[], R]) -> R:
    """Run work that is no pass, twice if memory runs out, then raise ``AdapterError``."""
    for _ in range(2):
        with suppress(DeviceFull):
            return on(name, work)
        release()
    raise AdapterError(
        f"There is no memory on {name} for an optimizer step.",
        "Lower the rank in the task file or `slots` under [training] in marlaas.toml, or leave the trainer more.",
    )


def release() -> None:
    """Give cached memory back."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# A call's groups are divided among copies of the base. Other devices get weights for a call and return a gradient,
# added in the order of devices, so that sums repeat.

WORTH = 1024
"""Least tokens per device that are worth the copies."""


class Replicas:
    """Copies of the base; the first is the primary, others compute on threads.

    ``make`` loads a model onto a device; ``threads``: cores of each.
    """

    def __init__(
        self, make: Callable[[str], Model[Any]], devices: Sequence[str], names: Sequence[str], threads: int
    ) -> None:
        self.name, self._devices, self._names = names[0], devices, names
        self._threads = [
            ThreadPoolExecutor(1, f"trainer on {name}", initializer=torch.set_num_threads, initargs=(threads,))
            for name in names[1:]
        ]
        self.primary = make(devices[0])
        further = zip(self._threads, devices[1:], strict=True)
        self._models = [self.primary, *(thread.submit(make, device).result() for thread, device in further)]

    def add_gradients(self, work: Work) -> tuple[GroupStats, ...]:
        """Raises the first error once all have ended."""
        if not self._threads:
            return on(self.name, partial(add_gradients, self.primary, work))
        begun = perf_counter()
        parts = shares([groups for _, groups in work], len(self._models))
        policies = [memory for memory, _ in work]
        copies = [policies, *([policy.on(device) for policy in policies] for device in self._devices[1:])]
        passes = [
            partial(on, name, partial(add_gradients, model, list(zip(own, part, strict=True))))
            for name, model, own, part in zip(self._names, self._models, copies, parts, strict=True)
        ]
        further = [thread.submit(one) for thread, one in zip(self._threads, passes[1:], strict=True)]
        try:
            first = passes[0]()
        finally:
            wait(further)
        stats = [first, *(one.result() for one in further)]
        for others in copies[1:]:
            for policy, other in zip(policies, others, strict=True):
                policy.take(other)
        seconds = (perf_counter() - begun) / len(work)
        return tuple(together(parts, seconds) for parts in zip(*stats, strict=True))

    def unmount(self) -> None:
        for model in self._models:
            model.unmount()

    def shrink(self) -> bool:
        return any([model.shrink() for model in self._models])

    def shutdown(self) -> None:
        for thread in self._threads:
            thread.shutdown()


def shares(work: Sequence[Sequence[TrainGroup]], replicas: int) -> list[list[tuple[TrainGroup, ...]]]:
    """Groups per replica and policy, in order: each to the one with the fewest tokens so far.

    Below ``WORTH`` tokens per replica, the first computes everything.
    """
    parts: list[list[list[TrainGroup]]] = [[[] for _ in work] for _ in range(replicas)]
    sizes = [[sum(len(sequence.tokens) for sequence in group.sequences) for group in groups] for groups in work]
    loads = [0] * (replicas if sum(map(sum, sizes)) >= WORTH * replicas else 1)
    for policy, groups in enumerate(work):
        for group, size in zip(groups, sizes[policy], strict=True):
            least = loads.index(min(loads))
            loads[least] += size
            parts[least][policy].append(group)
    return [[tuple(groups) for groups in part] for part in parts]


def together(stats: Sequence[GroupStats], seconds: float) -> GroupStats:
    """In order, so that the sum repeats."""
    sums = ("tokens", "loss", "entropy", "clipped", "gap_sum", "kl", "measured", "pairs", "margins", "won")
    return GroupStats(
        **{name: sum(getattr(part, name) for part in stats) for name in sums},
        gap_max=max(part.gap_max for part in stats),
        seconds=seconds,
        weights={number: weights for part in stats for number, weights in part.weights.items()},
    )


def load_model(
    folder: str,
    device: str = "cpu",
    room: int = PASS_BYTES,
    precision: Precision = "f32",
    settle: Callable[[], None] = nothing,
) -> Model[Any]:
    """Load a Hugging Face folder; a pass may take ``room`` bytes.

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
"""Bytes: Glibc always maps larger blocks."""


def keep_freed_memory() -> None:
    """Keep freed memory with glibc.

    Else page faults take a third of a step's time.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(M_MMAP_THRESHOLD, LARGEST)
        tune(M_TRIM_THRESHOLD, (1 << 31) - 1)
        tune(M_ARENA_MAX, 1)


# One thread computes, in call order. A second writes state files, and reads states.

P = ParamSpec("P")


async def _in(thread: Executor, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return await asyncio.get_running_loop().run_in_executor(thread, partial(work, *args, **kwargs))


@dataclass(frozen=True)
class _Made:
    opening: int
    step: Step
    state: PolicyState
    probed: TrainGroup
    """Scored after the step."""
    scores: tuple[Logprobs, ...]
    """Those before the step, if wanted."""
    seconds: float


def probed(probe: Probe | None) -> TrainGroup:
    """The group to score; empty without a probe. Raises ``ValueError`` on bad input."""
    return scored_group(probe.sequences if probe else ())


def refused(policy: str, error: Exception) -> Refused:
    """For the caller of one job: the call's other jobs keep their results."""
    if isinstance(error, AdapterError):
        return Refused.of(error)
    log.error("Training policy %s failed.", policy, exc_info=error)
    return Refused(f"Training on groups of policy {policy} failed: {type(error).__name__}: {error}.")


class TorchTrainer:
    """``base``: a Hugging Face folder; ``fingerprint``: of state files; ``threads``: cores; ``sync``: flush state
    files; ``names``: the devices'; ``memory``: most bytes of each card; ``room``: bytes of a pass per device. At most
    ``slots`` policies are held, in ``held`` bytes; 0: as the base leaves on a card, unlimited on a processor. Others
    are paged out below ``scratch``. With a ``loan``, passes that need not repeat borrow a sampler's idle cores.
    ``model`` replaces ``base``.

    Raises ``BaseModelError`` if the folder cannot be loaded. ``shutdown`` ends its threads.
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
        # OpenMP's threads are per calling thread. A second computing thread would oversubscribe the cores.
        self._cores = LentCores(loan, torch.set_num_threads) if loan else None
        self._repeats = True
        self._thread = ThreadPoolExecutor(1, "trainer", initializer=torch.set_num_threads, initargs=(threads,))
        self._disk = ThreadPoolExecutor(1, "state files")

        def make(device: str, folder: str = base) -> Model[Any]:
            limit(device, memory)
            if model is not None and folder == base:
                return model()
            return load_model(folder, device, room, precision, self._settle)

        self._make_model = make
        self._teachers: dict[str, Model[Any]] = {}
        """Other bases by folder, while a policy learns from them."""
        self._taught: dict[str, str] = {}
        """The folder of each such policy."""
        self._replicas = self._thread.submit(Replicas, make, devices, names or devices, threads).result()
        self._model = self._replicas.primary
        self._notices: list[str] = []
        """Of passes that did not fit, for the event log."""
        self._cache = AdapterCache(
            Path(scratch or tempfile.gettempdir()), slots, held or policy_room(self._device), self._device
        )
        self._openings = itertools.count()
        self._opened: dict[str, int] = {}

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        return await self._run(self._open, policy, config, Path(path), resume)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        """Bad input changes nothing.

        A group of zero advantages only counts its tokens, unless there is a KL term or an entropy bonus. With a
        ``path``, raises as ``step`` does; the gradients then stay.
        """
        (result,) = await self.accumulate_together((Job(policy, groups, probe, path),))
        if isinstance(result, Refused):
            raise result.error()
        return result

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats | Refused, ...]:
        """If a shared pass fails, its jobs run one by one."""
        results = await self._run(self._accumulate, jobs)
        return tuple(await asyncio.gather(*(self._end(job, *one) for job, one in zip(jobs, results, strict=True))))

    async def step(self, policy: str, path: str) -> StepResult:
        """After a loss or gradient that is not finite, or a refusing disk, the step can be repeated."""
        return await self._finish(policy, path, await self._run(self._make, policy))

    async def _finish(self, policy: str, path: str, made: _Made) -> StepResult:
        digest, size, writing = await _in(self._disk, self._write, Path(path), made.state)
        version, scores, seconds = await self._run(self._adopt, policy, made)
        return StepResult(
            step=version,
            path=path,
            checksum=digest,
            size=size,
            grad_norm=made.step.grad_norm,
            seconds=made.seconds + writing + seconds,
            divisor=made.step.divisor,
            learning_rate=made.step.learning_rate,
            notice=self._notice(),
            scores=scores,
        )

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        return await self._run(self._score, policy, tokens, start, temperature)

    async def close(self, policy: str) -> None:
        await self._run(self._close, policy)

    async def get_state(self, policy: str) -> TrainingState:
        """Read while others compute."""
        return await _in(self._disk, self._cache.look, policy)

    async def set_state(self, policy: str, state: TrainingState) -> None:
        await self._run(self._set_state, policy, state)

    def tidy(self) -> None:
        self._cache.close()

    def shutdown(self) -> None:
        self._thread.shutdown()
        self._replicas.shutdown()
        self._disk.shutdown()
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
        self._check_rank(config.rank)
        layout, reference = self._model.layout(config.rank, config.targets), None
        if config.reference:
            other = read_state(Path(config.reference))
            self._check_rank(other.header.rank)
            modules = tuple(module for module, _, _ in pairs(other.adapter))
            own = replace(config, rank=other.header.rank, alpha=other.header.alpha, targets=modules)
            its = self._model.layout(own.rank, own.targets)
            weights = weights_of(other, own, its, self._fingerprint).to(self._device)
            reference = PolicyMemory.frozen(own, its, weights)
        if resume:
            state = read_state(path)
            optimised, version = from_state(state, config, layout, self._fingerprint), state.header.step
            bonus = state.header.entropy_bonus
            digest, size = checksum(state.adapter), path.stat().st_size
        else:
            optimised, version, bonus = fresh(config, layout), 0, 0.0
            digest, size, _ = self._write(path, to_state(optimised, version, config, layout, self._fingerprint))
        optimised = optimised.to(self._device)
        memory = PolicyMemory.of(config, layout, optimised, version=version, reference=reference)
        memory.entropy_bonus = bonus
        self._cache.add(policy, memory)
        self._opened[policy] = next(self._openings)
        self._taught[policy] = config.teacher
        return StepResult(version, str(path), digest, size, 0.0, perf_counter() - begun)

    def _check_rank(self, rank: int) -> None:
        if rank > self._largest_rank:
            raise ValueError(
                f"rank is {rank}, but a slot takes {self._largest_rank} at most: lower `rank` in the task file, "
                "or raise `largest_rank` under [training] in marlaas.toml and start the engine again."
            )

    def _referred(self, memory: PolicyMemory, groups: Sequence[TrainGroup]) -> Sequence[TrainGroup]:
        folder = memory.config.teacher
        if folder and folder not in self._teachers:  # when it is needed first: loading takes a while
            self._teachers[folder] = self._make_model(self._device, folder)
        teacher = self._teachers.get(folder)
        return self._fitting(
            partial(on, self._replicas.name, partial(with_references, self._model, teacher, memory, groups))
        )

    def _gradients(self, work: Work) -> tuple[GroupStats, ...]:
        before = [memory.gathered() for memory, _ in work]
        self._repeats = any(memory.config.repeats for memory, _ in work)

        def undo() -> None:
            for (memory, _), gathered in zip(work, before, strict=True):
                memory.go_back(gathered)

        stats = self._fitting(partial(self._replicas.add_gradients, work), undo)
        return (replace(stats[0], notice=self._notice()), *stats[1:])

    async def _end(self, job: Job, result: GroupStats | Refused, made: _Made | None) -> GroupStats | Refused:
        if made is None or isinstance(result, Refused):
            return result
        try:
            return replace(result, step=await self._finish(job.policy, job.path, made))
        except Exception as error:
            return refused(job.policy, error)

    def _accumulate(self, jobs: Sequence[Job]) -> list[tuple[GroupStats | Refused, _Made | None]]:
        if len({job.policy for job in jobs}) < len(jobs):
            raise ValueError("A policy has two jobs in one call.")
        results: dict[str, GroupStats | Refused] = {}
        pending: list[Job] = []
        for job in jobs:
            try:
                for group in (*job.groups, probed(job.probe)):
                    check_group(group, self._model.vocabulary)
            except ValueError as error:
                results[job.policy] = Refused.of(error)
                continue
            if not self._cache.fit([other.policy for other in (*pending, job)]):
                results |= self._add(pending)
                pending = []
            pending.append(job)
        results |= self._add(pending)
        made: dict[str, _Made] = {}
        for job in jobs:
            if job.path and not isinstance(results[job.policy], Refused):
                try:
                    made[job.policy] = self._make(job.policy, job.probe)
                except Exception as error:
                    results[job.policy] = refused(job.policy, error)
        return [(results[job.policy], made.get(job.policy)) for job in jobs]

    def _add(self, jobs: Sequence[Job]) -> dict[str, GroupStats | Refused]:
        """A pass that fails leaves gradients as they were."""
        if not jobs:
            return {}
        begun, policies = perf_counter(), [job.policy for job in jobs]
        try:
            memories = self._cache.use(*policies)
            reach(Point.ACCUMULATE_BEGUN)
            stats = self._gradients([(m, self._referred(m, job.groups)) for m, job in zip(memories, jobs, strict=True)])
            reach(Point.ACCUMULATE_DONE)
        except Exception as error:
            if len(jobs) > 1:  # one of them may be the cause
                return {policy: result for job in jobs for policy, result in self._add([job]).items()}
            return {policies[0]: refused(policies[0], error)}
        paging = (perf_counter() - begun - sum(one.seconds for one in stats)) / len(jobs)
        return {policy: replace(one, seconds=one.seconds + paging) for policy, one in zip(policies, stats, strict=True)}

    def _make(self, policy: str, probe: Probe | None = None) -> _Made:
        begun = perf_counter()
        (memory,) = self._cache.use(policy)
        scored = probed(probe)
        scores = self._logprobs(memory, scored, memory.config.temperature) if probe and probe.before else ()
        reach(Point.STEP_READY)
        step = once_more(self._replicas.name, partial(make_step, self._gradients, memory))
        config, bonus = memory.config, memory.next_bonus
        state = to_state(step.optimised, memory.version + 1, config, memory.layout, self._fingerprint, bonus)
        return _Made(self._opened[policy], step, state, scored, scores, perf_counter() - begun)

    def _fitting(self, work: Callable[[], R], undo: Callable[[], None] = lambda: None) -> R:
        """Do ``work`` in smaller and smaller passes until it fits; undo it if it fails."""
        while True:
            try:
                return work()
            except DeviceFull as error:
                (name,) = error.args
            except Exception:
                undo()
                raise
            undo()
            release()
            if not self._replicas.shrink():
                raise AdapterError(
                    f"Training ran out of memory on {name}, even with a single sequence in a pass.",
                    "Lower `max_episode_tokens` in the task file or the rank, or leave the trainer more memory.",
                )
            self._notices.append(f"Training ran out of memory on {name}; passes are half as large from now on.")
            log.warning(self._notices[-1])

    def _notice(self) -> str:
        notices, self._notices = self._notices, []
        if len(notices) > 1:
            return notices[-1].replace("half as large", f"{2 ** len(notices)} times smaller")
        return "".join(notices)

    def _write(self, path: Path, state: PolicyState) -> tuple[str, int, float]:
        begun = perf_counter()
        size = write_state(path, state, self._sync)
        return checksum(state.adapter), size, perf_counter() - begun

    def _adopt(self, policy: str, made: _Made) -> tuple[int, tuple[Logprobs, ...], float]:
        begun = perf_counter()
        if self._opened.get(policy) != made.opening:
            raise AdapterError(f"Policy {policy} was closed while a step of it was being written.")
        (memory,) = self._cache.use(policy)
        memory.adopt(made.step.optimised)
        reach(Point.STEP_MADE)
        scores = made.scores + self._logprobs(memory, made.probed, memory.config.temperature)
        return memory.version, scores, perf_counter() - begun

    def _set_state(self, policy: str, state: TrainingState) -> None:
        self._close(policy)
        if state.layout != self._model.layout(state.config.rank, state.config.targets):
            raise AdapterError(f"The state of policy {policy} belongs to another base than this trainer's.")
        self._cache.add(policy, to_device(state, self._device))
        self._opened[policy] = next(self._openings)
        self._taught[policy] = state.config.teacher

    def _score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        (memory,) = self._cache.use(policy)
        return self._logprobs(memory, scored_group([(tokens, start)]), temperature)[0]

    def _logprobs(self, memory: PolicyMemory, group: TrainGroup, temperature: float) -> tuple[Logprobs, ...]:
        if not group.sequences:
            return ()
        self._repeats = memory.config.repeats
        scores = partial(group_logprobs, self._model, memory, group, temperature)
        return self._fitting(partial(on, self._replicas.name, scores))

    def _close(self, policy: str) -> None:
        self._cache.drop(policy)
        self._taught.pop(policy, None)
        for folder in self._teachers.keys() - set(self._taught.values()):
            del self._teachers[folder]
        if self._opened.pop(policy, None) is not None:
            self._replicas.unmount()
