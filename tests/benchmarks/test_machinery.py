"""What benchmarks run on: engines, a tool server, a pseudo-terminal, two samplers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gateway import compared
from benchmarks.machinery.fleet import fleet
from benchmarks.machinery.tool_server import tool_server
from benchmarks.many_tasks.concurrency import load
from benchmarks.plugins.tools import Calculator, tools
from benchmarks.terminal import filled, painted
from marlaas.engine.store.queries.reader import Reader
from marlaas.plugins import Episode
from marlaas.plugins.messages import Ask, Reply
from tools.random_base.make import make_base


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


@pytest.mark.processes
async def test_an_episode_calls_the_tool_with_what_the_model_said() -> None:
    sums: list[tuple[int, int]] = []

    async def reply(ask: Ask) -> Reply:
        a, b = (int(each) for each in ask.messages[-1].content.strip("=").split("+"))
        sums.append((a, b))
        return Reply(str(a + b) if len(sums) != 2 else "no & idea?", "stop", len(sums) - 1)

    with tool_server() as address:
        calculator = Calculator(address)
        said = ("5", "6", "", "a b&c=d")
        assert [await calculator.judge(2, 3, each, 0.0) for each in said] == [True, False, False, False]
        calculator.close()
        episode = Episode(reply, split="train", index=3, seed=1, member=0)
        reward = await tools(episode, mean=0.001, tool=address)
    turns = len(sums)
    assert reward == (turns - 1) / turns, "all but the second reply are right"


@pytest.mark.processes
def test_text_is_found_between_escapes() -> None:
    assert painted((sys.executable, "-c", "print('\\x1b[1mhel\\x1b[0mlo'); input()"), "hello") > 0


@pytest.mark.processes
def test_a_program_that_ends_is_no_quick_one() -> None:
    with pytest.raises(RuntimeError, match="oh dear"):
        painted((sys.executable, "-c", "print('oh dear')"), "hello")


def test_a_filled_home_reads_like_a_real_one(tmp_path: Path) -> None:
    home = filled(tmp_path / "home", 2, steps=3)
    with Reader(home.database) as reader:
        tasks = [(task.name, task.state, task.step) for task in reader.tasks()]
        assert tasks == [("task-01-sums", "running", 3), ("task-02-sums", "running", 3)]
        assert len(reader.evals(1)) == 1 and reader.steps(2)[-1].metrics["loss"]


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.slow
def test_both_sides_are_measured(tmp_path: Path) -> None:
    """It starts two samplers of all cores and a gateway, and changes when the benchmark does."""
    throughput, spent, first = compared(make_base(tmp_path / "base", rows=1500), "f32", 4, 1)
    for row in (throughput, spent, first):
        assert row.theirs is not None and len(row.ours.values) == len(row.theirs.values) == 1
        assert row.ours.middle > 0 and row.theirs.middle > 0
    assert throughput.higher_is_better and throughput.unit == "tokens/s"
