"""Whole tasks are replayed from their rows: what was said is said again, and each reward is compared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marlaas.engine.environments.process.wire import Described
from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec, Ranking
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.replay import (
    AT_ONCE,
    BeyondRecord,
    Playback,
    Replayed,
    Summary,
    Verdict,
    at_once,
    replay,
    summarise,
    verdicts,
)
from marlaas.engine.rollout.toolcalls import split_hermes as calls, split_hermes as split
from marlaas.engine.spec.task import EvalSpec, NamedPolicySpec, PolicySpec, SamplingSpec, TaskSpec, TrainSpec, parse
from marlaas.engine.store.queries.episodes import RecordedAgent, RecordedEpisode, RecordedGroup, recorded_groups
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import Turn
from marlaas.engine.trajectories import Failure, Split
from marlaas.plugins.messages import Ask, Fork, Message, Reply, ToolCall

from .queue.scheduler.world import World
from .train.test_learning import SPEC


@pytest.fixture(params=["one turn", "used up", "rewritten", "two agents"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A home with a task that is done; its episodes have these shapes by turns."""
    made = World(tmp_path, replace(SPEC, steps=2))
    made.environments.turns = 1 if request.param == "one turn" else 4
    made.renderer.rewrites = request.param == "rewritten"
    if request.param == "two agents":
        made.environments.agents = ("first", "second")
    assert await asyncio.wait_for(made.go(), 50) == Ending("done")
    return made


async def replayed(world: World, split: Split = "train", ranked: bool = False, last: int = 100) -> list[Verdict]:
    lease: Any = SimpleNamespace(declared=Described("sums", 60.0, "", (), ranked=ranked))
    with Reader(world.home.database) as recordings:
        spec = parse(recordings.task_config(world.task), "task")
        groups = recorded_groups(recordings, world.task, split, last)
    return await replay(cast(EnvironmentService, world.environments), lease, spec, split, calls, groups)


def counted(found: Sequence[Verdict]) -> Summary:
    return replace(summarise(found), mean_before=None, mean_after=None)


async def test_the_same_environment_gives_the_same_rewards(world: World) -> None:
    agents = len(world.environments.agents)
    train = await replayed(world)
    assert counted(train) == Summary(8 * agents, 8 * agents, 0, 0, 0, None, None)
    held_out = await replayed(world, "eval")
    assert {verdict.kind for verdict in held_out} == {"unchanged"}
    assert [verdict.step for verdict in held_out] == [0] * 3 * agents + [2] * 3 * agents
    assert [verdict.group for verdict in await replayed(world, last=1)] == [3] * 2 * agents


async def test_tokens_that_were_given_up_are_not_missed(world: World) -> None:
    policy = world.query("SELECT id FROM policies")[0]["id"]
    while world.store.experience.shrink(policy, 2):
        pass
    assert world.query("SELECT max(length(tokens)) AS most FROM trajectories")[0]["most"] == 0
    assert {verdict.kind for verdict in await replayed(world)} == {"unchanged"}


async def test_other_rewards_and_other_prompts_are_told_apart(world: World) -> None:
    world.environments.score = lambda spec: 7.0
    found = await replayed(world)
    assert {(verdict.kind, verdict.new) for verdict in found} == {("changed", 7.0)}
    world.environments.failing = lambda spec: spec.member == 1
    assert {(verdict.kind, verdict.member) for verdict in await replayed(world)} == {("changed", 0), ("failing", 1)}
    world.environments.failing = lambda spec: False
    world.environments.turns += 1
    if world.environments.turns == 2:  # else the agents had no room left, and are silent once more
        found = await replayed(world)
        assert {(verdict.kind, verdict.new) for verdict in found} == {("not comparable", None)}
    world.environments.ask_for = lambda spec, turn, agent: replace(  # type: ignore[method-assign]
        type(world.environments).ask_for(world.environments, spec, turn, agent), messages=()
    )
    assert {verdict.kind for verdict in await replayed(world)} == {"not comparable"}


