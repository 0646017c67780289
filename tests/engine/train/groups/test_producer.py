"""Groups that cannot close are filled again under the same number, or the task pauses and says why."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.train.drawing import STRIDE
from marlaas.engine.train.groups import MAX_SHORT, MAX_SILENT, RUNS
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Answer, Ask, Message, Reply

from ...queue.scheduler.fake_environments import Chance, FakeEnvironments
from ...queue.scheduler.world import World
from ..test_learning import SPEC, check_history


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, SPEC)


async def ends(world: World) -> Ending:
    return await asyncio.wait_for(world.go(), 50)


class Faltering(FakeEnvironments):
    """Breaks after the replies of every second member, as often as it may without being lost."""

    def __init__(self, chance: Chance) -> None:
        super().__init__(chance)
        self.said: defaultdict[tuple[int, int], list[str]] = defaultdict(list)

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        async def heard(ask: Ask) -> Reply:
            reply = await answer(ask)
            said.append(reply.text)
            return reply

        said = self.said[spec.index, spec.member] if spec.split == "train" else []
        outcome = await super().play(lease, spec, heard, counts)
        return BROKEN if spec.split == "train" and spec.member == 1 and len(said) < RUNS else outcome


class Parsing(FakeEnvironments):
    """Breaks on some replies, each time that it is given them."""

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        outcome = await super().play(lease, spec, answer, counts)
        return BROKEN if spec.split == "train" and not outcome.rewards["agent"] else outcome


BROKEN = EpisodeOutcome("error", failure=Failure("ValueError: no number", "grader.py", 31))


def metric(world: World, name: str) -> list[float]:
    """A metric, step by step."""
    return [row["value"] for row in world.query(f"SELECT value FROM metrics WHERE name = '{name}' ORDER BY step")]


def instances(world: World) -> dict[int, int]:
    return {row["number"]: row["instance"] for row in world.query("SELECT * FROM groups WHERE split = 'train'")}


async def test_a_failed_group_is_filled_from_another_instance(world: World) -> None:
    world.environments.failing = lambda spec: spec.split == "train" and spec.index == 3
    assert await ends(world) == Ending("done")
    check_history(world)
    assert instances(world) == {n: n + STRIDE * (n == 3) for n in range(10)}


async def test_a_fifth_of_the_instances_may_fail(world: World) -> None:
    """Among them six draws of one group in a row; in one of seven tasks of 480 groups there are five."""
    bad = {3 + attempt * STRIDE for attempt in range(6)} | {7}
    world.environments.failing = lambda spec: spec.split == "train" and spec.index in bad
    assert await ends(world) == Ending("done")
    check_history(world)
    assert instances(world) == {n: n + STRIDE * {3: 6, 7: 1}.get(n, 0) for n in range(10)}


async def test_a_lost_member_costs_itself_alone(world: World) -> None:
    world.spec = replace(SPEC, train=replace(SPEC.train, group_size=3, min_members=2))
    world.environments.failing = lambda spec: spec.split == "train" and spec.member == 1
    assert await ends(world) == Ending("done")
    assert instances(world) == {n: n for n in range(10)}
    failed = world.query("SELECT reward FROM trajectories WHERE status = 'error'")
    assert len(failed) == 10 and all(row["reward"] is None for row in failed)
    assert metric(world, "lost") == metric(world, "errors") == [2.0] * 5
    assert metric(world, "replayed") == [2.0 * (RUNS - 1)] * 5


async def test_a_failed_member_is_played_again_by_itself(world: World) -> None:
    """It gets the same noise: all of its plays say the same, so none is chosen for what it says."""
    world.environments = Faltering(world.chance)
    assert await ends(world) == Ending("done")
    check_history(world)
    assert instances(world) == {n: n for n in range(10)}
    assert not world.query("SELECT 1 FROM trajectories WHERE status != 'ok'")
    assert metric(world, "lost") == [0.0] * 5 and metric(world, "replayed") == [4.0] * 5
    said = world.environments.said
    assert all(len(set(plays)) == 1 for plays in said.values())
    assert sorted(map(len, said.values())) == [1] * 10 + [RUNS] * 10


async def test_two_of_eight_are_no_group(world: World) -> None:
    """One of eight may be lost, and where six are the number is filled again."""
    world.spec = replace(SPEC, steps=2, train=replace(SPEC.train, group_size=8))
    lost = {1: 1, 2: 2, 3: 6}
    world.environments.failing = lambda spec: spec.split == "train" and spec.member < lost.get(spec.index, 0)
    assert await ends(world) == Ending("done")
    assert instances(world) == {n: n + STRIDE * (n in (2, 3)) for n in range(4)}
    trained = world.query(
        'SELECT count(*) AS n FROM trajectories t JOIN groups g ON g.id = t."group"'
        " WHERE g.split = 'train' AND t.reward IS NOT NULL GROUP BY g.number ORDER BY g.number"
    )
    assert [row["n"] for row in trained] == [8, 7, 8, 8]
    assert metric(world, "errors") == [1.0, 0.0] and metric(world, "lost") == [1.0, 8.0]


async def test_a_stored_group_of_survivors_is_not_taken_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that waited when the rule became stricter."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(world.workers.trainer, "accumulate", never)  # else a step may consume it; a restart has another
    world.spec = replace(SPEC, train=replace(SPEC.train, group_size=8, min_members=2))
    world.environments.failing = lambda spec: spec.split == "train" and spec.member < 6 * (spec.index == 1)
    run = asyncio.ensure_future(world.go())
    while 1 not in instances(world):
        await asyncio.sleep(0)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    world.restart()
    world.spec = replace(world.spec, train=replace(world.spec.train, min_members=None))
    assert await ends(world) == Ending("done")
    assert instances(world) == {n: n + STRIDE * (n == 1) for n in range(10)}


async def test_what_a_restart_takes_up_keeps_its_counts(world: World) -> None:
    world.spec = replace(SPEC, train=replace(SPEC.train, group_size=8))
    world.environments.failing = lambda spec: spec.split == "train" and spec.member == 0
    run = asyncio.ensure_future(world.go())
    while not instances(world):
        await asyncio.sleep(0)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    world.restart()
    world.environments.failing = lambda spec: False
    waiting = world.store.experience.waiting(1)
    assert waiting and {(group.lost, group.replayed) for group in waiting} == {(1, RUNS - 1)}
    assert [one.failure is not None for one in waiting[0].episodes] == [True] + [False] * 7
    assert await ends(world) == Ending("done")
    assert sum(metric(world, "lost")) == len(waiting)


async def test_a_line_that_loses_episodes_is_warned_of_once(world: World) -> None:
    """Half of the replies do, whatever the instance: what is trained on are the survivors."""
    world.spec = replace(SPEC, steps=8, train=replace(SPEC.train, group_size=8, min_members=2))
    world.environments = Parsing(world.chance)
    ending = await ends(world)
    warned = world.query("SELECT message FROM events WHERE message LIKE '%each time that they were played%'")
    assert ending == Ending("done") and len(warned) == 1
    assert "grader.py, line 31" in warned[0]["message"] and "on_error" in warned[0]["message"]
    assert [row["message"] for row in world.query("SELECT message FROM warnings")] == [warned[0]["message"]]
    with Reader(world.home.database) as reader:
        row = reader.task(world.task)
        assert row is not None and row.warning == warned[0]["message"] and reader.warnings(world.task) == [row.warning]
    world.restart()
    world.spec = replace(world.spec, steps=16)
    assert await ends(world) == Ending("done")
    assert world.query("SELECT count(*) AS n FROM events WHERE message LIKE '%each time that they were played%'") == [
        {"n": 1}
    ]


async def test_draws_that_lose_too_many_pause_the_task(world: World) -> None:
    world.spec = replace(SPEC, train=replace(SPEC.train, group_size=8))
    world.environments.failing = lambda spec: spec.split == "train" and spec.member < 2
    ending = await ends(world)
    assert ending.state == "paused"
    assert f"In {MAX_SHORT} draws in a row fewer than 7 of 8 members had a reward: it broke" in ending.reason.words
    draws = len(world.environments.begun) / 12  # two of eight members were played twice more each
    assert draws < 2 * MAX_SHORT, "draws of all groups count together: none waits for twenty of its own"


async def test_rewritten_turns_train_as_one_episode(world: World) -> None:
    world.environments.turns = 3
    world.renderer.rewrites = True
    assert await ends(world) == Ending("done")
    check_history(world)
    rows = world.query('SELECT t.* FROM trajectories t JOIN groups g ON g.id = t."group" ORDER BY t.id')
    episodes: dict[tuple[int, int], list[dict[str, object]]] = {}
    for row in rows:
        episodes.setdefault((row["group"], row["member"]), []).append(row)
    assert {len(parts) for parts in episodes.values()} == {3}
    assert all(len({(part["reward"], part["advantage"]) for part in parts}) == 1 for parts in episodes.values())
    asked = [next(turn["text"] for turn in json.loads(str(part["turns"]))) for part in episodes.popitem()[1]]
    assert [text.split()[-1] for text in asked] == ["0", "1", "2"]
    assert not world.workers.sampler.conversations


async def test_an_environment_that_keeps_failing_pauses_the_task(world: World) -> None:
    world.environments.failing = lambda spec: spec.split == "train"
    ending = await ends(world)
    assert ending.state == "paused" and "it broke (env.py, line 3)" in ending.reason.words
    assert not world.workers.sampler.conversations


async def test_held_out_prompts_are_never_trained_on(world: World) -> None:
    class Overlapping(FakeEnvironments):
        def ask_for(self, spec: EpisodeSpec, turn: int, agent: str) -> Ask:
            return Ask(agent=agent, messages=(Message("user", f"{spec.index} {turn}"),))

    world.environments = Overlapping(world.chance)
    assert await ends(world) == Ending("done")
    check_history(world)
    assert instances(world) == {n: n + STRIDE * (n < SPEC.eval.prompts) for n in range(10)}


async def test_episodes_that_never_ask_are_few_before_the_task_pauses(world: World) -> None:
    """Looked at, its instances ask; played, they do not: as where it depends on the time, or on who plays."""
    world.environments.ended = lambda spec: EpisodeOutcome("ok", {"agent": 1.0})
    ending = await ends(world)
    assert (ending.state, ending.again) == ("paused", False)
    assert ending.reason.words.startswith("sums never called `ep.ask` in ")
    under_way = 8 * SPEC.train.groups_per_step * SPEC.train.group_size
    assert MAX_SILENT <= len(world.environments.begun) <= MAX_SILENT + under_way
