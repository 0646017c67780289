"""Held-out prompts are known all or not at all: what could not be seen is looked at again, or the task waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec
from marlaas.engine.machine.services import Services
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.rollout.programs import canned
from marlaas.engine.spec.task import EvalSpec
from marlaas.engine.train.held_out import AT_ONCE, DRAWS, TRIES, HeldOutPrompts
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Ask, Message

from ...queue.scheduler.world import World
from ..test_learning import SPEC

DIED = EpisodeOutcome("error", failure=Failure("the process was killed"), died=True)
RAISED = EpisodeOutcome("error", failure=Failure("no such word", "env.py", 7))


def world_of(root: Path, unseen: Callable[[EpisodeSpec], EpisodeOutcome | None]) -> World:
    world = World(root, replace(SPEC, steps=2, eval=EvalSpec(every=0, prompts=64)))
    world.environments.unseen = unseen
    return world


async def ends(world: World) -> Ending:
    return await asyncio.wait_for(world.go(), 60)


@pytest.mark.parametrize("lost", [DIED, EpisodeOutcome("timeout"), replace(RAISED, overloaded=True)])
async def test_an_incomplete_set_is_never_kept(tmp_path: Path, lost: EpisodeOutcome) -> None:
    world = world_of(tmp_path, lambda spec: lost if spec.index % 10 == 3 else None)
    ending = await ends(world)
    assert (ending.state, ending.reason.code) == ("queued", "blocked")
    assert f"10 of {64 + DRAWS} instances of sums could not be seen in {TRIES} tries" in ending.reason.words
    assert not world.query("SELECT 1 FROM groups"), "nothing was trained on"
    world.environments.unseen = lambda spec: None
    assert await ends(world) == Ending("done"), "it goes on by itself"


async def test_what_failed_once_is_looked_at_again(tmp_path: Path) -> None:
    looked = Counter[tuple[str, int]]()

    def unseen(spec: EpisodeSpec) -> EpisodeOutcome | None:
        looked[spec.split, spec.index] += 1
        return DIED if looked[spec.split, spec.index] < TRIES else None

    world = world_of(tmp_path, unseen)
    assert await ends(world) == Ending("done")
    assert set(looked.values()) == {TRIES}
    assert world.query("SELECT DISTINCT prompts FROM evals") == [{"prompts": 64}]


async def test_where_nothing_is_seen_the_rest_is_not_looked_at(tmp_path: Path) -> None:
    """A program that takes seconds to fail does not keep its task waiting for as long as all instances take."""
    looked = Counter[tuple[str, int]]()

    def unseen(spec: EpisodeSpec) -> EpisodeOutcome:
        looked[spec.split, spec.index] += 1
        return EpisodeOutcome("error", failure=Failure("it ended with exit code 1"))

    world = world_of(tmp_path, unseen)
    ending = await ends(world)
    assert ending.reason.code == "blocked" and "it ended with exit code 1" in ending.reason.words
    assert len(looked) <= AT_ONCE < 64 + DRAWS and max(looked.values()) == TRIES


async def test_what_always_fails_by_itself_is_a_failure_of_its_own(tmp_path: Path) -> None:
    """It has no prompt that training could meet; its evaluation fails, and counts as that."""
    world = world_of(tmp_path, lambda spec: RAISED if spec.index == 3 else None)
    world.environments.failing = lambda spec: spec.index == 3
    assert await ends(world) == Ending("done")
    for row in world.query("SELECT n, failures FROM evals"):
        assert row == {"n": 63, "failures": 1}


async def test_other_rows_under_the_same_code_are_looked_at_anew() -> None:
    """The file that a task names was edited, and so was a comment of its environment: training must not meet the rows
    that are measured now."""

    async def look(lease: Any, spec: EpisodeSpec, opens: object) -> Ask:
        return Ask("agent", (Message("user", f"{lease.digest} {spec.split} {spec.index}"),))

    async def prompt_hash(ask: Ask, room: int) -> bytes:
        return ask.messages[0].content.encode()

    services = SimpleNamespace(
        environments=SimpleNamespace(look=look),
        rollout=SimpleNamespace(prompt_hash=prompt_hash, canned=lambda answer: canned(None, answer)),
        endpoints={"sampler": SimpleNamespace(context=64)},
    )
    held_out = HeldOutPrompts(cast(Services, services), 1, 16)
    for digest in ("before", "after", "before"):
        lease: Any = SimpleNamespace(
            environment="a/a",
            code="c",
            digest=digest,
            config={},
            declared=SimpleNamespace(rows=True),
            cut=False,
        )
        assert await held_out.of(lease) == {f"{digest} eval {index}".encode() for index in range(16)}


async def test_an_environment_that_never_asks_pauses_before_a_play(tmp_path: Path) -> None:
    silent = EpisodeOutcome("ok", {"agent": 1.0})
    world = world_of(tmp_path, lambda spec: silent)
    world.environments.ended = lambda spec: silent
    ending = await ends(world)
    assert (ending.state, ending.reason.code, ending.again) == ("paused", "itself", False)
    assert ending.reason.words.startswith(f"sums never called `ep.ask` in {DRAWS} training instances")
    assert not world.environments.begun, "not one episode"


@pytest.mark.parametrize("other", ["skip", "asks"])
async def test_one_that_asks_seldom_is_trained_on(tmp_path: Path, other: str) -> None:
    """Of instances that are only skipped nothing is known of what it asks; of one that asks, enough."""
    ended = EpisodeOutcome("skip") if other == "skip" else EpisodeOutcome("ok", {"agent": 1.0})
    world = world_of(tmp_path, lambda spec: None if other == "asks" and spec.index % 32 == 5 else ended)
    assert (await ends(world)).state == "done"


async def test_an_edit_that_takes_the_ask_away_pauses_the_task(tmp_path: Path) -> None:
    silent = EpisodeOutcome("ok", {"agent": 1.0})
    world = World(tmp_path, replace(SPEC, steps=1000, eval=EvalSpec(every=0, prompts=4)))
    environments = world.environments

    def score(spec: EpisodeSpec) -> None:
        if len(environments.begun) > 20 and environments.version == "e1":
            environments.version = "e2"
            environments.unseen = environments.ended = lambda spec: silent

    environments.score = score
    ending = await ends(world)
    assert ending.state == "paused" and ending.reason.words.startswith("sums never called `ep.ask` in ")
    assert len(environments.begun) < 20 + DRAWS
