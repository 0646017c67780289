"""Tasks of several policies: each has its own groups, steps and versions, and all play together."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.adapters.export import write_peft_folder
from marlaas.engine.adapters.statefile import PolicyState, read_state
from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec
from marlaas.engine.errors import AdapterError, ConfigError
from marlaas.engine.queue.scheduler.commands import delete_versions, roll_back
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.queue.submission.references import find_starts
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import EvalSpec, KeepSpec, NamedPolicySpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import submit
from marlaas.engine.store.versions import Version
from marlaas.engine.train import failures
from marlaas.engine.train.publishing import Retention
from marlaas.engine.train.selfplay import OpponentPool, in_pool, weights
from marlaas.plugins.messages import Answer

from ...seldom import seldom
from ..queue.scheduler.fake_environments import FakeEnvironments
from ..queue.scheduler.world import NO_FAMILY, World

STEPS = 3

SPEC = TaskSpec(
    "lab",
    "talk",
    "talk",
    steps=STEPS,
    policies={"solver": NamedPolicySpec(rank=1), "critic": NamedPolicySpec(rank=1)},
    agents={"solver": "solver", "critic": "critic"},
    train=TrainSpec(groups_per_step=2, group_size=2, max_staleness=1, patience=1000),
    sampling=SamplingSpec(max_tokens=2, max_episode_tokens=8),
    eval=EvalSpec(every=0, prompts=2),
)

AGENTS = ("solver", "critic")


@dataclass
class Quiet(FakeEnvironments):
    """Some agents speak on every third instance only."""

    always: tuple[str, ...] = AGENTS[:1]

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        everybody = spec.split == "eval" or spec.index % 3 == 0
        agents = self.agents if everybody else self.always
        return await FakeEnvironments.play(replace(self, agents=agents), lease, spec, answer)


def world(tmp_path: Path, spec: TaskSpec = SPEC, **options: Any) -> World:
    made = World(tmp_path / "home", spec, **options)
    made.environments.agents = AGENTS
    return made


def steps(world: World) -> dict[str, int]:
    rows = world.query(
        "SELECT p.name, count(s.id) AS n FROM policies p LEFT JOIN steps s ON s.policy = p.id GROUP BY p.id"
    )
    return {row["name"]: row["n"] for row in rows}


def consumed(world: World) -> dict[str, Counter[tuple[int, int]]]:
    """By policy: how often each group number was consumed by which step."""
    found: dict[str, Counter[tuple[int, int]]] = {}
    sql = "SELECT p.name, g.number, g.step FROM groups g JOIN policies p ON p.id = g.policy WHERE g.state = 'consumed'"
    for row in world.query(sql):
        found.setdefault(row["name"], Counter())[row["number"], row["step"]] += 1
    return found


def spoken(world: World, policy: str) -> set[str]:
    sql = (
        'SELECT DISTINCT t.agent FROM trajectories t JOIN groups g ON g.id = t."group"'
        " JOIN policies p ON p.id = g.policy"
        f" WHERE t.speaker = '' AND g.split = 'train' AND p.name = '{policy}'"
    )
    return {row["agent"] for row in world.query(sql)}


async def test_each_policy_trains_on_its_own_agents_words(tmp_path: Path) -> None:
    here = world(tmp_path)
    assert await here.go() == Ending("done")
    assert steps(here) == {"solver": STEPS, "critic": STEPS}
    once = Counter({(number, number // 2 + 1): 1 for number in range(2 * STEPS)})
    assert consumed(here) == {"solver": once, "critic": once}
    assert spoken(here, "solver") == {"solver"} and spoken(here, "critic") == {"critic"}
    plays = here.query("SELECT coalesce(play, id) AS play, count(*) AS n FROM groups WHERE split = 'train' GROUP BY 1")
    assert {row["n"] for row in plays} == {2}


async def test_self_play_counts_a_group_once(tmp_path: Path) -> None:
    spec = replace(SPEC, policies={"player": NamedPolicySpec(rank=1)}, agents=dict.fromkeys(AGENTS, "player"))
    here = world(tmp_path, spec)
    assert await here.go() == Ending("done")
    assert steps(here) == {"player": STEPS} and spoken(here, "player") == set(AGENTS)
    assert sum(consumed(here)["player"].values()) == 2 * STEPS


async def test_a_policy_whose_agent_did_not_speak_skips_the_number(tmp_path: Path) -> None:
    here = world(tmp_path)
    here.environments = Quiet(here.chance, agents=AGENTS)
    assert await here.go() == Ending("done")
    assert steps(here) == {"solver": STEPS, "critic": STEPS}
    sql = (
        'SELECT g.number FROM groups g JOIN policies p ON p.id = g.policy LEFT JOIN trajectories t ON t."group" = g.id'
        " WHERE p.name = 'critic' AND g.split = 'train' AND t.id IS NULL"
    )
    assert {row["number"] for row in here.query(sql)} == {n for n in range(2 * STEPS) if n % 3}


@pytest.mark.parametrize("frozen", ["base", "solver@0"])
async def test_a_frozen_partner_speaks_and_learns_nothing(tmp_path: Path, frozen: str) -> None:
    policies = {"solver": NamedPolicySpec(rank=1), "critic": NamedPolicySpec(frozen=frozen)}
    here = world(tmp_path, replace(SPEC, policies=policies))
    assert await here.go() == Ending("done")
    assert steps(here) == {"solver": STEPS}
    rows = here.query("SELECT agent, speaker, count(*) AS n FROM trajectories GROUP BY agent, speaker")
    assert {(row["agent"], row["speaker"]) for row in rows} == {("solver", ""), ("critic", "critic")}
    assert len({row["n"] for row in rows}) == 1
    files = [path.name for path in (here.home.adapters / f"task-{here.task}").iterdir()]
    assert not any(name.startswith("frozen") for name in files)


@pytest.mark.parametrize("pick", ["recent", seldom("uniform"), seldom("score")])
async def test_a_pool_plays_what_the_policy_was(tmp_path: Path, pick: str) -> None:
    policies = {"solver": NamedPolicySpec(rank=1), "rival": NamedPolicySpec(pool="solver", every=1, size=2, pick=pick)}
    spec = replace(
        SPEC,
        steps=6,
        policies=policies,
        agents={"solver": "solver", "critic": "rival"},
        eval=EvalSpec(every=1, prompts=2),
    )
    here = world(tmp_path, spec)
    ending = await here.go()
    assert ending == Ending("done"), ending.reason
    spans = here.query("SELECT spans FROM trajectories WHERE speaker = 'rival'")
    played = {version for row in spans for _, _, version in json.loads(row["spans"])}
    assert len(played) > 1 and max(played) <= 6


async def test_a_policy_is_measured_against_who_the_file_names(tmp_path: Path) -> None:
    spec = replace(
        SPEC,
        policies={"player": NamedPolicySpec(rank=1)},
        agents=dict.fromkeys(AGENTS, "player"),
        eval=EvalSpec(every=1, prompts=4, agents={"critic": "player@0"}, rotate=True),
    )
    here = world(tmp_path, spec)
    assert await here.go() == Ending("done")
    rows = here.query(
        'SELECT t.agent, t.speaker, g.number FROM trajectories t JOIN groups g ON g.id = t."group"'
        " WHERE g.split = 'eval'"
    )
    slots = {(row["number"] % 2, row["agent"]): row["speaker"] for row in rows}
    assert slots == {(0, "solver"): "", (0, "critic"): "player@0", (1, "solver"): "player@0", (1, "critic"): ""}


async def test_an_agent_without_a_policy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MOST_LOST", failures.FEWEST_LOST)
    here = world(tmp_path)
    here.environments.agents = ("solver", "stranger")
    ending = await here.go()
    assert ending.state == "paused", ending.reason
    assert "no policy acts as its agent 'stranger'" in ending.reason.words


async def test_one_policy_goes_back_and_the_other_stays(tmp_path: Path) -> None:
    here = world(tmp_path, replace(SPEC, keep=KeepSpec(every=1)))
    assert await here.go() == Ending("done")
    here.store.tasks.set_state(here.task, "done")
    with pytest.raises(ConfigError, match="Several policies of task 1 have a version 1"):
        await roll_back(here.store, here.task, 1)
    await roll_back(here.store, here.task, 1, "critic")
    assert steps(here) == {"solver": STEPS, "critic": 1}
    assert await here.go() == Ending("done")
    assert steps(here) == {"solver": STEPS, "critic": STEPS}
    here.store.tasks.set_state(here.task, "done")
    await delete_versions(here.store, here.task, 2, "solver")
    kept = here.query(
        "SELECT p.name, v.number FROM versions v JOIN policies p ON p.id = v.policy"
        " WHERE v.state = 'committed' AND v.number = 2"
    )
    assert [row["name"] for row in kept] == ["critic"]


ONE = NamedPolicySpec(rank=1, alpha=1.0)


class Paid(FakeEnvironments):
    """The critic is always right on held-out prompts, the solver never."""

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        outcome = await super().play(lease, spec, answer)
        return replace(outcome, rewards={"solver": 0.0, "critic": 1.0}) if spec.split == "eval" else outcome


class Never(FakeEnvironments):
    """Who is asked, in training and on held-out prompts."""

    train: tuple[str, ...] = ("solver",)
    held_out: tuple[str, ...] = AGENTS

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        agents = self.held_out if spec.split == "eval" else self.train
        return await FakeEnvironments.play(replace(self, agents=agents), lease, spec, answer)


@pytest.mark.parametrize(("held_out", "where"), [(AGENTS, "2 steps"), (("solver",), "2 held-out episodes")])
async def test_an_agent_that_is_never_asked_pauses_the_task_by_name(
    tmp_path: Path, held_out: tuple[str, ...], where: str
) -> None:
    here = world(tmp_path, replace(SPEC, steps=6, train=replace(SPEC.train, patience=2)))
    here.environments = Never(here.chance, agents=AGENTS)
    here.environments.held_out = held_out
    ending = await here.go()
    assert ending.state == "paused" and not ending.again
    assert f"The agent critic was never asked in {where}, so the policy critic learns nothing." in ending.reason.words


async def test_a_policy_at_its_target_leaves_the_other_alone(tmp_path: Path) -> None:
    here = world(tmp_path, replace(SPEC, steps=12, eval=EvalSpec(every=1, prompts=2, target=0.9)))
    here.environments = Paid(here.chance, agents=AGENTS)
    ending = await here.go()
    made = steps(here)
    assert ending.state == "done" and ending.reason.words.startswith("solver: Target 0.9 was not reached")
    assert made["solver"] == 12 and made["critic"] < 12
    with Reader(here.home.database) as reader:
        row = reader.task(here.task)
    assert row is not None and row.step == made["critic"], "the task stands where its furthest behind policy does"


class Beaten(FakeEnvironments):
    """On every other held-out prompt the critic has lost before its turn."""

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        beaten = spec.split == "eval" and spec.index % 2 == 1
        agents = AGENTS[:1] if beaten else AGENTS
        outcome = await FakeEnvironments.play(replace(self, agents=agents), lease, spec, answer)
        return replace(outcome, rewards={"solver": float(beaten), "critic": float(not beaten)})


async def test_who_loses_before_its_turn_has_lost(tmp_path: Path) -> None:
    here = world(tmp_path, replace(SPEC, eval=EvalSpec(every=0, prompts=4)))
    here.environments = Beaten(here.chance, agents=AGENTS)
    assert await here.go() == Ending("done")
    rows = here.query("SELECT p.name, e.score, e.n FROM evals e JOIN policies p ON p.id = e.policy")
    assert {(row["name"], row["score"], row["n"]) for row in rows} == {("solver", 0.5, 4), ("critic", 0.5, 4)}


async def test_a_drain_never_plays_a_shared_group_twice(tmp_path: Path) -> None:
    policies = {"solver": replace(ONE, groups_per_step=1), "critic": replace(ONE, groups_per_step=3)}
    for turns in (80, 140):
        here = world(tmp_path / str(turns), replace(SPEC, policies=policies))
        run = asyncio.ensure_future(here.go())
        for _ in range(turns):
            await asyncio.sleep(0)
        here.draining.set()
        assert (await run).state in ("running", "done")
        here.restart()
        assert (await here.go()).state == "done"
        plays = Counter(
            row["number"]
            for row in here.query(
                "SELECT DISTINCT number, coalesce(play, id) AS play FROM groups WHERE split = 'train'"
            )
        )
        assert set(plays.values()) == {1}, f"drained after {turns} turns: {plays}"


def pooled(**changes: Any) -> TaskSpec:
    policies = {"solver": ONE, "old": NamedPolicySpec(pool="solver", every=1, size=3)}
    return replace(SPEC, policies=policies, agents={"solver": "solver", "critic": "old"}, **changes)


async def test_a_pool_goes_on_without_its_removed_versions(tmp_path: Path) -> None:
    here = world(tmp_path, pooled(steps=4))
    assert await here.go() == Ending("done")
    kept = here.store.versions.on_disk(here.task)
    assert len(kept) == 3, "those of the pool stay"
    for version in kept[:-1]:
        Path(version.path).unlink()
    here.spec = replace(here.spec, steps=6)
    here.restart()
    assert await here.go() == Ending("done")


@pytest.fixture
async def lender(tmp_path: Path) -> World:
    """Task 1 is done, with two policies, and all of its versions are kept."""
    here = world(tmp_path, replace(SPEC, policies=dict.fromkeys(AGENTS, ONE), keep=KeepSpec(every=1)))
    assert await here.go() == Ending("done")
    here.store.tasks.set_state(here.task, "done")
    return here


def put(here: World, **policies: NamedPolicySpec) -> TaskSpec:
    """Submit a task and make it the world's."""
    spec = replace(SPEC, name="later", policies=policies, agents=dict(zip(AGENTS, policies, strict=True)))
    with Reader(here.home.database) as reader:
        (here.task,) = submit(here.home.database, find_starts([submission(spec)], reader, "tiny"))
    here.spec = spec
    return spec


