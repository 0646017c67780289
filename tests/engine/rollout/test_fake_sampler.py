"""The version-ledger fake keeps the sampler contract, so that what is tested with it holds for real samplers."""

import pytest

from marlaas.engine.samplers.protocol import Sampler

from .contract.asking import State, request
from .contract.whole import PositionalContract
from .fake import FakeSampler


class TestFakeSampler(PositionalContract):
    @pytest.fixture
    async def sampler(self, state: State) -> Sampler:
        fake = FakeSampler()
        for number in (0, 1):
            await fake.load(f"v{number}", str(state(number)))
        return fake


async def test_the_ledger_tells_who_served_what(state: State) -> None:
    fake = FakeSampler()
    digest = await fake.load("v0", str(state(0)))
    await fake.generate(request("a", max_tokens=3))
    (entry,) = fake.ledger
    assert (entry.conversation, entry.version, entry.checksum, entry.start, entry.sampled) == ("a", "v0", digest, 5, 3)
