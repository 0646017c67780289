"""What the benchmarks read off their runs, and that both sides of a comparison get the same work."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import PLUGINS, ROOT
from benchmarks.beside_trl import tables, workload as fixed
from benchmarks.beside_trl.runs import OURS, THEIRS, Case, Results, Run
from benchmarks.beside_trl.workload import LONG, SHORT
from benchmarks.machinery.cores import all_cores
from benchmarks.machinery.fleet import FleetRun, TaskRun
from benchmarks.machinery.meter import Usage
from benchmarks.many_tasks import concurrency, learned, quality, scaling
from benchmarks.many_tasks.concurrency import load
from benchmarks.many_tasks.quality import ENVIRONMENTS, SUMS
from benchmarks.plugins.real import grading
from benchmarks.plugins.sums.grading import reward
from benchmarks.real import runs
from benchmarks.report.figures import Row
from marlaas.engine.queue.submission import taskfile
from marlaas.engine.store.rows import EvalRow, StepRow, TaskRow
from marlaas.engine.trainer.protocol import PolicyConfig
from tests.loading import load as load_plugins
from tests.plugins.adapters.playing import Said, calls, played

USAGE = Usage(10.0, {"rollout": 6.0, "training": 3.0, "engine": 0.5, "env": 0.5}, {"rollout": 200.0}, 0.05)


def task(
    name: str, finished: float, tenant: str = "lab", scores: Sequence[float] = (0.25, 0.5), age: float = 1.0
) -> TaskRun:
    """A task of two steps, the last of which ends at ``finished``, with held-out scores every ten steps."""
    row = TaskRow(
        id=1, tenant=tenant, name=name, environment="tools", state="done", reason="", priority=0, step=2, steps=2,
        reward=None, score=None, best=None, floor=None, adapter_version="", staleness=None, tokens=0, seconds=0.0,
        created=100.0, started=100.0, finished=finished,
    )  # fmt: skip
    steps = tuple(StepRow(n, finished - 2 + n, 1.0, {"staleness": age, "tokens": 50.0}) for n in (1, 2))
    return TaskRun(
        row,
        steps,
        tuple(
            EvalRow(step=10 * n, environment_version="v", score=score, stderr=0.0, n=8, floor=None, metrics={})
            for n, score in enumerate(scores)
        ),
    )


def run(*tasks: TaskRun, usage: Usage = USAGE) -> FleetRun:
    return FleetRun(100.0, tasks, usage)


def arm(*seconds: float) -> list[FleetRun]:
    return [run(task("a", 100.0 + each), usage=replace(USAGE, wall=each)) for each in seconds]


def test_a_task_of_a_sequence_counts_from_the_last_ones_end() -> None:
    sequence = run(task("second", 109.0), task("first", 104.0))
    assert sequence.makespan == pytest.approx(9.0)
    assert sequence.turns() == {"first": pytest.approx(4.0), "second": pytest.approx(5.0)}


def test_either_idea_is_set_against_the_other() -> None:
    arms = {
        concurrency.STALE_TOGETHER: arm(5.0, 4.0),
        concurrency.LLAMA: arm(6.0, 8.0),
        concurrency.TOGETHER: arm(10.0, 8.0),
        concurrency.STALE_SEQUENCE: arm(50.0),
        concurrency.SEQUENCE: arm(100.0),
    }
    alone = {concurrency.DEFAULTS: 4.0, concurrency.LLAMA: 100.0}
    rows = list(concurrency.compared(load("concurrency"), arms, alone))
    what = "32 tasks, from submission to the end of the last"
    ratios = {
        (row.what.removeprefix(what), row.other): row.ratio.values for row in rows if row.ratio and what in row.what
    }
    assert ratios == {
        (", shipped defaults", concurrency.SEQUENCE): (20.0, 25.0),
        (f", {concurrency.TOGETHER}", concurrency.SEQUENCE): (10.0, 12.5),
        (f", {concurrency.STALE_SEQUENCE}", concurrency.SEQUENCE): (2.0,),
        (", shipped defaults", concurrency.TOGETHER): (2.0, 2.0),
        (", shipped defaults", concurrency.STALE_SEQUENCE): (10.0, 12.5),
        (f", {concurrency.LLAMA}", concurrency.STALE_TOGETHER): (5 / 6, 0.5),
    }
    named = {row.what.removesuffix(", shipped defaults"): row.ours.values for row in rows}
    assert named["time saved"] == pytest.approx((95.0, 96.0))
    least = max(4.0, USAGE.compute / len(all_cores()))
    assert named["makespan ÷ bound, processor time as used at once"] == pytest.approx((5 / least, 4 / least))
    busiest = max(USAGE.spent.values()) / least
    assert named["processor time of the busiest stage ÷ bound"] == pytest.approx((busiest,) * 2)
    with_llama = f"makespan ÷ bound, processor time as used at once, {concurrency.LLAMA}"
    assert named[with_llama] == pytest.approx((0.06, 0.08))


def test_steps_count_while_all_tasks_run() -> None:
    ends = [[1.0, 2.0, 3.0, 4.0, 5.0], [1.5, 2.5, 3.5, 4.5, 5.5]]
    assert scaling.steady_rate(ends) == pytest.approx(5 / 2.5), "after 2.5, when both have made two, until 5.0"
    apart = [[1.0, 2.0, 3.0], [11.0, 12.0, 13.0]]
    assert scaling.steady_rate(apart) == pytest.approx(5 / 12)


def test_an_interval_is_students() -> None:
    low, mean, high = learned.interval([1.0, 2.0, 3.0, 4.0, 5.0]).values
    assert mean == pytest.approx(3.0)
    assert high - mean == pytest.approx(mean - low) == pytest.approx(2.776 * (2.5**0.5) / 5**0.5)


def both(better: float) -> FleetRun:
    """Two seeds of each environment; the second learns ``better`` more than the first, in percent."""
    return run(
        *(
            task(f"{name}, seed {seed}", 105.0, name, (0.3, 0.4, 0.5 + place / 10 + seed * better / 100))
            for seed in (0, 1)
            for place, name in enumerate(ENVIRONMENTS)
        )
    )


def test_arms_are_compared_seed_by_seed() -> None:
    rows: dict[str, Row] = {row.what: row for row in quality.rows(both(4.0), both(2.0))}
    assert quality.ends(both(4.0), SUMS) == pytest.approx((50.0, 54.0))
    whole = rows["held-out score, mean of all tasks, at once"]
    assert whole.theirs is not None
    assert whole.ours.middle == pytest.approx(67.0) and whole.theirs.middle == pytest.approx(66.0)
    low, mean, high = rows["sums, at once − alone: mean and 95 % interval"].ours.values
    assert mean == pytest.approx(1.0) and high - mean == pytest.approx(12.706)  # of 0 and 2
    pooled = rows["all environments, at once − alone: mean and 95 % interval"].ours
    assert pooled.values[1] == pytest.approx(1.0)
    assert pooled.values[2] - pooled.values[0] < high - low, "eight pairs say more than two"
    assert rows["held-out score after 20 steps, guess, at once"].ours.values[1] == pytest.approx(62.0)
    assert rows["held-out score, untrained, guess"].ours.middle == pytest.approx(30.0)
    assert all(row.noise == 0.0 for what, row in rows.items() if " after " in what)


def timed(step: float, steps: int, rewards: float = 0.5, start: float = 5.0) -> Run:
    ends = [100.0 + start + step * number for number in range(steps)]
    return Run(100.0, ends, [rewards] * steps, [6.0] * steps, {"rollout": 0.5, "training": 1.0}, 0.1, 0.04)


def test_rows_pair_each_arm_with_trl() -> None:
    results = Results(Case(SHORT, (0, 1), 40, 10, 5, "3 ×"))
    for number in range(5):
        results.add(THEIRS, timed(0.2, 40, 0.4 + number / 100))
        for name in OURS:
            results.add(name, timed(0.05, 42, 0.43, start=3.0))
    rows = tables.rows([results], "TRL")
    steps = [row for row in rows if row.what.startswith("a step")]
    assert [row.what for row in steps] == [f"a step: prompts of 13 tokens, 2 cores, {arm}" for arm in OURS]
    assert all(row.ratio is not None and row.ratio.middle == pytest.approx(4.0) for row in steps)
    walls = [row for row in rows if row.what.startswith("start to step 40")]
    assert len(walls) == len(OURS) and walls[0].ours.middle == pytest.approx(3.0 + 39 * 0.05)
    assert sum(row.what.startswith("reward") for row in rows) == len(OURS) * len(tables.MARKS)


def test_rows_repeat_for_a_seed_and_hold_no_held_out_prompt(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        fixed.write_rows(LONG, 3, 7, tmp_path / folder)
    text = (tmp_path / "one" / "train.jsonl").read_text()
    assert text == (tmp_path / "two" / "train.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert len(rows) == 3 * LONG.groups and all(len(row["preamble"]) == LONG.preamble for row in rows)
    held_out = json.loads((tmp_path / "one" / "eval.jsonl").read_text())
    assert held_out["prompt"] not in {row["prompt"] for row in rows}


def test_both_sides_get_the_same_hyper_parameters(tmp_path: Path) -> None:
    from benchmarks.beside_trl.marlaas_side import task_file

    path = tmp_path / "task.toml"
    path.write_text(task_file(SHORT, 12, 3, 0))
    (submission,) = taskfile.load(path)
    told = submission.spec.to_json()
    assert told["train"]["groups_per_step"] * told["train"]["group_size"] == SHORT.episodes
    assert (told["policy"]["rank"], told["policy"]["alpha"]) == (fixed.RANK, fixed.ALPHA)
    assert (told["train"]["learning_rate"], told["train"]["clip_norm"]) == (fixed.LEARNING_RATE, fixed.CLIP_NORM)
    assert told["sampling"]["max_episode_tokens"] == SHORT.max_tokens, "the loss's denominator is TRL's"
    assert PolicyConfig().betas == fixed.BETAS


@pytest.mark.parametrize(
    ("reply", "graded", "worth"),
    [("5234", False, 1.0), ("5234 ", False, 0.0), ("5134", True, 0.75), ("52345", True, 0.8), ("", True, 0.0)],
)
def test_grading(reply: str, graded: bool, worth: float) -> None:
    assert reward(reply, "5234", graded) == worth


INSIDE = ("beside_trl/trl_grpo.py", "plugins/sums/grading.py", "plugins/real/grading.py")
"""What runs in TRL's environment, where marlaas is not installed."""