async def test_a_borrowed_version_stays_while_it_plays(lender: World) -> None:
    put(lender, mine=ONE, yours=NamedPolicySpec(frozen="1/critic@2"))
    critic = next(policy for policy, (name, _) in lender.store.versions.standing(1).items() if name == "critic")
    lender.store.tasks.set_state(lender.task, "running")
    lender.environments.failing = lambda spec: spec.split == "train" and spec.index % 1_000_003 >= 3
    assert (await lender.go()).state == "paused" and steps(lender)["mine"] > 0
    with pytest.raises(AdapterError, match="Task 2 is to begin from version 2, or plays with it"):
        await roll_back(lender.store, 1, 1, "critic")
    await Retention(lender.store, 1, critic).retain(set())
    assert 2 in {version.number for version in lender.store.versions.on_disk(1, "critic")}
    says = "Task 2 is to begin from version 2 of task 1, or plays with it"
    for number in (None, 2):
        with pytest.raises(ConfigError, match=says):
            await delete_versions(lender.store, 1, number, "critic")
    lender.environments.failing = lambda spec: False
    lender.restart()
    assert await lender.go() == Ending("done")
    lender.store.tasks.set_state(lender.task, "done")
    await delete_versions(lender.store, 1, None)


async def test_a_missing_borrowed_version_pauses_the_task(lender: World) -> None:
    put(lender, mine=ONE, yours=NamedPolicySpec(frozen="1/critic@1"))
    for version in lender.store.versions.on_disk(1, "critic"):
        Path(version.path).unlink()
    ending = await lender.go()
    assert ending.state == "paused" and "'1/critic@1', was deleted." in ending.reason.words
    folder = lender.home.adapters / "task-1"
    folder.rename(lender.home.root / "elsewhere")
    ending = await lender.go()
    assert ending.state == "queued" and "task-1: the folder is not there" in ending.reason.words


