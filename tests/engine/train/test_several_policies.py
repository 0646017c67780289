"""Tasks of several policies: each has its own groups, steps and versions, and all play together."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec
from marlaas.engine.errors import ConfigError
from marlaas.engine.queue.scheduler.commands import delete_versions, roll_back
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import EvalSpec, KeepSpec, NamedPolicySpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.plugins.messages import Answer

from ..queue.scheduler.fake_environments import FakeEnvironments
from ..queue.scheduler.world import World

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


async def test_a_policy_steps_when_its_own_batch_is_there(tmp_path: Path) -> None:
    policies = {
        "solver": NamedPolicySpec(rank=1, groups_per_step=1),
        "critic": NamedPolicySpec(rank=1, groups_per_step=3),
    }
    here = world(tmp_path, replace(SPEC, policies=policies))
    assert await here.go() == Ending("done")
    assert steps(here) == {"solver": STEPS, "critic": STEPS}
    counts = {name: len(numbers) for name, numbers in consumed(here).items()}
    assert counts == {"solver": STEPS, "critic": 3 * STEPS}


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


async def test_what_was_played_before_an_engine_died_is_taken_up(tmp_path: Path) -> None:
    here = world(tmp_path)
    here.environments.failing = lambda spec: spec.split == "train" and spec.index % 1_000_003 >= 3
    assert (await here.go()).state == "paused"
    before = here.query("SELECT count(*) AS n FROM groups WHERE split = 'train'")[0]["n"]
    here.environments.failing = lambda spec: False
    here.restart()
    assert await here.go() == Ending("done") and before >= 6
    once = Counter({(number, number // 2 + 1): 1 for number in range(2 * STEPS)})
    assert consumed(here) == {"solver": once, "critic": once}


async def test_a_group_lost_for_one_policy_is_replayed_alone(tmp_path: Path) -> None:
    here = world(tmp_path)
    assert await here.go() == Ending("done")
    critic = here.query("SELECT id FROM policies WHERE name = 'critic'")[0]["id"]
    for version in here.store.versions.candidates(critic):
        if version.number > 1:
            Path(version.path).unlink()
    here.restart()
    before = here.query("SELECT coalesce(max(id), 0) AS n FROM groups")[0]["n"]
    assert (await here.go()).state == "done"
    assert steps(here) == {"solver": STEPS, "critic": STEPS}
    anew = here.query(
        "SELECT DISTINCT p.name FROM groups g JOIN policies p ON p.id = g.policy"
        f" WHERE g.id > {before} AND g.split = 'train'"
    )
    assert [row["name"] for row in anew] in ([], ["critic"])


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


@pytest.mark.parametrize("pick", ["recent", "uniform", "score"])
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


async def test_an_agent_without_a_policy_is_named(tmp_path: Path) -> None:
    here = world(tmp_path)
    here.environments.agents = ("solver", "stranger")
    ending = await here.go()
    assert ending.state == "paused", ending.reason
    assert "no policy acts as its agent 'stranger'" in ending.reason.words


async def test_the_engine_drains_and_the_next_one_goes_on(tmp_path: Path) -> None:
    here = world(tmp_path, replace(SPEC, steps=20))
    assert await here.go(lambda learner: here.draining.set()) == Ending("running")
    here.restart()
    assert await here.go() == Ending("done")
    assert steps(here) == {"solver": 20, "critic": 20}
    assert all(set(numbers.values()) == {1} for numbers in consumed(here).values())


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
