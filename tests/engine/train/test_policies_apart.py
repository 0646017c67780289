"""Policies of one task at different samplers, each moving by itself: a play asks each where it is served."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import NamedPolicySpec

from .test_several_policies import SPEC, STEPS, consumed, steps, world


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
