"""Evaluation series: scores compare on one code only; a switch to other code begins a new one, at a bounded cost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import EvalSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.train.groups import RUNS

from ..queue.scheduler.world import World
from .test_learning import SPEC, check_history

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
        groups = recordings.recorded_groups(1, "eval", 1000)
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


async def test_without_evaluations_a_switch_is_measured_last(tmp_path: Path) -> None:
    world = World(tmp_path, replace(LONG, eval=EvalSpec(every=0, prompts=3)))
    await runs(world, lambda step: "e2" if step == 3 else None)
    assert series(world) == {"e1": [0], "e2": [0, 12]}


async def test_an_edit_taken_back_goes_on_with_its_series(tmp_path: Path) -> None:
    world = World(tmp_path, LONG)
    await runs(world, lambda step: {3: "e2", 9: "e1"}.get(step))
    found = series(world)
    assert found["e1"].count(0) == 1 and found["e1"][-1] == 12
    assert sorted(world.store.evaluations.scores(1)) == sorted(set(found["e1"]))


async def test_an_edited_comment_begins_no_series(tmp_path: Path) -> None:
    """No new baseline, and the best version of before stays on the disk."""
    world = World(tmp_path, LONG)
    world.environments.code = lambda version: "the same code"
    world.environments.score = lambda spec: 0.5 if spec.split == "eval" else None
    await runs(world, lambda step: f"e{step}" if step in (2, 5, 7) else None)
    rows = world.query("SELECT step, series FROM evals ORDER BY id")
    assert [row["step"] for row in rows] == [0, 4, 8, 12] and len({row["series"] for row in rows}) == 1
    assert world.query("SELECT number FROM versions WHERE label LIKE 'best%' AND state = 'committed'") == [
        {"number": 4}
    ]


async def test_the_best_of_a_series_that_ended_stays(tmp_path: Path) -> None:
    world = World(tmp_path, replace(LONG, steps=16))
    world.environments.score = lambda spec: float(spec.member) if spec.split == "train" else None
    await runs(world, lambda step: "e2" if step == 5 else None)
    kept = {row["number"] for row in world.query("SELECT number FROM versions WHERE state = 'committed'")}
    labels = {
        row["number"]: row["label"] for row in world.query("SELECT number, label FROM versions WHERE label != ''")
    }
    bests: dict[str, tuple[int, float]] = {}
    for row in world.query("SELECT environment_version AS e, step, score FROM evals WHERE step > 0 ORDER BY step"):
        if row["e"] not in bests or row["score"] > bests[row["e"]][1]:
            bests[row["e"]] = (row["step"], row["score"])
    assert {step for step, _ in bests.values()} <= kept and "best" in labels[bests["e2"][0]]


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


async def test_target_and_patience_look_at_the_newest_series_alone(tmp_path: Path) -> None:
    spec = replace(LONG, steps=60, eval=EvalSpec(every=2, prompts=3, target=0.9, patience=4))
    world = World(tmp_path, spec)
    edited = {"e1": 0.8, "e2": 0.1}

    def score(spec: EpisodeSpec) -> float:
        return edited[world.environments.version] if spec.split == "eval" else float(spec.member)

    world.environments.score = score
    ending = await runs(world, lambda step: "e2" if step == 3 else None)
    assert ending.state == "done" and "best was 0.1 at step 0" in ending.reason.words, (
        "not the 0.8 of the series before"
    )


@pytest.mark.parametrize("turns", [120, 240, 400])
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


async def test_a_pinned_task_stays_and_keeps_its_series(tmp_path: Path) -> None:
    world = World(tmp_path, replace(LONG, environment_version="pin"))
    await runs(world, lambda step: "e2" if step == 3 else None)
    assert series(world) == {"e1": [0, 4, 8, 12]}
    assert {row["v"] for row in world.query("SELECT DISTINCT environment_version AS v FROM groups")} == {"e1"}


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
