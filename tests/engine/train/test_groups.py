"""How a group comes about: lost samples, redundant ones, rankings, equal rewards, and processes that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.protocol import FAILED, EpisodeOutcome, EpisodeSpec, FinishedEpisode, Ranking
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.samplers.protocol import SampleRequest, SampleResult
from marlaas.engine.spec.task import EvalSpec, TaskSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.train.drawing import STRIDE
from marlaas.engine.train.failures import MAX_SILENT, never_asks
from marlaas.engine.train.groups import (
    DEATHS,
    MAX_SHORT,
    OVERLOADED,
    RUNS,
    close_groups,
    dropped,
    episode_of,
    reward_of,
    runs_again,
)
from marlaas.engine.trainer.advantages import ClosedGroup, ClosingRules, TooFewRewards, close_group, train_group
from marlaas.engine.trajectories import Dropped, Episode, EpisodeStatus, Failure, Trajectory
from marlaas.plugins.messages import Answer, Ask, Reply

from ..queue.scheduler.fake_environments import Chance, FakeEnvironments
from ..queue.scheduler.world import World
from ..trainer.test_advantages import group, trajectory
from .test_learning import SPEC, check_history


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


async def test_a_fifth_of_the_instances_may_fail(world: World) -> None:
    """Among them six draws of one group in a row; in one of seven tasks of 480 groups there are five."""
    bad = {3 + attempt * STRIDE for attempt in range(6)} | {7}
    world.environments.failing = lambda spec: spec.split == "train" and spec.index in bad
    assert await ends(world) == Ending("done")
    check_history(world)
    assert instances(world) == {n: n + STRIDE * {3: 6, 7: 1}.get(n, 0) for n in range(10)}


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
    world.spec = replace(world.spec, steps=10)
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


async def test_episodes_that_never_ask_are_few_before_the_task_pauses(world: World) -> None:
    """Looked at, its instances ask; played, they do not: as where it depends on the time, or on who plays."""
    world.environments.ended = lambda spec: EpisodeOutcome("ok", {"agent": 1.0})
    ending = await ends(world)
    assert (ending.state, ending.again) == ("paused", False)
    assert ending.reason.words.startswith("sums never called `ep.ask` in ")
    under_way = 8 * SPEC.train.groups_per_step * SPEC.train.group_size
    assert MAX_SILENT <= len(world.environments.begun) <= MAX_SILENT + under_way


def test_a_program_that_was_refused_is_not_one_that_never_asked() -> None:
    ending = never_asks("sums", "64 episodes", "messages is empty.")
    assert ending.cause == "The requests of sums were refused in 64 episodes: messages is empty."


TASK = replace(SPEC, train=replace(SPEC.train, group_size=3, redundant=2))

AGENT, OTHER = "agent", "other"


class Hanging(FakeEnvironments):
    """Some training members never end by themselves: they speak once, and wait."""

    def __init__(self, chance: Chance, hanging: tuple[int, ...]) -> None:
        super().__init__(chance)
        self.hanging = hanging
        self.under_way = 0
        self.counted: list[str] = []
        self.outcomes = SimpleNamespace(add=lambda *found: self.counted.append(found[-1].status))

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        self.under_way += 1
        try:
            if spec.split == "train" and spec.member in self.hanging:
                self.begun.append(spec)
                await answer(self.ask_for(spec, 0, AGENT))
                await asyncio.Event().wait()
            return await super().play(lease, spec, answer, counts)
        finally:
            self.under_way -= 1


@pytest.fixture
def redundant(tmp_path: Path) -> World:
    made = World(tmp_path, TASK)
    made.environments = Hanging(made.chance, (0, 3))
    return made


def members(world: World) -> dict[int, tuple[int, ...]]:
    rows = world.query(
        "SELECT g.number, t.member FROM trajectories t JOIN groups g ON g.id = t.\"group\" WHERE g.split = 'train'"
        " ORDER BY g.number, t.member"
    )
    numbers = sorted({row["number"] for row in rows})
    return {number: tuple(row["member"] for row in rows if row["number"] == number) for number in numbers}


async def test_members_that_hang_hold_no_group_up(redundant: World) -> None:
    assert await ends(redundant) == Ending("done")
    check_history(redundant)
    assert instances(redundant) == {n: n for n in range(10)}
    assert members(redundant) == dict.fromkeys(range(10), (1, 2, 4))
    environments = redundant.environments
    assert isinstance(environments, Hanging) and not environments.under_way
    assert environments.counted == ["cancelled"] * 20
    assert not redundant.workers.sampler.conversations, "their memory is free"
    assert metric(redundant, "dropped") == [pytest.approx(2 / 5)] * 5
    assert all(value > 0 for value in metric(redundant, "dropped_time"))
    assert len(metric(redundant, "dropped_length")) == len(metric(redundant, "slower_reward")) == 5
    assert not metric(redundant, "dropped_reward"), "none of them ended"


async def test_too_few_rewards_are_no_group_all_the_same(redundant: World) -> None:
    redundant.spec = replace(TASK, train=replace(TASK.train, min_members=2))
    lost = {1: 3, 2: 4}
    redundant.environments = FakeEnvironments(redundant.chance)
    redundant.environments.failing = lambda spec: spec.split == "train" and spec.member < lost.get(spec.index, 0)
    assert await ends(redundant) == Ending("done")
    assert instances(redundant) == {n: n + STRIDE * (n == 2) for n in range(10)}
    sizes = {number: len(found) for number, found in members(redundant).items()}
    assert sizes == dict.fromkeys(range(10), 3), "a lost member takes the place for which there is none with a reward"
    assert metric(redundant, "errors") == [1.0, 0.0, 0.0, 0.0, 0.0] and metric(redundant, "lost") == [
        3.0,
        4.0,
        0.0,
        0.0,
        0.0,
    ]


def member(
    number: int,
    seconds: float,
    reward: float | None,
    status: EpisodeStatus = "ok",
    written: int = 2,
    left: bool = False,
) -> FinishedEpisode:
    mask = np.ones(written, np.uint8)
    said = tuple(
        Trajectory(agent, mask.astype(np.int32), mask, mask.astype(np.float32), (), value)
        for agent, value in ((AGENT, reward), (OTHER, 9.0 if reward is not None else None))
    )
    episode, outcome = Episode(number, status, said), EpisodeOutcome(status)
    return FinishedEpisode(episode, {}, None, outcome, seconds, dropped=left)


def test_what_is_known_of_the_dropped() -> None:
    closed = [member(0, 1.0, 0.0), member(1, 4.0, 1.0), member(2, 2.0, 0.5), member(3, 3.0, 0.5)]
    others = [
        member(4, 4.0, 2.0, written=5),
        member(5, 9.0, None, "cancelled", written=7, left=True),
        member(6, 9.0, None, "error"),
    ]
    assert dropped(closed, others, frozenset({AGENT})) == Dropped(7, 2, 13.0, 12, 10.0, (2.0,), 0.75 - 0.25)
    assert dropped(closed, others, None).tokens == 24
    assert dropped(closed[:1], (), None) == Dropped(1, 0, 0.0, 0, 1.0)
    assert reward_of(closed[0].episode, None) == 4.5


UNRANKED = EpisodeOutcome("error", failure=Failure("1 rewards for 2 episodes", "env.py", 9))


def by_place(members: Sequence[EpisodeOutcome]) -> Ranking:
    """The first is the best."""
    return Ranking(tuple({"agent": -float(place)} for place, _ in enumerate(members)))


@pytest.fixture
def ranked(tmp_path: Path) -> World:
    made = World(tmp_path, replace(SPEC, train=replace(SPEC.train, group_size=3)))
    made.environments.score = lambda spec: 0.5
    made.environments.ranking = by_place
    return made


def rows(world: World, split: str) -> list[tuple[int, float | None, float, str]]:
    found = world.query(
        "SELECT j.member, j.reward, j.advantage, j.parts FROM trajectories j"
        f" JOIN groups g ON g.id = j.\"group\" WHERE g.split = '{split}'"
    )
    return [(row["member"], row["reward"], row["advantage"], row["parts"]) for row in found]


async def test_the_ranking_trains_and_evaluation_knows_none(ranked: World) -> None:
    assert await asyncio.wait_for(ranked.go(), 50) == Ending("done")
    check_history(ranked)
    assert {(member, reward, advantage) for member, reward, advantage, _ in rows(ranked, "train")} == {
        (0, 0.0, 1.0),
        (1, -1.0, 0.0),
        (2, -2.0, -1.0),
    }
    assert {parts for *_, parts in rows(ranked, "train")} == {'{"own_reward": 0.5}'}
    assert {(reward, parts) for _, reward, _, parts in rows(ranked, "eval")} == {(0.5, "{}")}


async def test_a_group_with_a_failed_ranking_is_filled_again(ranked: World) -> None:
    calls = []

    def sometimes(members: Sequence[EpisodeOutcome]) -> Ranking | EpisodeOutcome:
        calls.append(members)
        return UNRANKED if len(calls) == 4 else by_place(members)

    ranked.environments.ranking = sometimes
    assert await asyncio.wait_for(ranked.go(), 50) == Ending("done")
    check_history(ranked)
    again = [row["instance"] - row["number"] for row in ranked.query("SELECT * FROM groups WHERE split = 'train'")]
    assert sorted(again) == [0] * 9 + [STRIDE] and len(calls) == 11
    assert all(reward is not None for _, reward, *_ in rows(ranked, "train"))


OK = EpisodeOutcome("ok", {"agent": 1.0})

SKIP = EpisodeOutcome("skip")

ERROR = EpisodeOutcome("error")

DIED = EpisodeOutcome("error", died=True)

SWAMPED = EpisodeOutcome("timeout", overloaded=True)


def runs(ends: Sequence[EpisodeOutcome]) -> list[EpisodeOutcome]:
    """The outcomes of a sample whose runs end so, the last end for ever."""
    outcomes = [ends[0]]
    while runs_again(outcomes):
        outcomes.append(ends[min(len(outcomes), len(ends) - 1)])
    return outcomes


@pytest.mark.parametrize(
    ("ends", "count", "lost"),
    [
        ([OK], 1, False),
        ([SKIP], 1, False),
        ([ERROR, OK], 2, False),
        ([ERROR, ERROR, OK], 3, False),
        ([ERROR], RUNS, True),
        ([DIED, OK], 2, False),
        ([DIED], DEATHS, True),
        ([SWAMPED, SWAMPED, ERROR, SWAMPED, ERROR, OK], 6, False),
        ([SWAMPED], OVERLOADED, True),
        ([replace(SWAMPED, died=True)], OVERLOADED, True),
        ([SWAMPED, SWAMPED, ERROR], 2 + RUNS, True),
    ],
)
def test_how_often_a_sample_is_run(ends: list[EpisodeOutcome], count: int, lost: bool) -> None:
    outcomes = runs(ends)
    assert len(outcomes) == count and (outcomes[-1].status in FAILED) is lost


SOME = group(
    (replace(trajectory(1.0), advantage=0.1), trajectory(2.0, "critic")),
    (trajectory(None),),
    (replace(trajectory(0.0), advantage=-0.1),),
)


@pytest.mark.parametrize(
    ("agents", "advantages"),
    [({"solver"}, [0.1, -0.1]), ({"critic"}, [0.0]), (None, [0.1, 0.0, -0.1]), ({"nobody"}, [])],
)
def test_a_policy_is_trained_on_what_its_agents_wrote(agents: set[str] | None, advantages: list[float]) -> None:
    part = replace(SOME, episodes=tuple(episode_of(episode, agents) for episode in SOME.episodes))
    assert [sequence.advantage for sequence in train_group(part).sequences] == advantages


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=2, max_size=6), st.integers(2, 6))
def test_groups_close_for_all_or_are_made_again(samples: list[tuple[bool, bool, bool]], least: int) -> None:
    """Whoever did not speak gets an empty group; an attempt that lost too many samples gives nobody one."""
    episodes = tuple(
        Episode(
            place,
            "ok" if well else "error",
            tuple(
                trajectory(1.0 if well else None, agent)
                for agent, spoke in (("solver", solver), ("critic", critic))
                if spoke
            ),
        )
        for place, (well, solver, critic) in enumerate(samples)
    )
    rules = [ClosingRules(min_members=least)] * 2
    groups = [
        replace(SOME, episodes=tuple(episode_of(episode, {agent}) for episode in episodes))
        for agent in ("solver", "critic")
    ]
    closed = close_groups(episodes, groups, rules)
    rewarded = sum(well and (solver or critic) for well, solver, critic in samples)
    heard = [sum(well and spoke[agent] for well, *spoke in samples) for agent in (0, 1)]
    if rewarded < least or max(heard) < 2:
        assert closed == TooFewRewards(rewarded)
    else:
        assert not isinstance(closed, TooFewRewards)
        assert [one.rewards.count for one in closed] == [count if count >= 2 else 0 for count in heard]
        again = [close_group(one.group, rule) for one, rule in zip(closed, rules, strict=True)]
        assert all(isinstance(one, ClosedGroup) for one in again)
        assert again == closed, "what was stored is taken up as it was"


LIMIT = SPEC.train.dynamic_limit

DYNAMIC = replace(SPEC, train=replace(SPEC.train, dynamic_sampling=True))


def groups(world: World) -> dict[int, tuple[int, int]]:
    """By number: at which attempt the group was taken, and how many it replaced."""
    rows = world.query("SELECT * FROM groups WHERE split = 'train'")
    return {row["number"]: ((row["instance"] - row["number"]) // STRIDE, row["replaced"]) for row in rows}


def by_member(spec: EpisodeSpec) -> float:
    return float(spec.member)


async def test_a_group_of_equal_rewards_is_replaced_and_counted(tmp_path: Path) -> None:
    world = World(tmp_path, DYNAMIC)
    world.environments.score = lambda spec: 1.0 if spec.index == 3 else by_member(spec)
    assert await ends(world) == Ending("done")
    check_history(world)
    assert groups(world) == {n: (1, 1) if n == 3 else (0, 0) for n in range(10)}
    assert metric(world, "replaced") == [0.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("spec", "taken"),
    [
        (SPEC, 0),
        (replace(SPEC, train=replace(SPEC.train, loss="dapo")), LIMIT),
        (replace(SPEC, train=replace(SPEC.train, loss="dapo", dynamic_sampling=False)), 0),
    ],
    ids=["off by default", "on with dapo", "dapo without"],
)
async def test_it_belongs_to_dapo_and_can_be_chosen(tmp_path: Path, spec: TaskSpec, taken: int) -> None:
    world = World(tmp_path, replace(spec, steps=2))
    world.environments.score = lambda spec: 0.5
    assert await ends(world) == Ending("done")
    assert set(groups(world).values()) == {(taken, taken)}


PLUGIN = """
from marlaas.plugins import env

