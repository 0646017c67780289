"""Calls of a service on a shared device."""

import pytest

from marlaas.engine.machine.colocated import Announced, Gate


async def test_an_announced_service_fails_as_it_does_itself() -> None:
    gate = Gate()

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