def of_the_shipped_base(version: Version) -> PolicyState:
    state = read_state(Path(version.path))
    return replace(state, header=replace(state.header, base=NO_FAMILY.fingerprint))


async def test_a_folder_changed_between_runs_is_a_new_version(lender: World, tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    folder.mkdir()
    first, last = (version for version in lender.store.versions.on_disk(1, "solver") if version.number in (1, 3))
    write_peft_folder(folder, of_the_shipped_base(first), "base")
    put(lender, mine=ONE, yours=NamedPolicySpec(frozen=str(folder)))
    lender.environments.failing = lambda spec: spec.split == "train" and spec.index % 1_000_003 >= 3
    assert (await lender.go()).state == "paused"
    write_peft_folder(folder, of_the_shipped_base(last), "base")
    lender.environments.failing = lambda spec: False
    assert await lender.go() == Ending("done"), "the same engine goes on"
    frozen_policies = {entry.checksum for entry in lender.workers.sampler.ledger if "/frozen-" in entry.version}
    assert frozen_policies == {first.checksum, last.checksum}


async def test_both_are_trained_wherever_each_is_served(tmp_path: Path) -> None:
    policies = {**SPEC.policies, "solver": NamedPolicySpec(rank=1, groups_per_step=1)}
    here = world(tmp_path, replace(SPEC, steps=2 * STEPS, policies=policies), samplers=2)
    assert await asyncio.wait_for(here.go(), 50) == Ending("done")
    assert steps(here) == {"solver": 2 * STEPS, "critic": 2 * STEPS}
    assert {name: max(found.values()) for name, found in consumed(here).items()} == {"solver": 1, "critic": 1}
    first, second = (
        {entry.conversation.rpartition("/")[0] for entry in sampler.ledger}
        for sampler in here.workers.samplers.values()
    )
    assert first & second, "in some episodes one was asked here and the other there"


POOL = NamedPolicySpec(pool="solver", every=5, size=3)


def version(number: int) -> Version:
    return Version(id=number, policy=1, number=number, name=f"v{number}", checksum="sum", path=f"/v{number}", size=1)


def opponent_pool(
    numbers: Sequence[int], scores: Mapping[int, float] | None = None, pick: str = "recent"
) -> OpponentPool:
    policy = NamedPolicySpec(pool="solver", every=5, size=3, pick=pick)
    kept = [version(number) for number in sorted(numbers, reverse=True)]
    return OpponentPool("old", policy, 0, lambda: kept, lambda: scores or {})


def drawn(pool: OpponentPool) -> list[int]:
    return [pool.draw(number, 0).number for number in range(400)]


@pytest.mark.parametrize(
    ("numbers", "pool"), [([0], (0,)), ([0, 3, 4], (0,)), ([0, 5, 10, 11, 15, 20], (10, 15, 20)), ([], ())]
)
def test_versions_enter_and_the_oldest_leaves(numbers: list[int], pool: tuple[int, ...]) -> None:
    assert in_pool(numbers, POOL) == pool


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=9, unique=True),
    st.sampled_from(["recent", "uniform", "score"]),
    st.dictionaries(st.integers(0, 100), st.floats(-10, 10)),
)
def test_odds_add_up_and_nobody_is_left_out(numbers: list[int], pick: str, scores: dict[int, float]) -> None:
    odds = weights(sorted(numbers), pick, scores)
    assert sum(odds) == pytest.approx(1.0) and min(odds) > 0


def test_the_young_play_more_often_or_the_strong_or_all_alike() -> None:
    count = {pick: drawn(opponent_pool([0, 5, 10], {0: 0.9, 5: 0.1}, pick)) for pick in ("recent", "uniform", "score")}
    shares = {pick: [played.count(number) / len(played) for number in (0, 5, 10)] for pick, played in count.items()}
    assert shares["recent"] == pytest.approx([1 / 7, 2 / 7, 4 / 7], abs=0.08)
    assert shares["uniform"] == pytest.approx([1 / 3] * 3, abs=0.08)
    assert shares["score"][0] > shares["score"][2] > shares["score"][1], "who was not measured is in the middle"
    assert count["recent"] == drawn(opponent_pool([0, 5, 10])), "a pure function of the group and the pool"
