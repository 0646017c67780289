"""Suites and the split test: measured under their names, and never a reason for anything, unless one suite decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.errors import ConfigError
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import DataSpec, EvalSpec, SuiteSpec, TaskSpec, parse
from marlaas.engine.train.evaluation import on_suite

from ...queue.scheduler.world import World
from ..test_learning import SPEC, check_history

FAR = SuiteSpec("far", "products", {"digits": 3}, prompts=2, every=4)
LONG = replace(SPEC, steps=8, eval=EvalSpec(every=2, prompts=3, suite=(FAR,)))


def steps(world: World, suite: str = "", split: str = "eval") -> list[int]:
    """The versions that were measured, in order."""
    rows = world.query(f"SELECT step FROM evals WHERE suite = '{suite}' AND split = '{split}' ORDER BY id")
    return [row["step"] for row in rows]


def labelled(world: World) -> dict[str, int]:
    return {row["label"]: row["number"] for row in world.query("SELECT label, number FROM versions WHERE label != ''")}


async def test_a_suite_is_measured_beside_the_task(tmp_path: Path) -> None:
    world = World(tmp_path, LONG)
    played = set()

    def score(spec: EpisodeSpec) -> None:
        played.add((spec.split, tuple(spec.config.items())))

    world.environments.score = score
    assert await world.go() == Ending("done")
    check_history(world)
    assert steps(world, "far") == [0, 4, 8] and steps(world)[0] == 0 and steps(world)[-1] == 8
    assert played == {("train", ()), ("eval", ()), ("eval", (("digits", 3),))}, "with its own configuration"
    groups = world.query("SELECT suite, step, count(*) AS n FROM groups WHERE split = 'eval' GROUP BY suite, step")
    assert {row["suite"]: row["n"] for row in groups} == {"": 3, "far": 2}
    assert not list(world.home.adapters.rglob("blank-*"))


async def test_a_suite_never_chooses_unless_it_decides(tmp_path: Path) -> None:
    for decides, best in ((False, 2), (True, 4)):
        suite, train = replace(FAR, decides=decides), replace(LONG.train, deterministic=True)  # leaves no version out
        spec = replace(LONG, train=train, eval=EvalSpec(every=2, prompts=3, suite=(suite,)))
        world = World(tmp_path / str(decides), spec)
        versions = world.store.versions

        def score(spec: EpisodeSpec, world: World = world) -> float | None:
            if spec.split == "train":
                return None
            suite = "far" if spec.config else ""
            measured = world.query(f"SELECT count(*) AS n FROM evals WHERE suite = '{suite}'")
            # of its own scores the second is the best (version 2), of the suite's the second, too (version 4)
            return 1.0 if measured[0]["n"] == 1 else 0.5

        world.environments.score = score
        assert await world.go() == Ending("done")
        assert versions.policy(1, "policy", {}) == 1
        assert labelled(world)["best"] == best, decides


@pytest.mark.parametrize("decides", [False, True])
async def test_a_target_is_that_of_who_decides(tmp_path: Path, decides: bool) -> None:
    suite = replace(FAR, decides=decides, every=2)
    world = World(tmp_path, replace(LONG, steps=20, eval=EvalSpec(every=2, prompts=3, target=0.9, suite=(suite,))))
    world.environments.score = lambda spec: None if spec.split == "train" else float(bool(spec.config))
    ending = await world.go()
    (made,) = world.query("SELECT max(number) AS n FROM steps")
    assert ending.state == "done" and (made["n"] < 20) == decides
    assert ("Target 0.9 was not reached" in ending.reason.words) == (not decides)


async def test_the_split_test_is_measured_once_at_the_end(tmp_path: Path) -> None:
    # a deterministic task leaves no evaluation out where steps are quick
    train, measured = replace(SPEC.train, deterministic=True), EvalSpec(every=2, prompts=3, test_prompts=4)
    world = World(tmp_path, replace(SPEC, steps=8, train=train, eval=measured))
    when = []

    def score(spec: EpisodeSpec) -> float | None:
        if spec.split == "test":
            when.append(world.query("SELECT max(number) AS n FROM steps")[0]["n"])
            return 1.0
        return None if spec.split == "train" else 0.5

    world.environments.score = score
    assert await world.go() == Ending("done")
    assert set(when) == {8}, "after the last step"
    assert steps(world, split="test") == [2, 8], "the best is the first of equals"
    assert labelled(world) == {"best": 2, "last": 8}
    world.restart()
    before = len(when)
    assert await world.go() == Ending("done") and len(when) == before, "what is stored is not measured again"


async def test_test_prompts_are_kept_out_of_training(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, eval=EvalSpec(every=0, prompts=3, test_prompts=3)))
    world.environments.ask_for = meets(world)  # type: ignore[method-assign]
    assert await world.go() == Ending("done")
    instances = {row["instance"] for row in world.query("SELECT instance FROM groups WHERE split = 'train'")}
    assert instances and not instances & {4, 5}, "training drew others instead of those that are tested"


def meets(world: World):  # type: ignore[no-untyped-def]
    """Training's instances 4 and 5 have the prompts of the first two of the split test."""
    plain = world.environments.ask_for

    def ask_for(spec: EpisodeSpec, turn: int, agent: str):  # type: ignore[no-untyped-def]
        if spec.split == "train" and spec.index in (4, 5):
            spec = replace(spec, split="test", index=spec.index - 4)
        return plain(spec, turn, agent)

    return ask_for


