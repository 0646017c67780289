"""Trainers for many tasks, on devices that only count: order, shares, shared passes, moves of policies, and deaths."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import cast

import numpy as np
import pytest

from marlaas.engine.errors import AdapterError, CallFailed, StateLost, WorkerDied
from marlaas.engine.fairness.line import TRAINING, FairClock, Ledger, Line, Payer, Usage
from marlaas.engine.machine.trainers import PASS_TOKENS, Call, SharedTrainer, TaskTrainer, TrainerPool
from marlaas.engine.trainer.memory import TrainingState
from marlaas.engine.trainer.protocol import (
    GroupStats,
    Job,
    PolicyConfig,
    Probe,
    Refused,
    StepResult,
    Trainer,
    TrainGroup,
    TrainSequence,
)

ANN, BOB, CONFIG = Payer("ann", 1), Payer("bob", 2), PolicyConfig()
NAMES = ("training", "training-2", "training-3")


def group(tokens: int) -> TrainGroup:
    ones = np.ones(tokens)
    sequence = TrainSequence(ones.astype(np.int32), ones.astype(np.uint8), ones.astype(np.float32), 1.0)
    return TrainGroup(0, (sequence,))


def stats(tokens: int, fixed: float) -> GroupStats:
    """A token takes a millisecond."""
    return GroupStats(tokens, 0.0, 0.0, 0, 0.0, 0.0, 0.0, tokens / 1000 + fixed, tokens)


def tokens_of(groups: tuple[TrainGroup, ...]) -> int:
    return sum(len(sequence.tokens) for each in groups for sequence in each.sequences)


async def settle(turns: int = 20) -> None:
    """Let everything that waits for nobody run, a move included."""
    for _ in range(turns):
        await asyncio.sleep(0)


@dataclass
class Device:
    """A trainer that keeps the sum of the tokens of each policy, and finishes a call when the test says so."""

    name: str
    fixed: float = 0.0
    """Seconds that a pass takes in addition to its tokens."""
    strict: bool = False
    """It refuses calls for policies that are not open."""
    states: dict[str, int] = field(default_factory=dict)
    running: deque[asyncio.Future[None]] = field(default_factory=deque)
    calls: list[str] = field(default_factory=list)
    broken: str = ""
    """The policy whose calls fail, or ``all``."""
    error: Exception | None = None
    """Raised when a state is set; by the first trainer also when it is read."""
    slow: asyncio.Event | None = None
    """States are set once this is set."""
    dead: bool = False

    async def work(self, call: str) -> None:
        self.calls.append(call)
        self.check_alive()
        self.running.append(asyncio.get_running_loop().create_future())
        assert len(self.running) == 1
        await self.running[-1]

    def check_alive(self) -> None:
        if self.dead:
            raise WorkerDied(f"{self.name} died.")

    async def finish_one(self) -> None:
        if self.running:
            self.running.popleft().set_result(None)
        await settle(20 if self.strict else 4)

    def die(self) -> None:
        self.dead = True
        while self.running:
            self.running.popleft().set_exception(WorkerDied(f"{self.name} died."))

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        self.check_alive()
        self.states[policy] = 0
        return StepResult(0, path, "", 0, 0.0, 0.0)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        await self.work(policy)
        if policy == self.broken or (self.strict and policy not in self.states):
            raise AdapterError("It is broken.")
        self.states[policy] = self.states.get(policy, 0) + tokens_of(groups)
        step = StepResult(1, path, "", 0, 0.0, 0.5) if path else None
        return replace(stats(tokens_of(groups), self.fixed), step=step)

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats | Refused, ...]:
        await self.work("+".join(job.policy for job in jobs))
        share = self.fixed / len(jobs)
        return tuple(
            Refused("It is broken.") if self.broken in (job.policy, "all") else stats(tokens_of(job.groups), share)
            for job in jobs
        )

    async def step(self, policy: str, path: str) -> StepResult:
        await self.work(f"step {policy}")
        return StepResult(1, path, "", 0, 0.0, 0.5)

    async def close(self, policy: str) -> None:
        self.calls.append(f"close {policy}")
        self.states.pop(policy, None)

    async def get_state(self, policy: str) -> TrainingState:
        if self.error and self.name == TRAINING:
            raise self.error
        self.check_alive()
        return cast(TrainingState, self.states[policy])

    async def set_state(self, policy: str, moved: TrainingState) -> None:
        if self.slow:
            await self.slow.wait()
        if self.error:
            raise self.error
        self.states[policy] = cast(int, moved)


class Bench:
    """A pool of trainers, the ledger that they fill, and what the pool reports. A move is expected to take 10 ms."""

    def __init__(
        self,
        number: int = 1,
        *,
        fuse: bool = False,
        weights: Mapping[str, float] | None = None,
        fixed: float = 0.0,
        moves: bool = True,
        processors: Mapping[str, str] | None = None,
    ) -> None:
        self.fuse, self.weights, self.processors = fuse, weights or {}, processors or {}
        self.devices = {name: Device(name, fixed, strict=number > 1) for name in NAMES[:number]}
        self.device, self.ledger, self.clock = self.devices[TRAINING], Ledger(), FairClock[str]()
        self.messages: list[str] = []
        self.now = 0.0
        self.pool = TrainerPool([self.on(name) for name in self.devices], self.messages.append, lambda: self.now)
        self.pool.move_seconds = 0.01 if moves else math.inf
        self.shared = self.pool.trainers[TRAINING]

    def on(self, name: str) -> SharedTrainer:
        line: Line[Call] = Line(lambda tenant: self.weights.get(tenant, 1.0), self.clock)
        trainer, like = cast(Trainer, self.devices[name]), self.processors.get(name, "")
        return SharedTrainer(trainer, line, self.ledger, self.fuse, name, lambda: self.now, like)

    def task(self, payer: Payer = ANN, alone: bool = False) -> TaskTrainer:
        return TaskTrainer(self.pool, payer, alone)

    def start(self, policy: str, tokens: int = 1, payer: Payer = ANN, alone: bool = False) -> asyncio.Task[GroupStats]:
        return asyncio.ensure_future(self.task(payer, alone).accumulate(policy, (group(tokens),)))

    async def open(self, *policies: str, alone: bool = False) -> None:
        for policy in policies:
            await self.task(alone=alone).open(policy, CONFIG, "path", False)

    async def learn(self, *sizes: int) -> None:
        """Each trainer learns how long passes over so many tokens take."""
        for device in self.devices.values():
            for size in sizes:
                call = self.start(min(device.states, default="learnt"), size)
                await settle()
                await self.finish(call)
        for device in self.devices.values():
            device.calls.clear()

    async def busy(self) -> asyncio.Task[GroupStats]:
        """A call of another tenant that occupies the first trainer."""
        call = self.start("else", 1, Payer("else", 9), alone=True)
        await settle()
        self.device.calls.clear()
        return call

    async def finish(self, *calls: asyncio.Task[GroupStats] | asyncio.Task[StepResult]) -> None:
        while not all(call.done() for call in calls):
            for device in self.devices.values():
                await device.finish_one()

    def homes(self) -> dict[str, str]:
        """The trainers of policies, by the states in them."""
        return {policy: name for name, device in self.devices.items() for policy in sorted(device.states)}


def tasks_of(tenant: str, first: int, number: int, tokens: int) -> dict[Payer, int]:
    return {Payer(tenant, first + place): tokens for place in range(number)}


async def test_a_step_goes_before_groups_of_its_own_tenant() -> None:
    bench = Bench()
    await bench.open("z")
    held = await bench.busy()
    calls = [bench.start("a0"), bench.start("b0", payer=BOB), bench.start("a1", payer=Payer("ann", 3))]
    await settle()
    step = asyncio.ensure_future(bench.task(Payer("ann", 4)).step("a2", "path"))
    await settle()
    await bench.task().close("z")
    assert bench.device.calls == ["close z"], "closing waits for nobody"
    await bench.finish(held, *calls, step)
    assert bench.device.calls[1:] == ["step a2", "b0", "a0", "a1"]


async def test_steps_are_paid_for() -> None:
    """A tenant whose steps take long gets fewer groups in."""
    bench = Bench()
    held = await bench.busy()
    step = asyncio.ensure_future(bench.task().step("a", "path"))
    await bench.finish(held)
    bench.now += 1.0
    await bench.finish(step)
    (usage,) = [usage for usage in bench.ledger.take() if usage.task == 1]
    assert usage.tokens == 0 and usage.seconds > 0
    held = await bench.busy()
    calls = [bench.start(f"{payer.tenant}{n}", 100, payer) for n in range(4) for payer in (ANN, BOB)]
    await settle()
    await bench.finish(held, *calls)
    assert bench.device.calls[0] == "bob0" and bench.device.calls.index("ann1") > bench.device.calls.index("bob2")


async def test_a_step_in_the_call_of_its_groups_is_paid_for() -> None:
    bench = Bench()
    last = asyncio.ensure_future(bench.task().accumulate("a", (group(10),), path="1"))
    await bench.finish(last)
    assert bench.device.calls == ["a"] and last.result().step is not None
    assert bench.ledger.take() == [Usage(1, TRAINING, 10, 0.51)]


async def test_a_cancelled_call_is_paid_for_once_it_runs() -> None:
    bench = Bench()
    running = bench.start("a", 10)
    await settle()
    waiting, last = bench.start("never"), bench.start("last", payer=BOB)
    await settle()
    assert (bench.shared.waiting, bench.shared.active) == (2, 1)
    for call in (running, waiting):
        call.cancel()
    await bench.finish(running, waiting, last)
    assert bench.device.calls == ["a", "last"]
    assert bench.ledger.take() == [Usage(1, TRAINING, 10, 0.01), Usage(2, TRAINING, 1, 0.001)]
    assert (bench.shared.waiting, bench.shared.active) == (0, 0)


async def fusing(*policies: str) -> Bench:
    """A bench where policies are open, and passes of single policies have been measured."""
    bench = Bench(fuse=True, fixed=1.0)
    await bench.open("learnt", "else", *policies)
    await bench.learn(1, 2, 3, 20)
    return bench


@pytest.mark.parametrize("fuse", [False, True])
async def test_what_a_call_raises_reaches_its_caller_alone(fuse: bool) -> None:
    bench = await fusing("a", "b") if fuse else Bench()
    bench.device.broken = "a"
    held = await bench.busy()
    broken, sound = bench.start("a", payer=BOB), bench.start("b")
    await settle()
    await bench.finish(held, broken, sound)
    assert sound.result().tokens == 1 and len(bench.device.calls) == (1 if fuse else 2)
    with pytest.raises(AdapterError, match="It is broken"):
        broken.result()


@pytest.mark.parametrize(
    ("tokens", "alone", "passes"),
    [(1, "", ["a+b+c+d"]), (1, "b", ["a", "b", "c+d"]), (PASS_TOKENS // 3, "", ["a+b+c", "d"])],
    ids=["half of the policies", "a deterministic task", "many tokens"],
)
async def test_policies_in_line_share_a_pass(tokens: int, alone: str, passes: list[str]) -> None:
    bench = await fusing(*"abcdef")
    held = await bench.busy()
    calls = [bench.start(name, tokens, Payer(name, n), alone=name == alone) for n, name in enumerate("abcd")]
    await settle()
    await bench.finish(held, *calls)
    assert bench.device.calls == passes
    shares = {name: 1 / len(names) for names in (each.split("+") for each in passes) for name in names}
    assert [call.result().calls for call in calls] == pytest.approx(list(shares.values())), "of a call"


async def test_work_falls_with_time_and_gone_calls_are_none() -> None:
    bench = Bench()
    await bench.open("learnt", "a", "b")
    await bench.learn(10, 20, 30, 40)
    calls = [bench.start("a", 20), bench.start("b", 40)]
    await settle()
    for passed, work in ((0.0, 0.06), (0.015, 0.045), (10.0, 0.04)):
        bench.now += passed
        assert bench.shared.work == pytest.approx(work)
    await bench.finish(*calls)
    assert bench.shared.work == 0.0
    gone = bench.start("a", 100)
    await asyncio.sleep(0)  # it is handed out, and begins with the next turn of the loop
    gone.cancel()
    await settle()
    assert bench.device.calls == ["a", "b"] and bench.shared.work == 0.0


async def test_refused_passes_teach_nothing_and_closed_policies_go() -> None:
    bench = await fusing("a", "b")
    bench.device.broken = "all"
    held = await bench.busy()
    calls = [bench.start("a"), bench.start("b", payer=BOB)]
    await settle()
    await bench.finish(held)
    pace = dict(bench.shared._pace)
    bench.now += 100.0
    await bench.finish(*calls)
    assert bench.device.calls == ["b+a"] and bench.shared._pace == pace
    for call in calls:
        with pytest.raises(AdapterError, match="It is broken"):
            call.result()
    await bench.task().close("a")
    late = asyncio.ensure_future(bench.task().step("a", "path"))
    await bench.finish(late)
    assert bench.shared.policies == {"learnt", "else", "b"}, "its late call does not bring it back"


AWAY, FIXED, TOKENS, SECONDS = 0.06, 0.03, 18, 60.0
"""Seconds of a task between two of its calls, and of a pass besides its tokens, which take a millisecond each; together
about what a small base takes on a processor."""


async def calls_of(
    tasks: dict[Payer, int], weights: Mapping[str, float] | None = None, away: Mapping[str, float] | None = None
) -> Counter[str]:
    """Calls by tenant within ``SECONDS`` of counted time; ``tasks`` are the tokens of each task's calls."""
    bench, made, order = Bench(fuse=True, weights=weights, fixed=FIXED), Counter[str](), count()
    await bench.open("learnt", *(f"p{payer.task}" for payer in tasks))
    await bench.learn(10, 20, 30, 40)
    asleep: list[tuple[float, int, asyncio.Future[None]]] = []

    async def train(payer: Payer, tokens: int) -> None:
        task = bench.task(payer)
        while True:
            await task.accumulate(f"p{payer.task}", (group(tokens),))
            made[payer.tenant] += 1
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heappush(asleep, (bench.now + (away or {}).get(payer.tenant, AWAY), next(order), woken))
            await woken

    running = [asyncio.ensure_future(train(payer, tokens)) for payer, tokens in tasks.items()]
    await settle()
    ends, passes = 0.0, 0
    while bench.now < SECONDS:
        if len(bench.device.calls) > passes:  # a pass has begun
            passes = len(bench.device.calls)
            together = bench.device.calls[-1].split("+")
            tokens = sum(size for payer, size in tasks.items() if f"p{payer.task}" in together)
            ends = bench.now + FIXED + tokens / 1000
        if bench.device.running and (not asleep or ends <= asleep[0][0]):
            bench.now = ends
            await bench.device.finish_one()
        else:
            bench.now, _, woken = heappop(asleep)
            woken.set_result(None)
            await settle(4)
    for task in running:
        task.cancel()
    bench.now = SECONDS
    while bench.device.running:
        await bench.device.finish_one()
    await asyncio.gather(*running, return_exceptions=True)
    return made


