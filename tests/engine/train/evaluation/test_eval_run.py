"""A task of ``kind = "eval"``: measures any version, trains nothing, and goes on where it was killed."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.queue.submission.references import find_starts
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import EvalSpec, TaskSpec, parse
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import submit

from ...queue.scheduler.world import World
from ..test_learning import SPEC

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
        (linked,) = find_starts([submission(spec)], reader)
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


@pytest.mark.parametrize("turns", [20, 60, 100, 140])
async def test_what_is_stored_is_not_measured_again(tmp_path: Path, turns: int) -> None:
    world = await trained(tmp_path)
    begin(world, EVAL)
    for _ in range(4):
        run = asyncio.ensure_future(world.go())
        for _ in range(turns):
            await asyncio.sleep(0)
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run
        ids = {row["id"] for row in world.query("SELECT id FROM evals WHERE policy > 1")}
        world.restart()
        assert ids <= {row["id"] for row in world.query("SELECT id FROM evals")}
    kept = {row["id"] for row in world.query("SELECT id FROM evals WHERE policy > 1")}
    assert await world.go() == Ending("done")
    assert kept <= {row["id"] for row in world.query("SELECT id FROM evals")}, "no score was made twice"
    assert len(scores(world)) == 3


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


@pytest.mark.parametrize("samples", [1, 3])
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


async def test_versions_without_a_score_are_named(tmp_path: Path) -> None:
    world = await trained(tmp_path)
    begin(world, EVAL)
    world.environments.failing = lambda spec: spec.index == 0
    ending = await world.go()
    assert ending.state == "done" and "1@best, 1@0, base" in ending.reason.words
    assert {row["score"] for row in world.query("SELECT score FROM evals WHERE policy > 1")} == {None}


async def test_an_edit_meanwhile_changes_nothing(tmp_path: Path) -> None:
    world = await trained(tmp_path)
    begin(world, EVAL)

    def edits(spec: EpisodeSpec) -> None:
        world.environments.version = "e2"

    world.environments.score = edits
    assert await world.go() == Ending("done")
    assert {row["v"] for row in world.query("SELECT environment_version AS v FROM evals WHERE policy > 1")} == {"e1"}


async def test_a_version_that_was_deleted_is_named(tmp_path: Path) -> None:
    world = await trained(tmp_path)
    begin(world, EVAL)
    (best,) = world.query("SELECT v.path FROM borrowed b JOIN versions v ON v.id = b.version WHERE words = '1@best'")
    world.home.file(best["path"]).unlink()
    ending = await world.go()
    assert ending.state == "paused" and "was deleted" in ending.reason.words
