"""Calls count as work; a sampler that sleeps is woken for tokens, and hears of the rest when it is awake."""

import asyncio

import pytest

from marlaas.engine.fleet.colocated import Announced, Gate, LightSleeper
from marlaas.engine.rollout.protocol import OnTokens, SampleRequest, SampleResult, SamplerLimits, SamplerStats
from marlaas.engine.trajectories import Logprobs, Tokens

FOREVER = 1e9


class Fake:
    """A sampler that writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def limits(self) -> SamplerLimits:
        return SamplerLimits(4, 64)

    async def load(self, version: str, path: str) -> str:
        self.asked.append(f"load {version}")
        return "checksum"

    async def retire(self, version: str) -> None:
        self.asked.append(f"retire {version}")

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        raise ValueError("no tokens here")

    async def release(self, conversation: str) -> None:
        self.asked.append(f"release {conversation}")

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        raise ValueError("no tokens here")

    async def stats(self) -> SamplerStats:
        return SamplerStats(len(self.asked), 0, 0.0, 0, 0)


def given_to_trainer(gate: Gate) -> None:
    with gate.turn("trainer"):
        pass


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
    announced = Announced(Fake(), gate, "sampler")
    with pytest.raises(ValueError, match="no tokens"):
        await announced.generate(None)
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        announced.train  # noqa: B018
    given_to_trainer(gate)  # which the failed call does not keep from the device


async def test_a_sampler_that_is_awake_is_asked_at_once() -> None:
    fake = Fake()
    sleeper = LightSleeper(fake, Gate(FOREVER, holder="sampler"))
    await sleeper.release("a")
    await sleeper.retire("v1")
    assert fake.asked == ["release a", "retire v1"]
    assert (await sleeper.stats()).sampled_tokens == 2
    assert await sleeper.limits() == SamplerLimits(4, 64)


async def test_a_sleeping_sampler_forgets_when_it_wakes() -> None:
    fake, gate = Fake(), Gate(FOREVER, holder="sampler")
    sleeper = LightSleeper(fake, gate)
    before = await sleeper.stats()
    given_to_trainer(gate)
    await sleeper.release("a")
    await sleeper.retire("v1")
    assert fake.asked == [] and await sleeper.stats() == before
    assert await sleeper.load("v2", "file") == "checksum"
    assert fake.asked == ["release a", "retire v1", "load v2"]


async def test_nobody_is_served_before_what_was_put_off_is_done() -> None:
    """Whoever asks next waits for it, too, and goes on with it where the first that asked is gone."""
    goes_on = asyncio.Event()

    class Slow(Fake):
        async def retire(self, version: str) -> None:
            await goes_on.wait()
            await super().retire(version)

    fake, gate = Slow(), Gate(FOREVER, holder="sampler")
    sleeper = LightSleeper(fake, gate)
    given_to_trainer(gate)
    await sleeper.retire("v1")
    first, second = (asyncio.ensure_future(sleeper.load(version, "file")) for version in ("v2", "v3"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert fake.asked == []
    first.cancel()
    await asyncio.wait((first,))
    goes_on.set()
    assert await second == "checksum"
    assert fake.asked == ["retire v1", "load v3"] and first.cancelled()


async def test_what_fails_in_an_awake_sampler_is_raised() -> None:
    sleeper = LightSleeper(Fake(), Gate(FOREVER))
    with pytest.raises(ValueError, match="no tokens"):
        await sleeper.generate(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no tokens"):
        await sleeper.score("v", None, 1, 1.0)  # type: ignore[arg-type]
