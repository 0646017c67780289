"""Held-out scores in whole runs: failures, few prompts, suites, the split test, tasks that only measure, series."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec
from marlaas.engine.errors import ConfigError
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.queue.submission.references import find_starts
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import DataSpec, EvalSpec, SuiteSpec, TaskSpec, parse
from marlaas.engine.store.queries.episodes import recorded_groups
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import submit
from marlaas.engine.train.evaluation import MOST_OVERLOADED, TOO_OFTEN, on_suite
from marlaas.engine.train.groups import RUNS
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Answer

from ...seldom import seldom
from ..queue.scheduler.world import World
from .test_learning import SPEC, check_history

TOO_LONG = "it took longer than 60 s"
LATE = EpisodeOutcome("timeout", failure=Failure(TOO_LONG))


def world_of(root: Path, measure: EvalSpec, steps: int = 6, seed: int = 0) -> World:
    """A world whose training rewards differ within each group."""
    world = World(root, replace(SPEC, steps=steps, eval=measure), seed)
    world.environments.score = lambda spec: float(spec.member) if spec.split == "train" else 0.5
    return world


async def ends(world: World) -> Ending:
    return await asyncio.wait_for(world.go(), 60)


def log(world: World) -> list[str]:
    return [row["message"] for row in world.query("SELECT message FROM events WHERE kind = 'evaluation' ORDER BY id")]


async def test_one_success_reaches_no_target_and_prunes_nothing(tmp_path: Path) -> None:
    world = world_of(tmp_path, EvalSpec(every=1, prompts=16, target=0.9), steps=6)
    world.spec = replace(world.spec, train=replace(SPEC.train, deterministic=True, max_staleness=0))
    scores = {1: 0.6, 2: 0.7, 3: 0.7}

    def version() -> int:
        return int(world.query("SELECT coalesce(max(number), 0) AS n FROM steps")[0]["n"])

    def late(spec: EpisodeSpec) -> bool:
        return spec.split == "eval" and version() > 3 and spec.index > 0

    world.environments.ended = lambda spec: LATE if late(spec) else None
    world.environments.score = lambda spec: (
        float(spec.member) if spec.split == "train" else scores.get(version(), 1.0 if version() else 0.1)
    )
    ending = await ends(world)
    assert ending.reason.words == "Target 0.9 was not reached; best was 0.7 at step 2."
    assert world.query("SELECT max(number) AS n FROM steps") == [{"n": 6}]
    rows = {row["step"]: row for row in world.query("SELECT * FROM evals")}
    assert sorted(rows) == list(range(7))
    for step in range(4, 7):
        assert (rows[step]["score"], rows[step]["failures"], rows[step]["prompts"]) == (None, 15, 1)
    kept = world.query("SELECT number FROM versions WHERE label LIKE 'best%' AND state = 'committed'")
    assert kept == [{"number": 2}], "the real best is on the disk, the first of equals"
    assert f"No held-out score at step 6: 15 of 16 episodes failed. The first: {TOO_LONG}." in log(world)


async def test_what_failed_is_played_again_and_then_counts(tmp_path: Path) -> None:
    """Half of the prompts fail in all tries of the first go, and in none of the second."""
    world = world_of(tmp_path, EvalSpec(every=0, prompts=16), steps=1)
    tries = Counter[int]()

    def failing(spec: EpisodeSpec) -> bool:
        tries[spec.index] += spec.split == "eval"
        return spec.split == "eval" and spec.index % 2 == 1 and tries[spec.index] <= RUNS

    world.environments.failing = failing
    assert await ends(world) == Ending("done")
    for row in world.query("SELECT score, n, failures FROM evals"):
        assert row == {"score": 0.5, "n": 16, "failures": 0}


@pytest.mark.parametrize("skipped", [range(15)])
async def test_skipped_draws_are_no_failures(tmp_path: Path, skipped: range) -> None:
    """Skipped before the policy said anything: no reply is chosen by it."""
    world = world_of(tmp_path, EvalSpec(every=0, prompts=16), steps=1)

    def ended(spec: EpisodeSpec) -> EpisodeOutcome | None:
        return EpisodeOutcome("skip") if spec.split == "eval" and spec.index in skipped else None

    world.environments.ended = ended
    assert await ends(world) == Ending("done")
    left = 16 - len(skipped)
    for row in world.query("SELECT score, n, prompts, failures, floor FROM evals"):
        assert {**row, "floor": 0.0} == {"score": 0.5, "n": left, "prompts": left, "failures": 0, "floor": 0.0}
        assert row["floor"] is not None, "nor do they cost the baseline"


async def test_the_load_of_the_machine_uses_up_no_try(tmp_path: Path) -> None:
    world = world_of(tmp_path, EvalSpec(every=0, prompts=4), steps=1)
    tries = Counter[int]()

    def ended(spec: EpisodeSpec) -> EpisodeOutcome | None:
        if spec.split == "train" or tries[spec.index] == MOST_OVERLOADED - 1:
            return None
        tries[spec.index] += 1
        return replace(LATE, overloaded=True)

    world.environments.ended = ended
    assert await ends(world) == Ending("done")
    assert [row["score"] for row in world.query("SELECT score FROM evals")] == [0.5, 0.5]
    assert {row["failures"] for row in world.query("SELECT failures FROM evals")} == {0}


async def test_slow_evaluations_do_not_pile_up(tmp_path: Path) -> None:
    """Each lasts for four steps of training, however fast the machine makes them."""
    world = world_of(tmp_path, EvalSpec(every=1, prompts=3), steps=40)
    play = world.environments.play

    def step() -> int:
        return int(world.query("SELECT coalesce(max(number), 0) AS n FROM steps")[0]["n"])

    async def lasting(lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        over = min(40, step() + 4) if spec.split == "eval" else 0
        while over and step() < over:
            await asyncio.sleep(0)
        return await play(lease, spec, answer, counts)

    world.environments.play = lasting  # type: ignore[method-assign]
    assert await ends(world) == Ending("done")
    steps = [row["step"] for row in world.query("SELECT step FROM evals ORDER BY id")]
    assert steps[0] == 0 and steps[-1] == 40 and len(steps) <= 12, "what waited was left out, the last one never"
    assert steps == sorted(steps), "the newest wins"
    assert log(world) == [TOO_OFTEN]
    check_history(world)


EVAL = TaskSpec(
    "lab",
    "measure",
    "sums",
    steps=3,
    kind="eval",
    versions=("1@best", "1@0", "base"),
    sampling=SPEC.sampling,
    eval=EvalSpec(prompts=3),
)

GIVEN = replace(SPEC, keep=replace(SPEC.keep, every=1))


async def trained(root: Path) -> World:
    """A world whose only task was trained."""
    world = World(root, GIVEN)
    assert await world.go() == Ending("done")
    return world


def begin(world: World, spec: TaskSpec) -> None:
    """Submit another task, which ``go`` runs from then on."""
    with Reader(world.home.database) as reader:
        (linked,) = find_starts([submission(spec)], reader, "tiny")
    (world.task,) = submit(world.home.database, [linked])
    world.spec = parse(spec.to_json(), "the task")


def scores(world: World) -> dict[str, tuple[int, int]]:
    """Version number and episodes of each measured version of the task, by its words."""
    rows = world.query(
        "SELECT p.name, e.step, e.n FROM evals e JOIN policies p ON p.id = e.policy"
        f" WHERE p.task = {world.task} ORDER BY e.id"
    )
    return {row["name"]: (row["step"], row["n"]) for row in rows}


async def test_versions_and_the_base_are_measured(tmp_path: Path) -> None:
    world = await trained(tmp_path)
    (before,) = world.query("SELECT (SELECT count(*) FROM steps) AS steps, (SELECT count(*) FROM versions) AS versions")
    begin(world, EVAL)
    assert await world.go() == Ending("done")
    (best,) = world.query("SELECT v.number FROM borrowed b JOIN versions v ON v.id = b.version WHERE words = '1@best'")
    assert scores(world) == {"1@best": (best["number"], 3), "1@0": (0, 3), "base": (0, 3)}
    (after,) = world.query("SELECT (SELECT count(*) FROM steps) AS steps, (SELECT count(*) FROM versions) AS versions")
    assert before == after, "nothing was trained"
    assert not list(world.home.adapters.glob("task-2/*")), "what was written to be served is gone"
    assert not [name for name, version in world.workers.sampler.versions.items() if not version.retired]
    with Reader(world.home.database) as reader:
        row = reader.task(2)
    assert row is not None and (row.step, row.steps) == (3, 3)


async def test_all_versions_see_the_same_prompts_with_the_same_noise(tmp_path: Path) -> None:
    world = await trained(tmp_path)
    seeds: dict[str, set[int]] = {}
    generate = world.workers.sampler.generate

    async def seen(request):  # type: ignore[no-untyped-def]
        seeds.setdefault(request.version, set()).add(request.seed)
        return await generate(request)

    world.workers.sampler.generate = seen  # type: ignore[assignment,method-assign]
    begin(world, replace(EVAL, eval=EvalSpec(prompts=3, temperature=1.0)))
    assert await world.go() == Ending("done")
    assert len(seeds) == 3 and len({frozenset(one) for one in seeds.values()}) == 1
    rows = world.query("SELECT policy, instance FROM groups WHERE split = 'eval' AND policy > 1")
    versions = {row["policy"] for row in rows}
    assert sorted((row["policy"], row["instance"]) for row in rows) == [
        (p, i) for p in sorted(versions) for i in range(3)
    ]


async def test_a_version_may_play_against_itself(tmp_path: Path) -> None:
    world = await trained(tmp_path)
    begin(
        world, replace(EVAL, versions=("base", "1@best"), steps=2, eval=EvalSpec(prompts=2, agents={"second": "base"}))
    )
    world.environments.agents = world.environments.declared = ("first", "second")
    assert await world.go() == Ending("done")
    assert list(scores(world)) == ["base", "1@best"]
    said = world.query(
        'SELECT DISTINCT agent, speaker FROM trajectories t JOIN groups g ON g.id = t."group" WHERE policy > 1'
    )
    assert {(row["agent"], row["speaker"]) for row in said} == {("first", ""), ("second", "base")}
    assert not [name for name, version in world.workers.sampler.versions.items() if not version.retired]


@pytest.mark.parametrize("samples", [3])
async def test_a_stored_prompt_is_not_played_again(tmp_path: Path, samples: int) -> None:
    measure = EvalSpec(prompts=12, samples=samples, temperature=1.0)
    # The version that both tasks begin with: which one is their best depends on the steps that were evaluated.
    spec = replace(EVAL, versions=("1@0",), steps=1, eval=measure)
    whole, cut = await trained(tmp_path / "whole"), await trained(tmp_path / "cut")
    begin(whole, spec)
    assert await whole.go() == Ending("done")

    begin(cut, spec)
    run = asyncio.ensure_future(cut.go())
    stored: set[int] = set()
    while len(stored) < 4:
        await asyncio.sleep(0)
        stored = {row["i"] for row in cut.query("SELECT instance AS i FROM groups WHERE policy > 1")}
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    cut.restart()
    stored = {row["i"] for row in cut.query("SELECT instance AS i FROM groups WHERE policy > 1")}
    assert len(stored) < 12 and not cut.query("SELECT 1 FROM evals WHERE policy > 1")
    assert await cut.go() == Ending("done")
    asked = [one.conversation.rpartition("/e")[2].partition(".")[0] for one in cut.workers.sampler.ledger]
    assert {int(index) for index in asked if index.isdigit()} == set(range(12)) - stored
    columns = "score, stderr, n, failures, prompts, samples, best_of, pass_at, floor, metrics, series"
    scores = [world.query(f"SELECT {columns} FROM evals WHERE policy > 1") for world in (whole, cut)]
    assert scores[0] == scores[1], "as if nothing had happened, to the last bit"


FAR = SuiteSpec("far", "products", {"digits": 3}, prompts=2, every=4)
WITH_SUITE = replace(SPEC, steps=8, eval=EvalSpec(every=2, prompts=3, suite=(FAR,)))


def steps(world: World, suite: str = "", split: str = "eval") -> list[int]:
    """The versions that were measured, in order."""
    rows = world.query(f"SELECT step FROM evals WHERE suite = '{suite}' AND split = '{split}' ORDER BY id")
    return [row["step"] for row in rows]


def labelled(world: World) -> dict[str, int]:
    return {row["label"]: row["number"] for row in world.query("SELECT label, number FROM versions WHERE label != ''")}


async def test_a_suite_is_measured_beside_the_task(tmp_path: Path) -> None:
    world = World(tmp_path, WITH_SUITE)
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
        suite, train = (
            replace(FAR, decides=decides),
            replace(WITH_SUITE.train, deterministic=True),
        )  # leaves no version out
        spec = replace(WITH_SUITE, train=train, eval=EvalSpec(every=2, prompts=3, suite=(suite,)))
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
    world = World(tmp_path, replace(WITH_SUITE, eval=replace(WITH_SUITE.eval, test_prompts=2)))
    world.environments.failing = lambda spec: (
        spec.split == "test" if where == "test" else spec.split == "eval" and bool(spec.config)
    )
    assert await world.go() == Ending("done")
    rows = world.query("SELECT suite, split, score FROM evals")
    assert {row["score"] is None for row in rows if where in (row["suite"], row["split"])} == {True}
    assert all(row["score"] is not None for row in rows if where not in (row["suite"], row["split"]))
    said = [row["message"] for row in world.query("SELECT message FROM events WHERE kind = 'evaluation'")]
    assert any("Nothing could be measured on" in message for message in said)


def test_rows_that_a_task_names_are_those_of_its_own_environment() -> None:
    task = replace(WITH_SUITE, data=DataSpec(path="rows.jsonl"))
    assert on_suite(task, FAR).data == DataSpec()
    assert on_suite(task, replace(FAR, environment=task.environment)).data == task.data
    own = DataSpec(path="others.jsonl")
    for name in ("products", task.environment):
        assert on_suite(task, replace(FAR, environment=name, data=own)).data == own


NEAR = {"name": "near", "environment": "products", "config": {"digits": 3}, "prompts": 2, "every": 4}
TABLE = {"tenant": "t", "name": "n", "environment": "e"}
MEASURE = {"kind": "eval", "versions": ["1@best", "base"]}


def test_suites_and_evaluations_of_a_task_file() -> None:
    spec = parse({**TABLE, "eval": {"suite": [{**NEAR, "name": "far"}, NEAR]}}, "the task")
    assert spec.eval.suite == (FAR, replace(FAR, name="near")) and parse(spec.to_json(), "again") == spec
    spec = parse(TABLE | MEASURE, "the task")
    assert spec.steps == 2 and parse(spec.to_json(), "again") == spec


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"eval": {"suite": [NEAR, NEAR]}}, "2 suites are called 'near'"),
        ({"eval": {"suite": [{**NEAR, "name": "test"}]}}, "cannot be called 'test'"),
        ({"eval": {"suite": [{**NEAR, "decides": True}, {**NEAR, "name": "far", "decides": True}]}}, "both decide"),
        ({"eval": {"suite": [{**NEAR, "promts": 3}]}}, "eval.suite[0].promts"),
        ({"eval": {"suite": "far"}}, "list of tables"),
        ({"eval": {"suite": [{**NEAR, "samples": 4}]}}, "samples of a prompt"),
        ({"eval": {"suite": [{**NEAR, "data": {"limit": 4}}]}}, "'eval.suite[0].data.limit' is set"),
        ({"eval": {"split": "test"}}, "split"),
        (MEASURE | {"versions": []}, "'versions' is missing"),
        (MEASURE | {"steps": 7}, "an evaluation makes none"),
        (MEASURE | {"train": {"learning_rate": 0.1}}, "[train] is about training"),
        (MEASURE | {"keep": {"every": 3}}, "[keep] is about training"),
        (MEASURE | {"eval": {"target": 0.5}}, "'eval.target' is about training"),
        (MEASURE | {"eval": {"every": 3}}, "'eval.every' is about training"),
        (MEASURE | {"versions": ["base", "base"]}, "2 times"),
        (MEASURE | {"kind": "train"}, "'kind' is \"train\""),
        (MEASURE | {"kind": "evaluate"}, "evaluate"),
    ],
)
def test_wrong_measures_of_a_task_file_are_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(TABLE | wrong, "the task")
    assert says in str(error.value)


LONG = replace(SPEC, steps=12, eval=EvalSpec(every=4, prompts=3))


def series(world: World) -> dict[str, list[int]]:
    """The steps that were measured, by environment version, in order."""
    found: dict[str, list[int]] = {}
    for row in world.query("SELECT environment_version, step FROM evals ORDER BY id"):
        found.setdefault(row["environment_version"], []).append(row["step"])
    return found


async def runs(world: World, edit: Callable[[int], str | None]) -> Ending:
    """Run a task whose environment is edited: ``edit`` is asked at every step, once."""
    running, seen = asyncio.ensure_future(world.go()), -1
    async with asyncio.timeout(30):
        while not running.done():
            (row,) = world.query("SELECT coalesce(max(number), 0) AS n FROM steps")
            if row["n"] > seen:
                seen = row["n"]
                world.environments.version = edit(seen) or world.environments.version
            await asyncio.sleep(0)
    return running.result()


async def test_a_switch_begins_with_untrained_and_current(tmp_path: Path) -> None:
    world = World(tmp_path, LONG)
    assert await runs(world, lambda step: "e2" if step == 5 else None) == Ending("done")
    check_history(world)
    found = series(world)
    assert list(found) == ["e1", "e2"] and found["e1"] == [0, 4]
    assert found["e2"][0] == 0 and 5 <= found["e2"][1] <= 7 and found["e2"][2:] == [8, 12]
    assert sorted(world.store.evaluations.scores(1)) == found["e2"], "the newest series is that of e2"


async def test_a_pruned_untrained_policy_scores_the_same(tmp_path: Path) -> None:
    world = World(tmp_path, LONG)
    await runs(world, lambda step: "e2" if step == 9 else None)
    (gone,) = world.query("SELECT state, checksum, id FROM versions WHERE number = 0")
    assert gone["state"] == "pruned"
    rows = world.query("SELECT score, version, n FROM evals WHERE step = 0 ORDER BY id")
    assert len(rows) == 2 and rows[0] == rows[1] == {"score": rows[0]["score"], "version": gone["id"], "n": 3}
    with Reader(world.home.database) as recordings:
        groups = recorded_groups(recordings, 1, "eval", 1000)
    untrained = [(group.environment_version, group.number) for group in groups if group.step == 0]
    assert untrained == [(version, number) for version in ("e1", "e2") for number in range(3)], "both can be replayed"
    folder = world.home.adapters
    assert not list(folder.rglob("blank-*")), "what was made for it is gone"
    assert not [name for name, version in world.workers.sampler.versions.items() if not version.retired]


async def test_many_edits_in_a_row_cost_one_series_at_a_time(tmp_path: Path) -> None:
    world = World(tmp_path, replace(LONG, steps=30, eval=EvalSpec(every=30, prompts=3)))
    assert await runs(world, lambda step: f"e{step}" if step % 2 else None) == Ending("done")
    check_history(world)
    found = series(world)
    assert all(steps[0] == 0 and len(steps) <= 3 for steps in found.values())
    evaluations = sum(len(steps) for steps in found.values())
    assert evaluations <= 2 * 16 + 2, "two for each version that training went on with, at most"
    assert list(found)[-1] == "e29", "the last version is measured on what serves at the end"
    measured = Counter(entry.conversation for entry in world.workers.sampler.ledger if "/e" in entry.conversation)
    assert max(measured.values()) <= len(found) + 1


async def test_an_edit_mended_while_measured_pauses_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, LONG)
    failures = iter(range(LONG.eval.prompts * RUNS))

    def failing(spec: EpisodeSpec) -> bool:
        if spec.split == "train" or world.environments.version == "e1" or next(failures, None) is None:
            return False
        world.environments.version = "e3"  # the author saves again while the rest of e2 fails
        return True

    world.environments.failing = failing
    assert await runs(world, lambda step: "e2" if step == 5 else None) == Ending("done")
    assert next(failures, None) is None, "nothing of e2 had a reward"
    assert list(series(world)) == ["e1", "e3"] and series(world)["e3"][-1] == 12


@pytest.mark.parametrize("turns", [120, seldom(240)])
async def test_a_series_that_was_cut_off_is_completed(tmp_path: Path, turns: int) -> None:
    world = World(tmp_path, LONG)

    async def kills() -> None:
        for _ in range(4):
            for _ in range(turns):
                await asyncio.sleep(0)
            world.kill_workers()

    killing = asyncio.ensure_future(kills())
    assert await runs(world, lambda step: "e2" if step == 2 else None) == Ending("done")
    await killing
    check_history(world)
    assert all(0 in steps for steps in series(world).values()) and series(world)["e2"][-1] == 12


async def test_what_is_held_out_follows_the_environment(tmp_path: Path) -> None:
    """The newer version's held-out prompts are kept out of training from its first group on."""
    world = World(tmp_path, LONG)
    environments: Any = world.environments
    ask = environments.ask_for

    def overlapping(spec: EpisodeSpec, turn: int, agent: str) -> Any:
        e2 = world.environments.version == "e2"
        shared = e2 and spec.index in range(20, 23)
        return ask(replace(spec, split="eval", index=spec.index % 20) if shared else spec, turn, agent)

    environments.ask_for = overlapping
    await runs(world, lambda step: "e2" if step == 2 else None)
    rows = world.query("SELECT instance FROM groups WHERE split = 'train' AND environment_version = 'e2'")
    assert rows and not {row["instance"] for row in rows} & {20, 21, 22}
    check_history(world)
