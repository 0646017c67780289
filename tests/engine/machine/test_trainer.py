"""One trainer for many tasks: order, shares, cancelling and shared passes, on a device that only counts."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import pytest

from marlaas.engine.errors import AdapterError
from marlaas.engine.fairness.line import TRAINING, Ledger, Line, Payer, Usage
from marlaas.engine.machine.trainers import PASS_TOKENS, Call, SharedTrainer, TaskTrainer, TrainerPool
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
from marlaas.engine.trajectories import Logprobs, Tokens

ANN, BOB = Payer("ann", 1), Payer("bob", 2)


def group(tokens: int) -> TrainGroup:
    ones = np.ones(tokens)
    sequence = TrainSequence(ones.astype(np.int32), ones.astype(np.uint8), ones.astype(np.float32), 1.0)
    return TrainGroup(0, (sequence,))


def stats(tokens: int, fixed: float = 0.0) -> GroupStats:
    """A token takes a millisecond."""
    return GroupStats(tokens, 0.0, 0.0, 0, 0.0, 0.0, 0.0, tokens / 1000 + fixed, tokens)


def tokens_of(groups: tuple[TrainGroup, ...]) -> int:
    return sum(len(sequence.tokens) for one in groups for sequence in one.sequences)


async def settle() -> None:
    """Let what can go on go on."""
    for _ in range(4):
        await asyncio.sleep(0)


@dataclass
class Device:
    """Computes one call after the other, each when it is told to; notes what it was given."""

    under_way: deque[asyncio.Future[None]] = field(default_factory=deque)
    calls: list[str] = field(default_factory=list)
    broken: str = ""
    fixed: float = 0.0
    """Seconds that a pass takes beside its tokens."""

    async def work(self, call: str) -> None:
        self.calls.append(call)
        self.under_way.append(asyncio.get_running_loop().create_future())
        assert len(self.under_way) == 1
        await self.under_way[-1]

    async def finish_one(self) -> None:
        if self.under_way:
            self.under_way.popleft().set_result(None)
        await settle()

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        await self.work(policy)
        if policy == self.broken:
            raise AdapterError("It is broken.")
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

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        await self.work(f"score {policy}")
        return np.zeros(1, np.float32)

    async def close(self, policy: str) -> None:
        self.calls.append(f"close {policy}")

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        return StepResult(0, path, "", 0, 0.0, 0.0)


@dataclass
class Bench:
    """A shared trainer on a device, with the ledger that it fills."""

    fuse: bool = False
    weights: dict[str, float] = field(default_factory=dict)
    fixed: float = 0.0
    now: float = 0.0

    def __post_init__(self) -> None:
        self.device, self.ledger = Device(fixed=self.fixed), Ledger()
        line: Line[Call] = Line(lambda tenant: self.weights.get(tenant, 1.0))
        self.shared = SharedTrainer(cast(Trainer, self.device), line, self.ledger, self.fuse, now=lambda: self.now)
        self.pool = TrainerPool([self.shared])

    def task(self, payer: Payer, alone: bool = False) -> TaskTrainer:
        return TaskTrainer(self.pool, payer, alone)

    async def open(self, *policies: str) -> None:
        for policy in policies:
            await self.task(ANN).open(policy, PolicyConfig(), "path", False)

    async def learn(self, *sizes: int) -> None:
        """Passes alone over so many tokens, from which their times are learnt."""
        for size in sizes:
            learnt = start(self.task(ANN), "learnt", size)
            await settle()
            await self.finish(learnt)
        self.device.calls.clear()

    async def busy(self) -> list[asyncio.Task[GroupStats]]:
        """A call of somebody else that keeps the device."""
        other = self.task(Payer("else", 9), alone=True)
        calls = [asyncio.ensure_future(other.accumulate("else", (group(1),)))]
        await settle()
        self.device.calls.clear()
        return calls

    async def finish(self, *calls: asyncio.Task[GroupStats] | asyncio.Task[StepResult]) -> None:
        while not all(call.done() for call in calls):
            await self.device.finish_one()


def start(task: TaskTrainer, policy: str, tokens: int = 1) -> asyncio.Task[GroupStats]:
    return asyncio.ensure_future(task.accumulate(policy, (group(tokens),)))


async def seconds_of(bench: Bench, sizes: dict[Payer, int]) -> Counter[str]:
    """Seconds by tenant while each of the tasks makes one call of its size after the other."""
    seconds: Counter[str] = Counter()

    async def train(payer: Payer, tokens: int) -> None:
        task = bench.task(payer)
        while True:
            done = await task.accumulate("p", (group(tokens),))
            seconds[payer.tenant] += done.tokens

    running = [asyncio.ensure_future(train(payer, tokens)) for payer, tokens in sizes.items()]
    while seconds.total() < 10_000:
        await bench.device.finish_one()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return seconds


@pytest.mark.parametrize("weight", [1.0, 3.0])
async def test_device_seconds_follow_weights_at_any_call_size(weight: float) -> None:
    tasks = {Payer("ann", number): 40 for number in range(8)} | {Payer("bob", 100 + number): 9 for number in range(8)}
    seconds = await seconds_of(Bench(weights={"bob": weight}), tasks)
    assert seconds["bob"] / seconds.total() == pytest.approx(weight / (1 + weight), rel=0.05)


async def test_a_single_task_beside_eight_has_half() -> None:
    """It has one call at a time, and the other tenant's are always there."""
    seconds = await seconds_of(Bench(), {Payer("ann", number): 10 for number in range(8)} | {BOB: 10})
    assert seconds["bob"] / seconds.total() == pytest.approx(0.5, rel=0.05)


