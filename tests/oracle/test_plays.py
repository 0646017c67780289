"""The checker on tasks of several policies: it finds nothing in a true home, and every lie about who spoke for whom."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.home.paths import Home
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import NamedPolicySpec
from tests.engine.queue.scheduler.world import World
from tests.engine.train.test_several_policies import SPEC, Quiet
from tests.oracle.audit import audit

AGENTS = ("solver", "critic", "rival", "judge")
SOLVER = NamedPolicySpec(rank=1, alpha=1.0)
TASK = replace(
    SPEC,
    policies={
        "solver": SOLVER,
        "critic": replace(SOLVER, groups_per_step=1),
        "old": NamedPolicySpec(pool="solver", every=1, size=2),
        "still": NamedPolicySpec(frozen="base"),
    },
    agents={"solver": "solver", "critic": "critic", "rival": "old", "judge": "still"},
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plays") / "home"
    asyncio.run(play(root))
    return root


async def play(root: Path) -> None:
    world = World(root, TASK)
    world.environments = Quiet(world.chance, agents=AGENTS, always=("solver", "rival", "judge"))
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    world.store.tasks.set_state(world.task, "done")
    world.store.close()


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Home:
    """A copy to doctor, with its own paths."""
    copy = Home(tmp_path / "home")
    shutil.copytree(made, copy.root)
    doctor(copy, f"UPDATE versions SET path = replace(path, '{made}', '{copy.root}')")
    return copy


def doctor(home: Home, sql: str) -> None:
    with closing(sqlite3.connect(home.database, isolation_level=None)) as database:
        database.execute(sql)


def test_a_true_home_is_proven(home: Home) -> None:
    report = audit(home.root, updates=False)
    assert not report.problems
    assert report.proven["every group is consumed once"] == 2  # policies
    assert report.proven["somebody learned from each play"] == TASK.steps  # those that both are trained on
    assert report.proven["partners are who they should be"] > 0


CRITIC = "(SELECT id FROM policies WHERE name = 'critic')"
FIRST = f"(SELECT id FROM groups WHERE policy = {CRITIC} AND split = 'train' AND number = 0)"
LIES = {
    "a stale span": (
        f"UPDATE trajectories SET spans = replace(spans, '0]', '7]') WHERE \"group\" = {FIRST}",
        "task 1, critic, group 0: tokens of version 7",
    ),
    "another's batch": (
        "UPDATE tasks SET config = json_remove(config, '$.policies.critic.groups_per_step')",
        "critic: of 3 steps of 2 groups",
    ),
    "two plays that are said to be one": (
        "UPDATE groups SET play = (SELECT min(id) FROM groups WHERE split = 'train') WHERE play IS NOT NULL",
        "one policy has several groups of one play",
    ),
    "half a play": (
        "DELETE FROM groups WHERE number = 0 AND split = 'train' AND play IS NOT NULL",
        "and 0 never",
    ),
    "another instance": (
        "UPDATE groups SET instance = instance + 1000003 WHERE play IS NOT NULL AND number = 1 AND split = 'train'",
        "of several instances",
    ),
    "words of another's agent": (
        f"UPDATE trajectories SET agent = 'solver' WHERE \"group\" = {FIRST}",
        "it learns from ['solver']",
    ),
    "a partner's words that are trained on": (
        "UPDATE trajectories SET speaker = '' WHERE speaker = 'old'",
        "it learns from ['rival']",
    ),
    "an unknown partner": (
        "UPDATE trajectories SET speaker = 'who' WHERE speaker = 'still'",
        "'who' acts as 'judge'",
    ),
    "a frozen version that moved": (
        "UPDATE trajectories SET spans = replace(spans, '0]', '2]') WHERE speaker = 'still'",
        "'still' is versions [2]",
    ),
    "a version that no pool holds": (
        "UPDATE trajectories SET spans = '[[1, 2, 99]]' WHERE speaker = 'old'",
        "'old' is versions [99]",
    ),
    "a play that nobody learned from": (
        'DELETE FROM trajectories WHERE "group" IN (SELECT id FROM groups WHERE number = 0)',
        "all of its policies skipped it",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_found(home: Home, lie: str) -> None:
    sql, words = LIES[lie]
    doctor(home, sql)
    problems = audit(home.root, updates=False).problems
    assert any(words in problem for problem in problems), problems[:5]


def test_a_borrowed_version_that_goes_too_early_is_found(home: Home) -> None:
    doctor(home, "UPDATE tasks SET state = 'paused', config = json_set(config, '$.policies.still.frozen', '1@2')")
    doctor(home, "INSERT INTO borrowed (task, words, version, plays) SELECT 1, '1@2', min(id), 1 FROM versions")
    doctor(home, "UPDATE versions SET state = 'committed' WHERE id = (SELECT version FROM borrowed)")
    assert not any("which its policy" in problem for problem in audit(home.root, updates=False).problems)
    doctor(home, "UPDATE versions SET state = 'pruned' WHERE id = (SELECT version FROM borrowed)")
    assert any("which its policy still is, is pruned" in one for one in audit(home.root, updates=False).problems)