async def test_members_are_ranked_as_in_training(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, steps=2))
    world.environments.ranking = lambda members: Ranking(tuple({"agent": float(n)} for n, _ in enumerate(members)))
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    assert {verdict.kind for verdict in await replayed(world, ranked=True)} == {"unchanged"}
    assert {verdict.kind for verdict in await replayed(world, "eval", ranked=True)} == {"unchanged"}
    world.environments.ranking = lambda members: EpisodeOutcome("error")
    assert {verdict.kind for verdict in await replayed(world, ranked=True)} == {"failing"}

    def only_the_first(spec: EpisodeSpec) -> bool:
        return spec.member == 0

    world.environments.failing = only_the_first
    found = await replayed(world, ranked=True)
    assert {verdict.kind for verdict in found if verdict.member == 0} == {"failing"}
    assert {verdict.new for verdict in found if verdict.member == 1} <= {0.0, 1.0}, "its own: nobody is left to compare"


async def test_what_all_policies_said_is_played_again_together(tmp_path: Path) -> None:
    """Two that learn, of batches of their own, and one that is frozen: the reward is of what all three said."""
    policies = {
        "solver": NamedPolicySpec(rank=1, groups_per_step=1),
        "critic": NamedPolicySpec(rank=1, groups_per_step=2),
        "judge": NamedPolicySpec(rank=1, frozen="base"),
    }
    spec = replace(SPEC, policy=PolicySpec(), policies=policies, agents={name: name for name in policies}, steps=2)
    world = World(tmp_path, replace(spec, eval=EvalSpec(every=0, prompts=2)))
    world.environments.agents = tuple(policies)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    found = await replayed(world)
    assert {verdict.kind for verdict in found} == {"unchanged"}
    assert sorted((one.group, one.member, one.agent) for one in found) == [
        (group, member, agent) for group in range(4) for member in range(2) for agent in sorted(policies)
    ]
    steps = {(one.group, one.agent): one.step for one in found}
    assert [steps[group, "solver"] for group in range(4)] == [1, 2, 2, 2], "from group 2 on it only speaks"
    assert [steps[group, "critic"] for group in range(4)] == [1, 1, 2, 2]
    assert {one.group for one in await replayed(world, last=1)} == {3}
    assert {verdict.kind for verdict in await replayed(world, "eval")} == {"unchanged"}
    world.environments.score = lambda spec: 7.0
    assert {(one.kind, one.new) for one in await replayed(world)} == {("changed", 7.0)}


CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "f"}}


def playback(turns: str, replies: tuple[int, ...], cut: bool = False, max_tokens: int = 8) -> Playback:
    """``turns``: lines of "role: text"."""
    told = tuple(Turn(*line.strip().split(": ", 1)) for line in turns.strip().splitlines())
    recorded = RecordedEpisode(0, "ok", {"agent": RecordedAgent(told, replies, 1.0, cut)})
    return Playback(recorded, max_tokens, split)


def ask(*messages: str, role: str = "user", **options: object) -> Ask:
    return Ask("agent", tuple(Message(role, text) for text in messages), **options)  # type: ignore[arg-type]


async def test_replies_come_again_with_thoughts_and_calls() -> None:
    played = playback(
        f"""
        user: price?
        thinking: let me see
        assistant: look {CALL}
        tool: 3
        thinking: cut off in the middle
        user: so?
        assistant: three
        """,
        replies=(5, 8, 2),
    )
    assert await played(ask("price?", tools=(TOOL,))) == Reply(
        "look", "tool", 0, (ToolCall("f", {"x": 1}),), "let me see"
    )
    assert played.unheard == "it ends after 1 of 3 replies"
    assert await played(ask("3", role="tool")) == Reply("", "length", 1, (), "cut off in the middle")
    assert await played(ask("so?")) == Reply("three", "stop", 2)
    assert not played.unheard