async def test_weights_hold_where_calls_share_passes() -> None:
    """Else two passes take turns, in which every policy is once. With fewer tasks bob would be away at times."""
    tasks = tasks_of("ann", 0, 8, TOKENS) | tasks_of("bob", 10, 8, TOKENS)
    made = await calls_of(tasks, {"bob": 3.0})
    assert made["bob"] / made.total() == pytest.approx(0.75, rel=0.1), "promise 7 of the design"


async def test_a_lone_task_has_half_next_to_eight_that_share_passes() -> None:
    """Within what it can use: it is away for more than half of the time that a call of its own takes it."""
    eight, bob = tasks_of("ann", 0, 8, TOKENS), {Payer("bob", 9): TOKENS}
    alone = (await calls_of(bob))["bob"]
    made = await calls_of(eight | bob)
    assert made["bob"] > 0.45 * alone
    assert made["ann"] > made["bob"], "what it does not use is theirs"
    of_ann = (await calls_of(eight)).total()
    seldom = await calls_of(eight | bob, away={"bob": 2.0})
    assert seldom["ann"] >= 0.9 * of_ann, "the wait of a task that calls seldom is short compared with its absence"
    assert seldom["bob"] >= 0.9 * SECONDS / (2.0 + FIXED + TOKENS / 1000)


