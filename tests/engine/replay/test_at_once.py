"""A replay of many groups opens no more files than its environment did in training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.replay import AT_ONCE, Replay, at_once, summarise
from marlaas.engine.rollout.toolcalls import split_hermes as calls
from marlaas.engine.spec.task import NamedPolicySpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.queries.episodes import RecordedAgent, RecordedEpisode, RecordedGroup
from marlaas.engine.store.rows import Turn
from marlaas.plugins.messages import Ask, Reply

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
GROUPS, MEMBERS = 512, 8


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
async def test_512_groups_of_8_do_not_open_too_many_files(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "pipes.py").write_text(PIPES)
    service = EnvironmentService([tmp_path / "plugins"], tmp_path / "scratch")
    await service.start()
    try:
        with await service.bind("pipes/pipes") as lease:
            found = await Replay(service, lease, spec(), "train", calls).run(recorded())
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
