"""Several trainers: policies are spread, move where that pays, and lose no more than they must."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import cast

import pytest

from marlaas.engine.errors import AdapterError, CallFailed, StateLost, WorkerDied
from marlaas.engine.fairness.line import FairClock, Ledger, Line, Payer
from marlaas.engine.machine.trainers import Call, SharedTrainer, TaskTrainer, TrainerPool
from marlaas.engine.trainer.memory import TrainingState
from marlaas.engine.trainer.protocol import GroupStats, PolicyConfig, Probe, StepResult, Trainer, TrainGroup

from .test_trainer import group, stats, tokens_of

CONFIG = PolicyConfig()


async def settle() -> None:
    """Let what can go on go on, a move included."""
    for _ in range(20):
        await asyncio.sleep(0)


@dataclass
class Device:
    """A trainer that keeps the sum of the tokens of each policy, and computes when it is told to."""

    name: str
    states: dict[str, int] = field(default_factory=dict)
    under_way: deque[asyncio.Future[None]] = field(default_factory=deque)
    calls: list[str] = field(default_factory=list)
    error: Exception | None = None
    """What setting a state fails of, and getting one of the first trainer."""
    slow: asyncio.Event | None = None
    """Where it is there, states are set once it is set."""
    dead: bool = False

    async def work(self, call: str) -> None:
        self.calls.append(call)
        if self.dead:
            raise WorkerDied(f"{self.name} died.")
        self.under_way.append(asyncio.get_running_loop().create_future())
        assert len(self.under_way) == 1
        await self.under_way[-1]

    async def finish_one(self) -> None:
        if self.under_way:
            self.under_way.popleft().set_result(None)
        await settle()

    def die(self) -> None:
        self.dead = True
        while self.under_way:
            self.under_way.popleft().set_exception(WorkerDied(f"{self.name} died."))

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        if self.dead:
            raise WorkerDied(f"{self.name} died.")
        self.states[policy] = 0
        return StepResult(0, path, "", 0, 0.0, 0.0)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        await self.work(policy)
        if policy not in self.states:
            raise AdapterError(f"Policy {policy} is not open in this trainer.")
        self.states[policy] += tokens_of(groups)
        return stats(tokens_of(groups))

    async def step(self, policy: str, path: str) -> StepResult:
        await self.work(f"step {policy}")
        return StepResult(self.states[policy], path, "", 0, 0.0, 0.5)

    async def close(self, policy: str) -> None:
        self.states.pop(policy, None)

    async def get_state(self, policy: str) -> TrainingState:
        if self.error and self.name == "training":
            raise self.error
        if self.dead:
            raise WorkerDied(f"{self.name} died.")
        return cast(TrainingState, self.states[policy])

    async def set_state(self, policy: str, moved: TrainingState) -> None:
        if self.slow:
            await self.slow.wait()
        if self.error:
            raise self.error
        self.states[policy] = cast(int, moved)


class Bench:
    """Two trainers or more, and what the pool said. A token takes a millisecond, a move none unless it is told."""

    def __init__(self, count: int = 2, moves: bool = True) -> None:
        self.devices = {name: Device(name) for name in ("training", "training-2", "training-3")[:count]}
        self.clock: FairClock[str] = FairClock()
        self.said: list[str] = []
        self.now = 0.0
        shared = [self.shared(device) for device in self.devices.values()]
        self.pool = TrainerPool(shared, moves, self.said.append, lambda: self.now)
        self.pool.move_seconds = 0.01

    def shared(self, device: Device) -> SharedTrainer:
        line: Line[Call] = Line(clock=self.clock)
        return SharedTrainer(cast(Trainer, device), line, Ledger(), name=device.name, now=lambda: self.now)

    def task(self, number: int = 1) -> TaskTrainer:
        return TaskTrainer(self.pool, Payer("ann", number), alone=False)

    def start(self, policy: str, tokens: int = 100) -> asyncio.Task[GroupStats]:
        return asyncio.ensure_future(self.task().accumulate(policy, (group(tokens),)))

    async def open(self, *policies: str) -> None:
        for policy in policies:
            await self.task().open(policy, CONFIG, "path", False)

    async def learn(self) -> None:
        """Both measure how long passes take."""
        for home in [*self.homes().values()]:
            for tokens in (10, 50, 100, 200):
                call = self.start(next(policy for policy, name in self.homes().items() if name == home), tokens)
                await settle()
                await self.finish(call)
        for device in self.devices.values():
            device.calls.clear()

    async def finish(self, *calls: asyncio.Task[GroupStats]) -> None:
        while not all(call.done() for call in calls):
            for device in self.devices.values():
                await device.finish_one()

    def homes(self) -> dict[str, str]:
        """The trainers of policies, by what they hold."""
        return {policy: name for name, device in self.devices.items() for policy in sorted(device.states)}


async def two(*, moves: bool = True) -> Bench:
    """Policies ``a`` and ``c`` at the first trainer, ``b`` and ``d`` at the second."""
    bench = Bench(moves=moves)
    await bench.open(*"abcd")
    assert bench.homes() == {"a": "training", "c": "training", "b": "training-2", "d": "training-2"}
    await bench.learn()
    return bench


async def test_two_policies_train_at_the_same_time() -> None:
    bench = await two()
    calls = [bench.start(policy) for policy in "ab"]
    await settle()
    assert all(len(device.under_way) == 1 for device in bench.devices.values())
    assert [trainer.active for trainer in bench.pool.trainers.values()] == [1, 1]
    await bench.finish(*calls)
    assert bench.pool.moved == 0


async def test_a_policy_goes_where_the_least_work_is_with_all_it_had() -> None:
    bench = await two()
    had = bench.devices["training"].states["c"]
    calls = [bench.start("a", 500), bench.start("c", 20)]
    await settle()
    assert bench.devices["training-2"].calls == ["c"] and bench.homes()["c"] == "training-2"
    await bench.finish(*calls)
    assert bench.devices["training-2"].states["c"] == had + 20 and bench.pool.moved == 1
    again = bench.start("c", 20)
    await settle()
    assert bench.homes()["c"] == "training-2", "it stays where its state is"
    await bench.finish(again)


async def test_what_does_not_pay_or_is_not_wanted_does_not_move() -> None:
    for bench in (await two(), await two(moves=False)):
        bench.pool.move_seconds = 1.0
        calls = [bench.start("a", 500), bench.start("c", 20)]
        await settle()
        assert bench.devices["training"].calls == ["a"] and bench.pool.moved == 0
        await bench.finish(*calls)
        assert bench.devices["training"].calls == ["a", "c"]


async def test_what_has_ended_sooner_than_expected_is_no_work() -> None:
    """A caller goes on at once, and its next call must find the trainer idle."""
    bench = await two()
    first = bench.start("a", 5000)  # it is expected to take five seconds, of which none pass
    await settle()
    assert bench.pool.trainers["training"].work == pytest.approx(5.0, rel=0.01)
    works: list[float] = []
    first.add_done_callback(lambda _: works.append(bench.pool.trainers["training"].work))
    await bench.finish(first)
    assert works == [0.0]


async def test_a_policy_with_another_call_does_not_move() -> None:
    bench = await two()
    first, second = bench.start("c", 500), bench.start("c", 20)
    await settle()
    await bench.devices["training-2"].finish_one()
    await bench.finish(first, second)
    assert bench.devices["training"].calls == ["c", "c"] and bench.pool.moved == 0


async def test_where_the_other_refuses_a_state_it_stays() -> None:
    bench = await two()
    bench.devices["training-2"].error = AdapterError("It is of another base.")
    calls = [bench.start("a", 500), bench.start("c", 20)]
    await settle()
    await bench.finish(*calls)
    assert bench.devices["training"].calls == ["a", "c"]
    (said,) = bench.said
    assert said == ("The state of policy c could not move from training to training-2: It is of another base.")


@pytest.mark.parametrize("kind", [AdapterError, CallFailed, ValueError])
async def test_whatever_a_move_fails_of_the_call_goes_on(kind: type[Exception]) -> None:
    bench = await two()
    bench.devices["training-2"].error = kind("It has no memory for it")
    calls = [bench.start("a", 500)]
    calls.append(bench.start("c", 20))
    await settle()
    async with asyncio.timeout(10):
        await bench.finish(*calls)
    assert calls[-1].result().tokens == 20 and bench.homes()["c"] == "training"
    assert bench.said == ["The state of policy c could not move from training to training-2: It has no memory for it"]


async def test_a_state_that_cannot_be_had_is_an_error_of_its_call() -> None:
    bench = await two()
    calls = [bench.start("a", 500)]
    bench.devices["training"].error = ValueError("It was said so.")
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
    for _ in range(4):
        await settle()
    await closing
    if opening:
        await opening
    await settle()
    assert sum("c" in device.states for device in bench.devices.values()) == again
    assert all(device.states.get("c", 0) == 0 for device in bench.devices.values()), "what was opened since is whole"
    await bench.finish(busy)


async def test_a_trainer_that_dies_takes_its_own_policies_alone() -> None:
    bench = await two(moves=False)
    calls = {policy: bench.start(policy) for policy in "abcd"}
    await settle()
    bench.devices["training"].die()
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


async def test_the_next_trainer_of_that_name_serves_again() -> None:
    bench = await two()
    bench.pool.lose("training")
    bench.devices["training"] = Device("training")
    bench.pool.take_in(bench.shared(bench.devices["training"]))
    await bench.open("a", "c")
    assert bench.homes()["a"] == bench.homes()["c"] == "training"
    call = bench.start("a")
    await settle()
    await bench.finish(call)


async def test_the_last_trainer_dies_as_the_only_one_does() -> None:
    bench = Bench(count=1)
    await bench.open("a")
    call = bench.start("a")
    await settle()
    bench.devices["training"].die()
    with pytest.raises(WorkerDied) as raised:
        await call
    assert not isinstance(raised.value, StateLost), "all workers begin anew"


async def test_when_all_die_at_once_nobody_waits_for_the_others() -> None:
    bench = await two(moves=False)
    calls = [bench.start(policy) for policy in "ab"]
    await settle()
    for device in bench.devices.values():
        device.die()
    await settle()
    bench.pool.end()
    for call in calls:
        with pytest.raises(WorkerDied) as raised:
            await asyncio.wait_for(call, 5)
        assert not isinstance(raised.value, StateLost)


async def test_what_moves_while_its_trainer_dies_is_lost_alone() -> None:
    bench = await two()
    calls = [bench.start("b", 10), bench.start("a", 500)]
    await settle()
    bench.devices["training"].dead = True
    moving = bench.start("c", 20)
    await settle()
    bench.devices["training"].die()
    bench.pool.lose("training")
    for call in (moving, calls[1]):
        with pytest.raises(StateLost):
            await call
    await bench.finish(calls[0])


async def test_shares_are_of_all_trainers_together() -> None:
    """A tenant that one trainer served much waits at the other."""
    bench = await two(moves=False)
    ann, bob = (TaskTrainer(bench.pool, Payer(name, n), alone=False) for n, name in enumerate(("ann", "bob"), 1))
    first = asyncio.ensure_future(ann.accumulate("a", (group(900),)))
    await settle()
    await bench.finish(first)
    held = asyncio.ensure_future(bob.accumulate("b", (group(1),)))
    await settle()
    waiting = [asyncio.ensure_future(task.accumulate(name, (group(1),))) for task, name in ((ann, "b"), (bob, "d"))]
    await settle()
    await bench.finish(held, *waiting)
    assert bench.devices["training-2"].calls == ["b", "d", "b"]
    assert {standing.tenant for standing in bench.pool.standings()} == set()
