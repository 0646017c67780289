"""32 tasks through the real engine, at once and one after another: a stage flows in, rows flow out.

Both in one engine that is warm, with the placement that it chooses itself. The tasks ask a base of random weights, and
are paid by the letters of its replies, so that every group has something to train on.
"""

from __future__ import annotations

from dataclasses import replace

from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec

from ..machinery.fleet import fleet
from ..report.figures import Row, Series
from .card_stage import Stage

PLUGIN = "babble"


def tasks(count: int, staleness: int | None = None) -> tuple[TaskSpec, ...]:
    """Two steps each, of 4 groups of 8; of the usual staleness where none is given."""
    train = TrainSpec(groups_per_step=4, group_size=8, learning_rate=5e-4)
    if staleness is not None:
        train = replace(train, max_staleness=staleness)
    return tuple(
        TaskSpec(
            f"tenant-{number % 4}",
            f"task-{number}",
            PLUGIN,
            steps=2,
            train=replace(train, seed=number),
            sampling=SamplingSpec(max_tokens=64, max_episode_tokens=256),
            eval=EvalSpec(every=0, prompts=1),
        )
        for number in range(count)
    )


def end_to_end(stage: Stage, count: int) -> tuple[list[Row], str]:
    """Seconds of both arms, and a remark where time did not allow for all tasks one after another."""
    device = "all" if stage.gpu else "none"
    settings = f'base = "{stage.base.path}"\n[resources]\ngpus = "{device}"\n'
    with fleet([PLUGIN], settings) as home:
        together = home.run(tasks(count)).makespan
        alone: list[float] = []
        for task in tasks(count, staleness=0):
            if alone and stage.clock.left < 2 * max(alone):
                break
            alone.append(home.run([task]).makespan)
    whole = sum(alone) * count / len(alone)
    some = f"{len(alone)} of the {count} tasks ran one after another; their time is scaled."
    row = Row(f"{count} tasks, all at once", "s", Series((together,)), Series((whole,)), "one after another")
    return [row], some if len(alone) < count else ""