async def test_a_step_goes_before_groups_of_its_own_tenant() -> None:
    bench = Bench()
    held = await bench.busy()
    calls = [start(bench.task(ANN), "a0"), start(bench.task(BOB), "b0"), start(bench.task(Payer("ann", 3)), "a1")]
    await settle()
    step = asyncio.ensure_future(bench.task(Payer("ann", 4)).step("a2", "path"))
    await settle()
    await bench.finish(*held, *calls, step)
    assert bench.device.calls == ["step a2", "b0", "a0", "a1"]


async def test_steps_are_paid_for() -> None:
    """A tenant whose steps take long gets fewer groups in."""
    bench = Bench()
    held = await bench.busy()
    step = asyncio.ensure_future(bench.task(ANN).step("a", "path"))
    await bench.finish(*held, step)
    held = await bench.busy()
    calls = [start(bench.task(payer), f"{payer.tenant}{n}", 100) for n in range(4) for payer in (ANN, BOB)]
    await settle()
    await bench.finish(*held, *calls)
    assert bench.device.calls[0] == "bob0" and bench.device.calls.index("ann1") > bench.device.calls.index("bob2")


async def test_a_step_in_the_call_of_its_groups_is_paid_for() -> None:
    bench = Bench()
    last = asyncio.ensure_future(bench.task(ANN).accumulate("a", (group(10),), path="1"))
    await bench.finish(last)
    assert bench.device.calls == ["a"] and last.result().step is not None
    assert bench.ledger.take() == [Usage(1, TRAINING, 10, 0.51)]


async def test_a_cancelled_call_is_paid_for_once_it_runs() -> None:
    bench = Bench()
    under_way = start(bench.task(ANN), "a", 10)
    await settle()
    waiting, last = start(bench.task(ANN), "never"), start(bench.task(BOB), "last")
    await settle()
    assert (bench.shared.waiting, bench.shared.active) == (2, 1)
    for call in (under_way, waiting):
        call.cancel()
    await bench.finish(under_way, waiting, last)
    assert bench.device.calls == ["a", "last"]
    assert bench.ledger.take() == [Usage(1, TRAINING, 10, 0.01), Usage(2, TRAINING, 1, 0.001)]
    assert (bench.shared.waiting, bench.shared.active) == (0, 0)


async def test_a_call_cancelled_at_its_turn_is_not_made() -> None:
    bench = Bench()
    gone, call = start(bench.task(ANN), "gone"), start(bench.task(BOB), "b")
    await asyncio.sleep(0)  # the first is handed out, and begins with the next turn of the loop
    gone.cancel()
    await bench.finish(gone, call)
    assert bench.device.calls == ["b"] and call.result().tokens == 1
    assert bench.shared.active == 0


async def test_what_a_call_raises_reaches_its_caller_alone() -> None:
    bench = Bench()
    bench.device.broken = "a"
    broken, sound = start(bench.task(ANN), "a"), start(bench.task(BOB), "b")
    await bench.finish(broken, sound)
    assert sound.result().tokens == 1
    with pytest.raises(AdapterError, match="It is broken"):
        broken.result()


