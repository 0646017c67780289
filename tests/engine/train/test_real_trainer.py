"""What the real trainer refuses, as a task's person sees it: states of another base, and ranks that no slot takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.fairness.line import Ledger, Line
from marlaas.engine.machine.trainers import SharedTrainer, TrainerPool
from marlaas.engine.models.find import load_base
from marlaas.engine.spec.task import PolicySpec
from marlaas.engine.train.opening import open_policy
from marlaas.engine.trainer.torch_trainer import TorchTrainer

from ..queue.scheduler.world import World
from .test_learning import SPEC as FAKE

SPEC = replace(FAKE, train=replace(FAKE.train, learning_rate=1e-3))

NewTrainer = Callable[..., TorchTrainer]


@pytest.fixture
def new_trainer() -> Iterator[NewTrainer]:
    made: list[TorchTrainer] = []

    def new(fingerprint: str, largest_rank: int = 256) -> TorchTrainer:
        made.append(TorchTrainer(str(load_base("tiny").path), fingerprint, sync=False, largest_rank=largest_rank))
        return made[-1]

    yield new
    for trainer in made:
        trainer.shutdown()


async def test_a_state_of_another_base_is_void(tmp_path: Path, new_trainer: NewTrainer) -> None:
    world = World(tmp_path, SPEC)
    services = replace(await world.services(), trainer=new_trainer("there"))
    policy = services.store.versions.policy(world.task, "policy", {})
    foreign = await open_policy(services, world.task, policy, "policy", SPEC)
    opened = await open_policy(replace(services, trainer=new_trainer("here")), world.task, policy, "policy", SPEC)
    assert [row["state"] for row in world.query("SELECT state FROM versions ORDER BY id")] == ["void", "committed"]
    assert opened.name != foreign.name and read_state(Path(opened.path)).header.base == "here"
    messages = [row["message"] for row in world.query("SELECT message FROM events WHERE kind = 'recovery'")]
    assert f"Version {foreign.name} cannot be used and is void: The state belongs to base model there" in messages[0]


async def test_a_rank_that_no_slot_takes_fails_its_task(tmp_path: Path, new_trainer: NewTrainer) -> None:
    world = World(tmp_path, replace(SPEC, policy=PolicySpec(rank=2)))
    world.trainers = TrainerPool([SharedTrainer(new_trainer("here", largest_rank=1), Line(), Ledger())])
    ending = await asyncio.wait_for(world.go(), 50)
    assert ending.state == "failed" and not ending.again
    assert "but a slot takes 1 at most: lower `rank` in the task file" in ending.reason.words