async def test_a_split_without_instances_is_told_before_training(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, eval=EvalSpec(every=0, prompts=3, test_prompts=3)))
    plain = world.environments.ask_for

    def same(spec: EpisodeSpec, turn: int, agent: str):  # type: ignore[no-untyped-def]
        return plain(replace(spec, split="eval") if spec.split == "test" else spec, turn, agent)

    world.environments.ask_for = same  # type: ignore[method-assign]
    ending = await world.go()
    assert ending.state == "failed" and "no instances for the split 'test'" in ending.reason.words
    assert not world.query("SELECT 1 FROM steps")


@pytest.mark.parametrize("where", ["far", "test"])
async def test_training_goes_on_where_a_suite_fails(tmp_path: Path, where: str) -> None:
    world = World(tmp_path, replace(LONG, eval=replace(LONG.eval, test_prompts=2)))
    world.environments.failing = lambda spec: (
        spec.split == "test" if where == "test" else spec.split == "eval" and bool(spec.config)
    )
    assert await world.go() == Ending("done")
    rows = world.query("SELECT suite, split, score FROM evals")
    assert {row["score"] is None for row in rows if where in (row["suite"], row["split"])} == {True}
    assert all(row["score"] is not None for row in rows if where not in (row["suite"], row["split"]))
    said = [row["message"] for row in world.query("SELECT message FROM events WHERE kind = 'evaluation'")]
    assert any("Nothing could be measured on" in message for message in said)


def refused(**measure: object) -> str:
    table = {"tenant": "t", "name": "n", "environment": "e", "eval": measure}
    with pytest.raises(ConfigError) as error:
        parse(table, "the task")
    return str(error.value)


def test_rows_that_a_task_names_are_those_of_its_own_environment() -> None:
    task = replace(LONG, data=DataSpec(path="rows.jsonl"))
    assert on_suite(task, FAR).data == DataSpec()
    assert on_suite(task, replace(FAR, environment=task.environment)).data == task.data
    own = DataSpec(path="others.jsonl")
    for name in ("products", task.environment):
        assert on_suite(task, replace(FAR, environment=name, data=own)).data == own


def test_suites_of_a_task_file() -> None:
    one = {"name": "far", "environment": "products", "config": {"digits": 3}, "prompts": 2, "every": 4}
    table = {"tenant": "t", "name": "n", "environment": "e", "eval": {"suite": [one, {**one, "name": "near"}]}}
    spec = parse(table, "the task")
    assert spec.eval.suite == (FAR, replace(FAR, name="near"))
    assert parse(spec.to_json(), "again") == spec
    assert "2 suites are called 'far'" in refused(suite=[one, one])
    assert "cannot be called 'test'" in refused(suite=[{**one, "name": "test"}])
    both = [{**one, "decides": True}, {**one, "name": "near", "decides": True}]
    assert "far and near both decide" in refused(suite=both)
    assert "eval.suite[0].promts" in refused(suite=[{**one, "promts": 3}])
    assert "list of tables" in refused(suite="far")
    assert "samples of a prompt" in refused(suite=[{**one, "samples": 4}])
    assert "'eval.suite[1].data.limit' is set" in refused(suite=[one, {**one, "name": "near", "data": {"limit": 4}}])
    assert "split" in refused(split="test")


def test_an_evaluation_of_a_task_file() -> None:
    table = {"tenant": "t", "name": "n", "environment": "e", "kind": "eval", "versions": ["1@best", "base"]}
    spec = parse(table, "the task")
    assert isinstance(spec, TaskSpec) and spec.steps == 2 and parse(spec.to_json(), "again") == spec
    for wrong, sentence in (
        ({"versions": []}, "'versions' is missing"),
        ({"steps": 7}, "an evaluation makes none"),
        ({"train": {"learning_rate": 0.1}}, "[train] is about training"),
        ({"keep": {"every": 3}}, "[keep] is about training"),
        ({"eval": {"target": 0.5}}, "'eval.target' is about training"),
        ({"eval": {"every": 3}}, "'eval.every' is about training"),
        ({"versions": ["base", "base"]}, "2 times"),
        ({"kind": "train"}, "'kind' is \"train\""),
        ({"kind": "evaluate"}, "evaluate"),
    ):
        with pytest.raises(ConfigError) as error:
            parse({**table, **wrong}, "the task")
        assert sentence in str(error.value), wrong
