"""Carries out *extend*: a task that waits, runs or is done gets more steps, and goes on from its last commit.

Refused where the result would not be the same run made longer: where the learning rate has begun to fall, or where the
task ended for another reason than its number of steps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from ..errors import AdapterError, ConfigError
from ..run import deciding, reached, stalled
from ..spec import TaskSpec, parse
from ..store import Store
from ..submission import next_state


async def extend(store: Store, task: int, steps: object, end_run: Callable[[int], Awaitable[None]]) -> None:
    """Give a task ``steps`` steps in total; carrying it out twice changes nothing.

    ``end_run`` stops the task at its last commit, if it runs: a longer run starts like every other. Raises
    ``ConfigError`` or ``AdapterError`` where that cannot be done, and then changes nothing.
    """
    before = store.tasks.spec(task)
    if before.kind == "eval":
        raise ConfigError("It is an evaluation, which makes no steps.", "`marlaas eval` measures further versions.")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < before.steps:
        raise ConfigError(f"It has {before.steps} steps and can only be given more.")
    if steps == before.steps:
        return
    _check(store, task, before, steps)
    await end_run(task)
    state = _check(store, task, before, steps)
    store.tasks.extend(task, steps, state)
    more = steps - before.steps
    store.telemetry.event("task", f"The task has {more:,} more steps, {steps:,} all told; it is {state}.", task)


def _check(store: Store, task: int, before: TaskSpec, steps: int) -> str:
    """The state that the task will have; raises ``ConfigError`` or ``AdapterError`` where it cannot be extended."""
    state = store.tasks.state(task)
    after = next_state("extend", state)
    parse(replace(before, steps=steps).to_json(), f"task {task}")  # the bounds of task files hold here, too
    if store.tasks.base(task) not in ("", store.fingerprint):
        raise ConfigError("It belongs to another base than the one that this home has.")
    made = store.tasks.steps_made(task)
    if made and before.train.schedule != "constant":
        raise ConfigError(
            f"Its learning rate falls ({before.train.schedule}) towards 0 at step {before.steps}; with more steps it"
            " would rise again.",
            'Only tasks with `schedule = "constant"` under [train] can be extended once they have begun.',
        )
    if state == "done":
        _check_ended(store, task, before, made)
    return after


def _check_ended(store: Store, task: int, spec: TaskSpec, made: int) -> None:
    """A done task can go on if one of its policies ended by its number of steps, and all of its adapters are there."""
    if made < spec.steps:
        raise ConfigError(
            f"It was done at step {made} of {spec.steps}, before its last: more steps would change nothing.",
            store.tasks.reason(task),
        )
    newest = {version.policy: version.number for version in store.versions.on_disk(task)}
    standing = store.versions.standing(task)
    for policy, (_, step) in standing.items():
        if newest.get(policy, -1) < step:
            raise AdapterError("Its adapter is not on the disk any more: there is nothing to go on from.")
    ended = [store.evaluations.of(deciding(spec)).scores(policy) for policy in standing]
    if all(reached(scores, spec.eval) or stalled(scores, spec.eval) for scores in ended):
        why = "has reached its target" if reached(ended[0], spec.eval) else "has not risen for as long as it may"
        raise ConfigError(f"Its held-out score {why}: it would end at once.")
