"""What the engine does for an episode: tasks of two lengths on real workers, in lockstep; what they differ in, counts.

The difference leaves out what a task's beginning and its end take, once. With eight tasks at once the same figures show
what grows with the number of tasks.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from marlaas.engine.fairness.line import Payer
from marlaas.engine.machine.services import Services
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.submissions import submit
from marlaas.engine.train.loop import TrainRun

from ..machinery.workers import Workers, workers
from .lockstep import LockstepLoop, attached
from .watching import Seen, frames, python_calls, rings, statements

TRAIN = TrainSpec(groups_per_step=4, group_size=4, max_staleness=1)
EPISODES = TRAIN.groups_per_step * TRAIN.group_size
SHORT, LONG = 2, 4
"""Steps of the tasks that are compared."""
TENANTS = 4
MOST = 8
"""Tasks at once."""
PLUGIN = "babble"
SEQUENCES, CONTEXT = 256, 256


def measure() -> dict[str, float]:
    """For an episode of one task, and of eight tasks at once, by name."""
    with (
        tempfile.TemporaryDirectory(prefix="marlaas-guard-") as folder,
        asyncio.Runner(loop_factory=LockstepLoop) as runner,
    ):
        return runner.run(_measure(Path(folder)))


async def _measure(folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LockstepLoop)
    with attached(loop):
        async with workers(folder / "home", [PLUGIN], ["torch"], SEQUENCES, CONTEXT) as made:
            await _counted(made, folder, 1, SHORT)  # what is done once in a process
            for tasks in (1, MOST):
                short, long = [(await _counted(made, folder, tasks, steps)).counts() for steps in (SHORT, LONG)]
                episodes = tasks * (LONG - SHORT) * EPISODES
                words = "one task" if tasks == 1 else f"{tasks} tasks at once"
                for name in short | long:
                    found[f"an episode, {words}: {name}"] = (long.get(name, 0) - short.get(name, 0)) / episodes
    return found


async def _counted(made: Workers, folder: Path, tasks: int, steps: int) -> Seen:
    """All that the engine does for this many tasks of this many steps."""
    loop, seen = asyncio.get_running_loop(), Seen()
    assert isinstance(loop, LockstepLoop)
    specs = [_task(number, steps) for number in range(tasks)]
    numbers = submit(made.home.database, [submission(spec) for spec in specs])
    services = replace(made.services, router=made.router())
    services.rollout.rendering.renderer._opened.clear()  # the runs before had the same prompts
    for trainer in services.trainers.trainers.values():
        trainer._tenants.clear()  # between two runs time is real: whether a tenant is late would vary
    with ExitStack() as stack:
        stack.enter_context(rings(seen))
        stack.enter_context(loop.lockstep())
        stack.enter_context(frames(seen, folder))
        stack.enter_context(statements(seen, made.services.store))
        stack.enter_context(python_calls(seen))
        await asyncio.gather(*(_trained(services, *pair) for pair in zip(numbers, specs, strict=True)))
    return seen


async def _trained(services: Services, task: int, spec: TaskSpec) -> None:
    own = services.of(Payer(spec.tenant, task), spec.train.deterministic)
    await TrainRun(own, task, spec, lambda learner: None).run()


def _task(number: int, steps: int) -> TaskSpec:
    return TaskSpec(
        f"tenant {number % TENANTS}",
        f"babble {number}",
        PLUGIN,
        steps=steps,
        train=TrainSpec(
            groups_per_step=TRAIN.groups_per_step,
            group_size=TRAIN.group_size,
            max_staleness=TRAIN.max_staleness,
            seed=number,
        ),
        sampling=SamplingSpec(max_tokens=8),
        eval=EvalSpec(every=0, prompts=1),
    )
