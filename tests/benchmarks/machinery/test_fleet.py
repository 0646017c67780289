"""Many tasks through the real engine: what is counted, and what is said when one cannot run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.machinery import wide_engine
from benchmarks.machinery.cores import all_cores
from benchmarks.machinery.fleet import fleet
from benchmarks.many_tasks.concurrency import load
from marlaas.engine.home.settings import Settings
from marlaas.engine.machine import plan
from marlaas.engine.machine.placement import place
from marlaas.engine.models.find import load_base


def test_the_wide_engine_gives_all_cores_to_both_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((place, "halves"), (plan, "with_trainers")):  # put back at the end
        monkeypatch.setitem(vars(module), name, vars(module)[name])
    wide_engine.both_on_all_cores()
    for cores in (all_cores(), tuple(range(16))):
        placement = plan.on_processor(load_base("tiny"), Settings(), 64 << 30, cores).placement
        assert placement.samplers[0].place.cores == placement.trainer.place.cores == cores
        assert placement.trainers == (placement.trainer,)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.torch
def test_tasks_run_are_counted_and_refused_in_a_sentence() -> None:
    """An engine of its own, for what changes when the benchmarks do."""
    tasks = [replace(task, environment_config={"mean": 0.01}) for task in load("concurrency").part(2, 1).tasks]
    with fleet(["tools"], "[engine]\ntasks = 1\n") as home:
        run = home.run(tasks)
        assert [len(task.steps) for task in run.tasks] == [1, 1]
        assert 0 < sum(run.turns().values()) == pytest.approx(run.makespan)
        assert {"rollout", "training", "engine", "env"} <= {stage for stage, spent in run.usage.spent.items() if spent}
        with pytest.raises(RuntimeError, match="'lost' of lab is blocked: tools has no parameter 'unknown'"):
            home.run([replace(tasks[0], tenant="lab", name="lost", environment_config={"unknown": 1})])


@pytest.mark.processes
def test_an_engine_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"The engine ended: .*nonsense"), fleet(settings="nonsense = 1\n"):
        pass