async def two(*, moves: bool = True) -> Bench:
    """Policies ``a`` and ``c`` at the first trainer, ``b`` and ``d`` at the second."""
    bench = Bench(2, moves=moves)
    await bench.open(*"abcd")
    assert bench.homes() == {"a": "training", "c": "training", "b": "training-2", "d": "training-2"}
    await bench.learn(10, 50, 100, 200)
    return bench


async def test_a_policy_goes_where_the_least_work_is_with_all_it_had() -> None:
    bench = await two()
    before = bench.device.states["c"]
    calls = [bench.start("a", 500), bench.start("c", 20)]
    await settle()
    assert bench.devices["training-2"].calls == ["c"] and bench.homes()["c"] == "training-2"
    await bench.finish(*calls)
    assert bench.devices["training-2"].states["c"] == before + 20 and bench.pool.moved == 1
    again = bench.start("c", 20)
    await settle()
    assert bench.homes()["c"] == "training-2", "it stays where its state is"
    await bench.finish(again)


async def test_what_does_not_pay_or_is_not_wanted_does_not_move() -> None:
    for seconds in (1.0, math.inf):
        bench = await two()
        bench.pool.move_seconds = seconds
        calls = [bench.start("a", 500), bench.start("c", 20)]
        await settle()
        assert bench.device.calls == ["a"] and bench.pool.moved == 0
        await bench.finish(*calls)
        assert bench.device.calls == ["a", "c"]


