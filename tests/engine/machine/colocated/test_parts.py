"""Calls count as work while they last."""

import asyncio

import pytest

from marlaas.engine.machine.colocated import Announced, Gate

FOREVER = 1e9


async def test_a_service_has_work_for_as_long_as_a_call_of_it_lasts() -> None:
    gate = Gate(FOREVER)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    class Trainer:
        async def accumulate(self, policy: str) -> str:
            with gate.turn("trainer"):
                begun.set()
            await goes_on.wait()
            return f"done with {policy}"

    call = asyncio.create_task(Announced(Trainer(), gate, "trainer").accumulate("p"))
    await begun.wait()
    assert gate.turns.more
    goes_on.set()
    assert await call == "done with p" and not gate.turns.more


async def test_an_announced_service_fails_as_it_does_itself() -> None:
    gate = Gate(FOREVER)

    class Sampler:
        async def generate(self, request: object) -> None:
            raise ValueError("no tokens here")

    announced = Announced(Sampler(), gate, "sampler")
    with pytest.raises(ValueError, match="no tokens"):
        await announced.generate(None)
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        announced.train  # noqa: B018
    with gate.turn("trainer"):  # the failed call does not keep the device
        pass