@env
async def sums(ep):
    reply = await ep.ask(f"{ep.split} {ep.index}")
    reply = await ep.ask("and now?")
    return len(reply.text) % 2 + ep.noise.random()
"""

IN_A_PROCESS = replace(
    SPEC, steps=3, train=replace(SPEC.train, group_size=4, max_staleness=0), eval=EvalSpec(prompts=2)
)


async def run(tmp_path: Path, before: Callable[[SampleRequest, EnvironmentService], None]) -> World:
    """Run the task on a real process; ``before`` is called before each turn that a training member takes."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "sums.py").write_text(PLUGIN)
    world = World(tmp_path / "home", IN_A_PROCESS)
    service = EnvironmentService([folder], tmp_path / "scratch")
    world.environments = cast(Any, service)
    sampler = world.workers.sampler
    generate = sampler.generate

    async def sample(request: SampleRequest) -> SampleResult:
        while "/g3." in request.conversation and not world.query("SELECT 1 FROM evals"):
            await asyncio.sleep(0)  # its episodes share the process with those that kill, and would be lost with them
        if "/g" in request.conversation:
            before(request, service)
        return await generate(request)

    sampler.generate = sample  # type: ignore[assignment,method-assign]
    await service.start()
    try:
        ending = await asyncio.wait_for(world.go(), 60)
        assert ending == Ending("done"), ending.reason.words
    finally:
        await service.stop()
    check_history(world)
    return world