async def test_what_has_ended_sooner_than_expected_is_no_work() -> None:
    """A caller goes on at once, and its next call must find the trainer idle."""
    bench = await two()
    first = bench.start("a", 5000)  # it is expected to take five seconds, of which none pass
    await settle()
    assert bench.shared.work == pytest.approx(5.0, rel=0.01)
    works: list[float] = []
    first.add_done_callback(lambda _: works.append(bench.shared.work))
    await bench.finish(first)
    assert works == [0.0]


@pytest.mark.parametrize("kind", [AdapterError, CallFailed, ValueError])
async def test_whatever_a_move_fails_of_the_call_is_made(kind: type[Exception]) -> None:
    bench = await two()
    bench.devices["training-2"].error = kind("It has no memory for it")
    calls = [bench.start("a", 500), bench.start("c", 20)]
    await settle()
    async with asyncio.timeout(10):
        await bench.finish(*calls)
    assert calls[-1].result().tokens == 20 and bench.homes()["c"] == "training"
    words = "The state of policy c could not move from training to training-2: It has no memory for it"
    assert bench.messages == [words]


async def test_a_state_that_cannot_be_had_is_an_error_of_its_call() -> None:
    bench = await two()
    calls = [bench.start("a", 500)]
    bench.device.error = ValueError("It was said so.")
    call = bench.start("c", 20)
    await settle()
    with pytest.raises(ValueError, match="said so"):
        async with asyncio.timeout(10):
            await call
    await bench.finish(*calls)


