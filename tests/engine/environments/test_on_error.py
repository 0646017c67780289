"""Exceptions that an environment pays for, in its process: with a reward, their line, and only after a reply."""

from __future__ import annotations

import pytest

from .conftest import World, a_spec, echoing

pytestmark = pytest.mark.processes

PLUGIN = """
import os, time
from marlaas.plugins import env

async def speak(ep, how: str = "raises"):
    if how == "before":
        raise ValueError("too early")
    await ep.ask(how)
    ep.reward(0.25)
    if how == "memory":
        raise MemoryError
    if how == "dies":
        os._exit(3)
    if how == "none":
        return None, None
    raise ValueError(how)  # here

def block(ep, how: str = "raises"):
    ep.ask(how)
    raise ValueError(how)

speaking = env(name="speaking", on_error=-0.5)(speak)
unpaid = env(name="unpaid")(speak)
blocking = env(name="blocking", on_error=0.0)(block)

@env(name="held", on_error=1)
class Held:
    async def play(self, ep):
        await ep.ask("x")
        raise ValueError("lost")
"""
LINE = next(number for number, line in enumerate(PLUGIN.splitlines(), 1) if line.endswith("# here"))


async def test_an_exception_after_a_reply_is_paid_for_and_shown(world: World) -> None:
    world.save("paying.py", PLUGIN)
    await world.service.start()
    with await world.service.bind("speaking") as lease:
        outcome = await world.service.play(lease, a_spec(how="raises"), echoing, counts=True)
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": -0.25})
    assert outcome.failure is not None and (outcome.failure.file, outcome.failure.line) == ("paying.py", LINE)
    assert outcome.failure.message == "ValueError: raises"
    assert (await world.play("blocking")).rewards == {"agent": 0.0}
    assert (await world.play("held")).rewards == {"agent": 1.0}
    assert [one.failure for one in world.service.outcomes.take().failures] == [outcome.failure]


@pytest.mark.parametrize(
    ("name", "how"),
    [("speaking", "before"), ("speaking", "memory"), ("speaking", "none"), ("speaking", "dies"), ("unpaid", "raises")],
)
async def test_nothing_else_is_paid_for(world: World, name: str, how: str) -> None:
    world.save("paying.py", PLUGIN)
    await world.service.start()
    outcome = await world.play(name, how=how)
    assert outcome.status == "error" and not outcome.rewards and outcome.died is (how == "dies")