async def test_a_stop_is_cut_off_and_a_limit_is_told() -> None:
    played = playback("user: a\nassistant: x;y\nuser: b\nassistant: xyz\nuser: c\nassistant: z", (3, 3, 3), cut=True)
    assert await played(ask("a", stop=(";",))) == Reply("x", "stop", 0)
    assert await played(ask("b", max_tokens=3)) == Reply("xyz", "length", 1)
    assert await played(ask("c")) == Reply("z", "length", 2), "the last one was cut, as the record says"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (ask("b"), "it says 'b' where it said 'a'"),
        (ask("a", role="tool"), "it speaks as tool where it spoke as user"),
        (ask("a", "b"), "it says more to the agent 'agent' than it did then"),
    ],
)
async def test_another_prompt_ends_the_replay(asked: Ask, says: str) -> None:
    played = playback("user: a\nassistant: x\nuser: c\nassistant: y", replies=(1, 1))
    with pytest.raises(BeyondRecord, match=says):
        await played(asked)


async def test_more_asks_than_replies_end_the_replay() -> None:
    played = playback("user: a\nassistant: x", replies=(1,))
    await played(ask("a"))
    with pytest.raises(BeyondRecord, match="more often than it did then"):
        await played(ask("b"))
    with pytest.raises(BeyondRecord, match="whom nobody asked then"):
        await played(Ask("other", (Message("user", "a"),)))


async def test_a_fork_with_a_name_goes_on_in_its_own_words() -> None:
    turns = (Turn("user", "and?"), Turn("assistant", "four"))
    agents = {
        "agent": RecordedAgent((Turn("user", "a"), Turn("assistant", "x")), (1,), 1.0, False),
        "judge": RecordedAgent(turns, (1,), 0.0, False),
    }
    played = Playback(RecordedEpisode(0, "ok", agents), 8, split)
    await played(ask("a"))
    left = Ask("judge", (Message("user", "and?"),), fork=Fork("agent", 0, 1))
    assert await played(left) == Reply("four", "stop", 1)
    assert not played.unheard
    with pytest.raises(BeyondRecord, match="branches"):
        await played(Ask("agent", (Message("user", "b"),), branch=1, fork=Fork("agent", 0, 1)))


OLD = RecordedEpisode(2, "ok", {"agent": RecordedAgent((), (), 0.5, False, 4)}, {"style": 1.0, "length": 3.0})
FAILED = RecordedEpisode(2, "error", {"agent": RecordedAgent((), (), None, False, 4)}, failure="KeyError: 'x'")
SILENT = RecordedEpisode(2, "error", {}, failure="no row")


def ok(reward: float, **parts: float) -> EpisodeOutcome:
    return EpisodeOutcome("ok", {"agent": reward}, parts)


def group(*episodes: RecordedEpisode) -> RecordedGroup:
    return RecordedGroup(7, 7, "v1", 4, episodes)


@pytest.mark.parametrize(
    ("replayed", "kind", "new", "reason"),
    [
        (Replayed(OLD, ok(0.5)), "unchanged", 0.5, ""),
        (Replayed(OLD, ok(0.25, style=1.0, length=2.0, new=1.0)), "changed", 0.25, "length 3 → 2, new - → 1"),
        (Replayed(OLD, EpisodeOutcome("ok", {"agent": -1.0}, invalid="no move")), "changed", -1.0, "invalid: no move"),
        (Replayed(OLD, EpisodeOutcome("skip")), "changed", None, "the episode ends as skip"),
        (Replayed(FAILED, ok(1.0)), "changed", 1.0, "it had no reward: KeyError: 'x'"),
        (Replayed(FAILED, EpisodeOutcome("skip")), "unchanged", None, ""),
        (
            Replayed(OLD, EpisodeOutcome("error", failure=Failure("boom", "p.py", 3))),
            "failing",
            None,
            "boom (p.py:3)",
        ),
        (Replayed(OLD, EpisodeOutcome("timeout")), "failing", None, "timeout"),
        (Replayed(OLD, ok(0.5), "it says 'b'"), "not comparable", 0.5, "it says 'b'"),
        (Replayed(OLD, None, "it asks more"), "not comparable", None, "it asks more"),
        (Replayed(SILENT, EpisodeOutcome("error", failure=Failure("no row"))), "failing", None, "no row"),
    ],
)
def test_what_became_of_a_reward(replayed: Replayed, kind: str, new: float | None, reason: str) -> None:
    (verdict,) = verdicts(group(replayed.recorded), [replayed])
    assert (verdict.kind, verdict.new, verdict.reason) == (kind, new, reason)
    assert (verdict.step, verdict.group, verdict.member) == (4, 7, 2)