@pytest.mark.parametrize("again", [False, True])
async def test_what_is_closed_while_it_moves_is_closed_everywhere(again: bool) -> None:
    bench = await two()
    bench.devices["training-2"].slow = asyncio.Event()
    busy, moving = bench.start("a", 500), bench.start("c", 20)
    await settle()
    moving.cancel()
    closing = asyncio.ensure_future(bench.task().close("c"))
    opening = asyncio.ensure_future(bench.open("c")) if again else None
    await settle()
    bench.devices["training-2"].slow.set()
    await settle(80)
    await closing
    if opening:
        await opening
    await settle()
    assert sum("c" in device.states for device in bench.devices.values()) == again
    assert all(device.states.get("c", 0) == 0 for device in bench.devices.values()), "what was opened since is whole"
    await bench.finish(busy)


async def test_a_trainer_that_dies_takes_its_own_policies_alone() -> None:
    bench = await two(moves=False)
    calls = {policy: bench.start(policy, 100) for policy in "abcd"}
    await settle()
    bench.device.die()
    await settle()
    assert not calls["a"].done(), "first the supervisor says what becomes of the others"
    bench.pool.lose("training")
    await settle()
    for policy in "ac":
        with pytest.raises(StateLost, match=r"training (died|state)"):
            calls[policy].result()
        with pytest.raises(StateLost, match=f"policy {policy}"):
            await bench.task().accumulate(policy, (group(1),))
    await bench.finish(calls["b"], calls["d"])
    assert calls["b"].result().tokens == calls["d"].result().tokens == 100
    await bench.open("a")
    assert bench.homes()["a"] == "training-2" and list(bench.pool.trainers) == ["training-2"]
    bench.devices["training"] = Device("training")
    bench.pool.take_in(bench.on("training"))
    await bench.open("e", "f")
    assert bench.homes()["e"] == "training", "the next trainer of that name serves again"
    await bench.finish(bench.start("e"))


