"""Which instance a group draws: rows once in an epoch, by difficulty, and from the environments of a mixture."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.protocol import DataFacts, EpisodeOutcome, EpisodeSpec
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import ComponentSpec, EvalSpec
from marlaas.engine.store.experience import Draw
from marlaas.engine.store.versions import Evaluation
from marlaas.engine.train.drawing import FLOOR, STRIDE, Curriculum, instances
from marlaas.engine.train.evaluation import mean_score
from marlaas.engine.trajectories import Failure
from marlaas.plugins.data import row_at
from marlaas.plugins.messages import Answer, Ask, Message, Reply

from ...seldom import seldom
from ..queue.scheduler.fake_environments import FakeEnvironments
from ..queue.scheduler.world import World
from .test_learning import SPEC, check_history


@given(st.integers(0, 10**6), st.integers(0, 2**31), st.integers(1, 40))
def test_attempts_draw_other_rows_as_long_as_there_are_others(number: int, seed: int, rows: int) -> None:
    drawn = list(islice(instances(number, seed, rows), 60))
    assert drawn[0] == number and all((index - number) % STRIDE == 0 for index in drawn)
    assert len(set(drawn)) == 60
    assert {row_at("train", seed, index, rows) for index in drawn[:rows]} == set(range(rows))


def rows_drawn(world: World, rows: int) -> list[int]:
    """The rows of first attempts, by group number."""
    first = {spec.index for spec in world.environments.begun if spec.index < STRIDE}
    return [row_at("train", world.spec.train.seed, index, rows) for index in sorted(first)]


async def test_replaced_groups_leave_no_row_of_the_epoch_out(tmp_path: Path) -> None:
    """10 groups of 10 rows; a third of them fail or are replaced."""
    spec = replace(SPEC, train=replace(SPEC.train, dynamic_sampling=True, seed=3))
    world = World(tmp_path, spec)
    world.environments.data = DataFacts(train=10, held_out=4)
    world.environments.failing = lambda spec: spec.split == "train" and spec.index == 4
    world.environments.score = lambda spec: 1.0 if spec.index < STRIDE and spec.index % 3 == 0 else float(spec.member)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    check_history(world)
    assert sorted(rows_drawn(world, 10)) == list(range(10))
    again = [s.index for s in world.environments.begun if s.index >= STRIDE]
    assert again and all(row_at("train", 3, n, 10) != row_at("train", 3, n % STRIDE, 10) for n in again)


ROWS = 40
BATCH = 4


def draw(number: int, position: int, rewards: tuple[float, ...], rows: int = ROWS) -> Draw:
    mean = sum(rewards) / len(rewards)
    spread = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
    return Draw(number, 0, position, row_at("train", 0, position, rows), rows, min(rewards), max(rewards), spread)


def rewards_of(row: int) -> tuple[float, ...]:
    """Of ten rows four are always solved, four never, two sometimes."""
    return (1.0, 1.0) if row % 10 < 4 else (0.0, 0.0) if row % 10 < 8 else (0.0, 1.0)


def run(curriculum: Curriculum, begin: int, end: int) -> list[Draw]:
    """Draw and learn, group after group."""
    found = []
    for number in range(begin, end):
        position = curriculum.position(number, ROWS)
        found.append(draw(number, position, rewards_of(row_at("train", 0, position, ROWS))))
        curriculum.learn(found[-1])
    return found


def test_rows_that_teach_are_drawn_most_and_none_is_left_out() -> None:
    """A weight of 1 against 0.1 makes 10 : 1 for each row, in the long run; here for 8 rows against 32."""
    late = run(Curriculum(0, BATCH, 1), 0, 900)[300:]
    counts = Counter(one.row for one in late)
    teaching = sum(times for row, times in counts.items() if row % 10 >= 8)
    assert set(counts) == set(range(ROWS))
    assert teaching / len(late) == pytest.approx(8 / (8 + 32 * FLOOR), abs=0.08)


def test_weights_follow_from_earlier_steps_alone() -> None:
    curriculum = Curriculum(0, BATCH, 0)
    solved, between = (row_at("train", 0, position, ROWS) for position in (0, 1))
    curriculum.learn(draw(0, 0, (1.0, 1.0)))
    curriculum.learn(draw(1, 1, (0.0, 1.0)))
    assert [curriculum.weight(row, 0) for row in (solved, between)] == [1.0, 1.0]
    assert [curriculum.weight(row, 1) for row in (solved, between)] == [0.5, 1.0]
    for number in range(2, 20):
        curriculum.learn(draw(number, 0, (1.0, 1.0)))
    assert curriculum.weight(solved, 5) == FLOOR
    curriculum.learn(draw(20, 0, (0.0, 1.0)))
    assert curriculum.weight(solved, 6) == pytest.approx(0.5, abs=0.01)


DIFFICULT = replace(SPEC, steps=8, train=replace(SPEC.train, sampling="difficulty", dynamic_sampling=True))


def score(spec: EpisodeSpec) -> float:
    """By row and member: half of the rows are always solved."""
    return 1.0 if row_at("train", 0, spec.index, 10) < 5 else float(spec.member)


def drawn(world: World) -> list[tuple[int, ...]]:
    sql = "SELECT number, attempt, position, row, rows FROM draws ORDER BY number, attempt"
    return [tuple(row.values()) for row in map(dict, world.query(sql))]


async def test_runs_draw_the_same_whatever_dies(tmp_path: Path) -> None:
    runs = []
    for name, turns in (("whole", 0), ("killed", 150)):
        world = World(tmp_path / name, DIFFICULT)
        world.environments.data = DataFacts(train=10, held_out=4)
        world.environments.score = score
        ending = asyncio.ensure_future(world.go())
        for _ in range(4 if turns else 0):
            for _ in range(turns):
                await asyncio.sleep(0)
            world.kill_workers()
        assert await asyncio.wait_for(ending, 30) == Ending("done")
        check_history(world)
        groups = world.query("SELECT number, instance, replaced FROM groups WHERE split = 'train' ORDER BY number")
        runs.append((drawn(world), [tuple(dict(row).values()) for row in groups]))
    assert runs[0] == runs[1]
    assert len(runs[0][0]) > len(runs[0][1])  # what was thrown away is known, too
    taken = Counter(row for _, attempt, _, row, _ in runs[0][0] if attempt == 0)
    assert sum(taken[row] for row in range(5)) < sum(taken[row] for row in range(5, 10))


async def test_what_is_solved_is_shown(tmp_path: Path) -> None:
    world = World(tmp_path, replace(DIFFICULT, steps=12, train=replace(DIFFICULT.train, dynamic_sampling=False)))
    world.environments.data = DataFacts(train=10, held_out=4)
    world.environments.score = score
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    last = {row["name"]: row["value"] for row in world.query("SELECT name, value FROM metrics WHERE step = 12")}
    assert (last["prompts_solved"], last["prompts_unsolved"], last["prompts_between"]) == (5.0, 0.0, 5.0)
    assert last["rows"] == 10.0 and last["epoch"] >= 2.4


async def test_without_rows_there_is_nothing_to_choose_from(tmp_path: Path) -> None:
    world = World(tmp_path, DIFFICULT)
    ending = await asyncio.wait_for(world.go(), 50)
    assert ending.state == "paused" and "sums has no rows to choose from" in str(ending.reason)


PARTS = (ComponentSpec("sums", 2.0), ComponentSpec("words", 1.0, {"length": 3}))
MIXED = replace(SPEC, environment="", mixture=PARTS, steps=6)


class Several(FakeEnvironments):
    """Each environment by its name: versions, prompts, and the configuration that its episodes were begun with."""

    def __init__(self, world: World) -> None:
        super().__init__(world.chance)
        self.versions = {"sums": "s1", "words": "w1"}
        self.begun_with: set[tuple[str, str, int]] = set()
        self.broken: tuple[str, int] | None = None
        """Of which environment which held-out instance fails."""
        self.drawn_from: set[tuple[str, str]] = set()
        """Of which environment which file of rows."""

    async def bind(
        self, name: str, version: str | None = None, config: dict[str, Any] | None = None, data: Any = None
    ) -> Any:
        self.drawn_from.add((name, data["path"] if data else ""))
        return await super().bind(name, version or self.versions.get(name), config, data)

    async def look(self, lease: Any, spec: EpisodeSpec, opens: object = None) -> Ask | EpisodeOutcome:
        seen = await super().look(lease, spec)
        return self._named(lease, seen) if isinstance(seen, Ask) else seen

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        async def named(ask: Ask) -> Reply:
            return await answer(self._named(lease, ask))

        self.begun_with.add((lease.environment, json.dumps(spec.config), spec.index))
        if spec.split == "eval" and self.broken == (lease.environment, spec.index):
            return EpisodeOutcome("error", failure=Failure("it broke", "env.py", 3))
        outcome = await super().play(lease, spec, named, counts)
        fixed = {"sums": 0.75, "words": 0.0}[lease.environment]
        return replace(outcome, rewards={"agent": fixed}) if spec.split == "eval" else outcome

    def _named(self, lease: Any, ask: Ask) -> Ask:
        return replace(ask, messages=(Message("user", f"{lease.environment} {ask.messages[0].content}"),))


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, MIXED)
    made.environments = Several(made)
    return made


async def ends(world: World) -> Ending:
    return await asyncio.wait_for(world.go(), 50)


def by_component(world: World, split: str = "train") -> list[tuple[str, int]]:
    rows = world.query(f"SELECT component, instance FROM groups WHERE split = '{split}' ORDER BY number, step")
    return [(row["component"], row["instance"]) for row in rows]


STEPS = [0, 2, 4, 6]
EXPECTED = [("sums", 0), ("words", 0), ("sums", 1)]
EXPECTED = [(name, 2 * turn + at if name == "sums" else turn) for turn in range(4) for name, at in EXPECTED]


async def test_each_has_its_share_and_its_own_instances(world: World) -> None:
    assert await ends(world) == Ending("done")
    check_history(world)
    assert by_component(world) == EXPECTED
    assert isinstance(world.environments, Several)
    assert {(name, config) for name, config, _ in world.environments.begun_with} == {
        ("sums", "{}"),
        ("words", '{"length": 3}'),
    }
    assert world.query("SELECT DISTINCT environment FROM tasks") == [{"environment": "sums + words"}]


async def test_the_score_is_the_mean_by_share_and_each_is_kept(world: World) -> None:
    assert await ends(world) == Ending("done")
    rows = world.query("SELECT * FROM evals ORDER BY step")
    whole, sums, words = ([row for row in rows if row["suite"] == name] for name in ("", "sums", "words"))
    measured = [row["step"] for row in whole]
    assert measured == [row["step"] for row in sums] == [row["step"] for row in words]
    assert {STEPS[0], STEPS[-1]} <= set(measured) <= set(STEPS), "what is late is left out, of all components alike"
    keys = ("environment_version", "score", "n", "prompts", "failures")
    assert {tuple(row[key] for key in keys) for row in whole} == {("s1+w1", 0.5, 6, 6, 0)}
    assert {tuple(row[key] for key in keys) for row in sums} == {("s1", 0.75, 3, 3, 0)}
    assert {tuple(row[key] for key in keys) for row in words} == {("w1", 0.0, 3, 3, 0)}
    assert len({row["series"] for row in rows}) == 3
    assert {name for name, _ in by_component(world, "eval")} == {"sums", "words"} and len(
        by_component(world, "eval")
    ) == 6 * len(measured)


@pytest.mark.parametrize("turns", [60, seldom(150)])
async def test_a_restart_draws_the_same(world: World, turns: int) -> None:
    run = asyncio.ensure_future(world.go())
    for _ in range(turns):
        await asyncio.sleep(0)
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    world.restart()
    assert await ends(world) == Ending("done")
    check_history(world)
    assert by_component(world) == EXPECTED


async def test_a_component_that_is_blocked_blocks_the_task_by_name(world: World) -> None:
    world.spec = replace(MIXED, mixture=(*PARTS, ComponentSpec("broken")))
    ending = await ends(world)
    assert ending.state == "queued" and "'broken'" in ending.reason.words
    assert not world.query("SELECT 1 FROM groups")


async def test_each_follows_its_own_versions(world: World) -> None:
    """A newer version of one opens a new series; a pinned task stays with the first of each."""
    environments = world.environments
    assert isinstance(environments, Several)
    world.spec = replace(MIXED, environment_version="pin", steps=2)
    assert await ends(world) == Ending("done")
    environments.versions["words"] = "w2"
    world.restart()
    world.spec = replace(MIXED, environment_version="pin", steps=4, eval=EvalSpec(every=1, prompts=3))
    assert await ends(world) == Ending("done")
    assert {row["environment_version"] for row in world.query("SELECT * FROM evals WHERE suite = ''")} == {"s1+w1"}
    world.restart()
    world.spec = replace(world.spec, environment_version="follow", steps=6)
    assert await ends(world) == Ending("done")
    versions = world.query("SELECT DISTINCT component, environment_version AS v FROM groups WHERE split = 'train'")
    assert {(row["component"], row["v"]) for row in versions} == {("sums", "s1"), ("words", "w1"), ("words", "w2")}
    assert [row["environment_version"] for row in world.query("SELECT * FROM steps ORDER BY number")][-1] == "s1+w2"
    assert "s1+w2" in {row["environment_version"] for row in world.query("SELECT * FROM evals")}


async def test_what_one_holds_out_no_other_trains_on(world: World) -> None:
    """The sums draw for training what the words hold out, beside many prompts that these do not."""
    held = SPEC.eval.prompts

    class Shared(Several):
        def _named(self, lease: Any, ask: Ask) -> Ask:
            split, index, _ = ask.messages[0].content.split()
            shared = int(index) < held and (lease.environment, split) in (("sums", "train"), ("words", "eval"))
            text = f"shared {index}" if shared else f"{lease.environment} {ask.messages[0].content}"
            return replace(ask, messages=(Message("user", text),))

    world.environments = Shared(world)
    assert await ends(world) == Ending("done")
    assert by_component(world) == [(n, i + STRIDE * (n == "sums" and i < held)) for n, i in EXPECTED]


def test_the_error_of_a_mean_by_share() -> None:
    parts = [
        Evaluation(
            step=3,
            environment_version="a",
            score=1.0,
            stderr=0.3,
            n=10,
            floor=0.5,
            metrics={"turns": 2.0},
            failures=1,
            prompts=5,
        ),
        Evaluation(step=3, environment_version="b", score=0.0, stderr=0.4, n=20, floor=None, metrics={}, prompts=20),
    ]
    shares = {"easy": 0.75, "hard": 0.25}
    together = mean_score(shares, parts)
    assert (together.score, together.n, together.failures, together.prompts) == (0.75, 30, 1, 25)
    assert together.floor is None and together.metrics == {"easy: turns": 2.0}
    # both sides round each operation once, so they differ by less than a millionth of a millionth
    assert together.stderr == pytest.approx(((0.75 * 0.3) ** 2 + (0.25 * 0.4) ** 2) ** 0.5, rel=1e-12)
    assert mean_score(shares, [parts[0], replace(parts[1], score=None)]).score is None