def kill(service: EnvironmentService) -> None:
    ((_, pid),) = service.processes()
    os.kill(pid, signal.SIGKILL)


@pytest.mark.processes
async def test_every_member_is_there_and_trained_on_once(tmp_path: Path) -> None:
    died: set[str] = set()

    def before(request: SampleRequest, service: EnvironmentService) -> None:
        if "/g3." in request.conversation and not died:
            died.add(request.conversation)
            kill(service)

    world = await run(tmp_path, before)
    assert died
    rows = world.query(
        'SELECT g.number, g.instance, t.member, t.status FROM trajectories t JOIN groups g ON g.id = t."group"'
        " WHERE g.split = 'train' ORDER BY g.number, t.member"
    )
    assert [(row["number"], row["instance"], row["member"]) for row in rows] == [
        (number, number, member) for number in range(6) for member in range(4)
    ]
    assert {row["status"] for row in rows} == {"ok"}
    assert sum(metric(world, "replayed")) >= 1 and not sum(metric(world, "lost"))


@pytest.mark.processes
async def test_a_reply_that_kills_costs_its_group_and_no_rest(tmp_path: Path) -> None:
    """It is played twice; a version that dies three times within a minute rests.

    A group of the last step: held-out episodes that are played beside an earlier one would die twice with it.
    """
    plays: list[str] = []

    def before(request: SampleRequest, service: EnvironmentService) -> None:
        if "/g5.0.1" in request.conversation:
            plays.append(request.conversation.partition("/g")[2].rpartition("/")[0])
            kill(service)

    world = await run(tmp_path, before)
    assert plays == ["5.0.1", "5.0.1.1"] and len(plays) == DEATHS
    assert not world.query("SELECT 1 FROM trajectories WHERE status != 'ok'")
    (again,) = world.query("SELECT instance FROM groups WHERE split = 'train' AND number = 5")
    assert again["instance"] != 5 and sum(metric(world, "lost")) >= 1