def test_agents_that_spoke_have_own_steps_and_verdicts() -> None:
    agents = {"a": RecordedAgent((), (), 1.0, False, 3), "b": RecordedAgent((), (), 0.0, False, None)}
    replayed = Replayed(RecordedEpisode(0, "ok", agents), EpisodeOutcome("ok", {"a": 1.0, "b": 0.5, "silent": 0.0}))
    found = verdicts(group(), [replayed])
    assert [(one.agent, one.step, one.kind) for one in found] == [("a", 3, "unchanged"), ("b", None, "changed")]


def test_means_are_over_what_can_be_compared() -> None:
    replayed = [
        Replayed(OLD, ok(0.5)),
        Replayed(OLD, ok(1.0)),
        Replayed(FAILED, ok(1.0)),
        Replayed(OLD, ok(0.0), "it says 'b'"),
        Replayed(OLD, EpisodeOutcome("error")),
    ]
    found = summarise(verdicts(group(), replayed))
    assert (found.rewards, found.unchanged, found.changed, found.not_comparable, found.failing) == (5, 1, 2, 1, 1)
    assert (found.mean_before, found.mean_after) == (0.5, 0.75)
    assert summarise([]).mean_before is None


PIPES = """
import asyncio, os
from marlaas.plugins import env

alive = most = 0

@env
async def pipes(ep):
    global alive, most
    reply = await ep.ask("how many?")
    alive += 1
    most = max(most, alive)
    ends = os.pipe()
    try:
        await asyncio.sleep(0.01)  # as long as another reply takes to come
    finally:
        alive -= 1
        for end in ends:
            os.close(end)
    return len(reply.text)

@env
async def peak(ep):
    await ep.ask("how many were there?")
    return most
"""

GROUPS, MEMBERS = 96, 8


def recorded() -> list[RecordedGroup]:
    turns = Turn("user", "how many?"), Turn("assistant", "one")
    agent = RecordedAgent(turns, (3,), 3.0, False)
    episodes = tuple(RecordedEpisode(member, "ok", {"agent": agent}) for member in range(MEMBERS))
    return [RecordedGroup(number, number, "old", 1, episodes) for number in range(GROUPS)]


def spec(**train: Any) -> TaskSpec:
    return TaskSpec(
        tenant="t",
        name="n",
        environment="pipes",
        steps=1,
        train=TrainSpec(**train),
        sampling=SamplingSpec(max_tokens=32, max_episode_tokens=256),
    )


@pytest.mark.processes
@pytest.mark.timeout(120)
async def test_many_groups_do_not_open_too_many_files(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "pipes.py").write_text(PIPES)
    service = EnvironmentService([tmp_path / "plugins"], tmp_path / "scratch")
    await service.start()
    try:
        with await service.bind("pipes/pipes") as lease:
            found = await replay(service, lease, spec(), "train", calls, recorded())
        with await service.bind("pipes/peak") as lease:
            peak = await service.play(lease, EpisodeSpec("train", 0, 0, 0), _silent)
    finally:
        await service.stop()
    summary = summarise(found)
    assert (summary.rewards, summary.unchanged, summary.failing) == (GROUPS * MEMBERS, GROUPS * MEMBERS, 0)
    assert 1 < peak.rewards["agent"] <= AT_ONCE


async def _silent(ask: Ask) -> Reply:
    return Reply("", "stop", 0)


def test_as_many_at_once_as_training_has_alive() -> None:
    assert at_once(spec()) == AT_ONCE == 64
    assert at_once(spec(max_staleness=0, groups_per_step=2, group_size=4)) == 8
    small = spec(max_staleness=1, groups_per_step=2, group_size=2)
    assert at_once(small) == 8
    assert at_once(replace(small, policies={"a": NamedPolicySpec(groups_per_step=4), "b": NamedPolicySpec()})) == 16