@pytest.mark.parametrize("number", [1, 2])
async def test_when_all_die_at_once_nobody_waits_for_the_others(number: int) -> None:
    bench = Bench(number, moves=False)
    await bench.open("a", "b")
    calls = [bench.start(policy) for policy in "ab"[:number]]
    await settle()
    for device in bench.devices.values():
        device.die()
    await settle()
    if number > 1:
        bench.pool.end()
    for call in calls:
        with pytest.raises(WorkerDied) as raised:
            await asyncio.wait_for(call, 5)
        assert not isinstance(raised.value, StateLost), "all workers are started again"


async def test_what_moves_while_its_trainer_dies_is_lost_alone() -> None:
    bench = await two()
    calls = [bench.start("b", 10), bench.start("a", 500)]
    await settle()
    bench.device.dead = True
    moving = bench.start("c", 20)
    await settle()
    bench.device.die()
    bench.pool.lose("training")
    for call in (moving, calls[1]):
        with pytest.raises(StateLost):
            await call
    await bench.finish(calls[0])


async def test_shares_are_of_all_trainers_together() -> None:
    """A tenant that one trainer served much waits at the other."""
    bench = await two(moves=False)
    first = bench.start("a", 900)
    await settle()
    await bench.finish(first)
    held = bench.start("b", payer=BOB)
    await settle()
    waiting = [bench.start("b"), bench.start("d", payer=BOB)]
    await settle()
    await bench.finish(held, *waiting)
    assert bench.devices["training-2"].calls == ["b", "d", "b"]
    assert not list(bench.pool.standings())


def unlike() -> Bench:
    """The second of three trainers is on another processor than the others."""
    return Bench(3, processors={"training": "EPYC", "training-2": "Xeon", "training-3": "EPYC"})


async def test_what_must_repeat_stays_with_processors_that_are_alike() -> None:
    bench = unlike()
    for number in range(4):
        await bench.open(f"exact{number}", alone=True)
        await bench.open(f"free{number}")
    assert {policy[:-1] for policy in bench.devices["training-2"].states} == {"free"}
    bench = unlike()
    await bench.open("a")
    await bench.open("exact", alone=True)
    assert bench.homes() == {"a": "training", "exact": "training-3"}
    await bench.learn(10, 50, 100, 200)
    first = bench.start("exact", 500, Payer("ann", 2), alone=True)
    await settle()
    await bench.open("more", alone=True)
    assert bench.homes()["more"] == "training", "the other one of its kind"
    await bench.finish(first)


@pytest.mark.parametrize("ends", [False, True])
async def test_it_waits_for_the_successor_of_its_only_trainer(ends: bool) -> None:
    bench = unlike()
    for name in ("training", "training-3"):
        bench.pool.lose(name)
    opening = asyncio.ensure_future(bench.open("exact", alone=True))
    await settle()
    assert not opening.done()
    if ends:
        bench.pool.end()
        with pytest.raises(WorkerDied, match="this policy's bits"):
            await opening
        return
    bench.devices["training-3"] = Device("training-3")
    bench.pool.take_in(bench.on("training-3"))
    await opening
    assert bench.homes() == {"exact": "training-3"}