HANGS = """
import asyncio
import time
from collections import Counter

from marlaas.plugins import env

begun = Counter()

def hangs(ep):
    begun[ep.index] += 1
    return ep.split == "train" and begun[ep.index] <= 2

@env(timeout=600)
async def sums(ep):
    reply = await ep.ask(f"{ep.split} {ep.index}")
    if hangs(ep):
        await asyncio.sleep(600)
    return len(reply.text) % 2 + ep.noise.random()

@env(timeout=600)
def plain(ep):
    reply = ep.ask(f"{ep.split} {ep.index}")
    if hangs(ep):
        while True:
            time.sleep(0.001)
    return len(reply.text) % 2 + ep.noise.random()
"""

TRAIN = replace(SPEC.train, group_size=3, redundant=2)

REDUNDANT = replace(SPEC, steps=3, train=TRAIN, eval=EvalSpec(prompts=2))


@pytest.mark.processes
@pytest.mark.parametrize("environment", ["sums", "plain"])
async def test_cancelled_members_leave_their_process(tmp_path: Path, environment: str) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "sums.py").write_text(HANGS)
    world = World(tmp_path / "home", replace(REDUNDANT, environment=f"sums/{environment}"))
    service = EnvironmentService([folder], tmp_path / "scratch")
    world.environments = cast(Any, service)
    await service.start()
    try:
        assert await asyncio.wait_for(world.go(), 60) == Ending("done")
        crews = [info.crew for info in service.infos()]
        cancelled = [one.episodes for one in service.outcomes.take().outcomes if one.status == "cancelled"]
    finally:
        await service.stop()
    check_history(world)
    assert crews and all((crew.live, crew.waiting) == (0, 0) for crew in crews)
    assert sum(cancelled) == 12 and metric(world, "dropped") == [pytest.approx(0.4)] * 3
    assert not world.workers.sampler.conversations