async def test_steps_are_paid_for_and_closing_waits_for_nobody() -> None:
    bench = Bench()
    await bench.open("a")
    held = await bench.busy()
    step = asyncio.ensure_future(bench.task(ANN).step("a", "path"))
    await bench.task(ANN).close("a")
    assert bench.device.calls == ["close a"]
    await bench.finish(*held)
    bench.now += 1.0
    await bench.device.finish_one()
    assert (await step).step == 1
    (usage,) = [usage for usage in bench.ledger.take() if usage.task == 1]
    assert usage.tokens == 0 and usage.seconds > 0


async def fusing(*policies: str, fixed: float = 1.0) -> Bench:
    """A bench where policies are open, and passes alone have been measured."""
    bench = Bench(fuse=True, fixed=fixed)
    await bench.open("learnt", "else", *policies)
    await bench.learn(1, 2, 3, 20)
    return bench


async def test_policies_in_line_share_a_pass_where_that_gains() -> None:
    bench = await fusing("a0", "b0", "a1", "b1", "others", "away")
    held = await bench.busy()
    calls = [start(bench.task(Payer(tenant, n)), f"{tenant}{n}") for n in range(2) for tenant in ("a", "b")]
    await settle()
    await bench.finish(*held, *calls)
    assert bench.device.calls == ["a0+b0+a1+b1"]
    assert [call.result().calls for call in (*held, *calls)] == [1.0, *[0.25] * 4], "one is shared by four"


async def test_deterministic_tasks_share_no_pass() -> None:
    bench = await fusing("a", "b", "c")
    held = await bench.busy()
    calls = [start(bench.task(Payer("a", 0)), "a"), start(bench.task(Payer("b", 1), alone=True), "b")]
    calls += [start(bench.task(Payer("c", 2)), "c")]
    await settle()
    await bench.finish(*held, *calls)
    assert bench.device.calls == ["a", "b", "c"]


async def test_a_job_that_is_refused_costs_the_others_nothing() -> None:
    bench = await fusing("a", "b")
    bench.device.broken = "a"
    held = await bench.busy()
    refused, sound = start(bench.task(BOB), "a"), start(bench.task(ANN), "b")
    await settle()
    await bench.finish(*held, refused, sound)
    assert bench.device.calls == ["a+b"] and sound.result().tokens == 1
    with pytest.raises(AdapterError, match="It is broken"):
        refused.result()


async def test_a_shared_pass_has_no_more_tokens_than_that() -> None:
    bench = await fusing(*"abcdef")
    held = await bench.busy()
    calls = [start(bench.task(Payer(name, n)), name, PASS_TOKENS // 3) for n, name in enumerate("abcd")]
    await settle()
    await bench.finish(*held, *calls)
    assert bench.device.calls == ["a+b+c", "d"]


async def test_work_is_what_similar_calls_took_and_falls_with_time() -> None:
    bench = Bench()
    await bench.open("learnt", "a", "b")
    await bench.learn(10, 20, 30, 40)
    calls = [start(bench.task(ANN), "a", 20), start(bench.task(ANN), "b", 40)]
    await settle()
    assert bench.shared.work == pytest.approx(0.06)
    bench.now += 0.015
    assert bench.shared.work == pytest.approx(0.045)
    bench.now += 10.0
    assert bench.shared.work == pytest.approx(0.04), "of the one that waits"
    await bench.finish(*calls)
    assert bench.shared.work == 0.0


async def test_a_call_whose_caller_is_gone_is_no_work() -> None:
    bench = Bench()
    await bench.open("learnt")
    await bench.learn(10, 20)
    gone = start(bench.task(ANN), "gone", 100)
    await asyncio.sleep(0)  # it is handed out, and begins with the next turn of the loop
    gone.cancel()
    await settle()
    assert bench.device.calls == [] and bench.shared.work == 0.0


async def test_a_pass_that_is_refused_teaches_nothing() -> None:
    bench = await fusing("a", "b")
    bench.device.broken = "all"
    held = await bench.busy()
    calls = [start(bench.task(payer), policy) for payer, policy in ((ANN, "a"), (BOB, "b"))]
    await settle()
    await bench.finish(*held)
    pace = dict(bench.shared._pace)
    bench.now += 100.0
    await bench.finish(*calls)
    assert bench.device.calls == ["b+a"] and bench.shared._pace == pace
    for call in calls:
        with pytest.raises(AdapterError, match="It is broken"):
            call.result()


async def test_a_closed_policy_counts_no_more_even_if_it_calls() -> None:
    bench = await fusing("a", "b")
    await bench.task(ANN).close("a")
    late = asyncio.ensure_future(bench.task(ANN).step("a", "path"))
    await bench.finish(late)
    assert bench.shared.policies == {"learnt", "else", "b"}