@pytest.mark.parametrize("name", INSIDE)
def test_what_runs_beside_trl_imports_nothing_of_marlaas(name: str) -> None:
    tree = ast.parse((ROOT / "benchmarks" / name).read_text(encoding="utf-8"))
    modules = [node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [module for module in modules if module.startswith(("marlaas", "benchmarks", "."))]


@pytest.mark.parametrize("name", runs.ENVIRONMENTS)
def test_held_out_rows_share_no_question(name: str) -> None:
    train, held_out = grading.rows(name, "train"), grading.rows(name, "eval")
    assert len(train) >= 90 and 50 <= len(held_out) <= 64
    prompts = [row["prompt"] for row in (*train, *held_out)]
    assert len(set(prompts)) == len(prompts)
    keys: dict[str, Callable[[dict[str, str]], object]] = {
        "number": lambda row: frozenset(word for word in row["prompt"].split() if word.strip("?").isdigit()),
        "facts": lambda row: json.loads(row["answer"])["name"],
        "format": lambda row: row["prompt"].split()[1],
    }
    key = keys.get(name, lambda row: row["answer"])
    assert not set(map(key, train)) & set(map(key, held_out))


@pytest.mark.parametrize(
    ("environment", "answer", "reply", "worth"),
    [
        ("capital", "Paris", "Paris", 1.0),
        ("capital", "Paris", " paris.\n", 1.0),
        ("capital", "Brasilia", "Brasília", 1.0),
        ("capital", "Paris", "The capital of France is Paris.", 0.4),
        ("capital", "Male", "Malena", 0.0),
        ("number", "19", "19", 1.0),
        ("number", "19", "7 + 12 = 19.", 0.3),
        ("number", "19", "192", 0.0),
        ("number", "19", "1.19", 0.0),
        ("facts", '{"name": "Ann", "age": 30}', '{"name": "Ann", "age": 30}', 1.0),
        ("facts", '{"name": "Ann", "age": 30}', '```json\n{"name": "Ann", "age": "30"}\n```', 1.0),
        ("facts", '{"name": "Ann", "age": 30}', '{"name": "Bob", "age": 30}', 0.6),
        ("facts", '{"name": "Ann", "age": 30}', "{}", 0.2),
        ("facts", '{"name": "Ann", "age": 30}', '["Ann", 30]', 0.0),
        ("facts", '{"name": "Ann", "age": 30}', "[" * 100_000, 0.0),
        ("format", "capitals", "BEES MAKE HONEY FROM FLOWERS.", 1.0),
        ("format", "capitals", "BEES MAKE honey FROM FLOWERS.", 0.0),
        ("format", "no commas", "Bees make honey and they dance.", 1.0),
        ("format", "no commas", "Bees, wasps and ants are insects.", 0.0),
        ("format", "no commas", "Bees.", 0.0),
        ("format", "sentences 2", "Bees make honey. They dance!", 1.0),
        ("format", "sentences 2", "Bees make 2.5 litres of honey.", 0.0),
        ("format", "sentences 2", "Bees make honey. They dance! And then", 0.0),
    ],
)
def test_rewards_by_hand(environment: str, answer: str, reply: str, worth: float) -> None:
    assert grading.reward(reply, answer, environment) == pytest.approx(worth)


@pytest.mark.parametrize("form", ["prompt", "base"])
async def test_a_tool_is_called_once_and_its_result_reported(form: str) -> None:
    environments = load_plugins(PLUGINS / "real")
    assert set(environments) == set(runs.ENVIRONMENTS)
    row = {"preamble": "", "prompt": "What is 47 times 6?", "answer": "47*6"}
    in_text = form == "prompt"
    right = "47*6" if in_text else calls("calc", expression="47*6")
    wrong = "47 * 7" if in_text else calls("calc", expression="47*7")
    scripts: list[tuple[list[Said], float]] = [
        ([right, "282"], 1.0),
        ([right, "The answer is 282"], 0.7),
        ([wrong, "329"], 0.3),
        (["I call 6 x 47 now."], 0.1 if in_text else 0.0),
        (["It is 282, not 47*7."], 0.0),
    ]
    for script, worth in scripts:
        reward, ep, model = await played(environments["tool"], script, row, config={"form": form})
        assert reward == pytest.approx(worth), (script, reward)
        assert len(model.asks) == len(script), ep


def test_task_files_are_valid_and_leave_defaults(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text(runs.compared("facts", 2, 12))
    (submission,) = taskfile.load(path)
    assert (
        submission.spec.to_json()["train"]["seed"],
        submission.spec.to_json()["sampling"]["max_episode_tokens"],
    ) == (2, 48)
    assert submission.spec.to_json()["train"]["learning_rate"] == runs.LEARNING_RATE
    path.write_text(runs.default("facts", 60))
    assert "learning_rate" not in path.read_text() and "max_tokens" not in path.read_text()
    (submission,) = taskfile.load(path)
    assert submission.spec.to_json()["steps"] == 60
