"""A card and a processor as samplers: routes begin with the rates of the devices, and follow what runs there."""

from __future__ import annotations

import pytest

from marlaas.engine.devices.machine import Place, Rates, SamplerAssignment
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.machine.placement.capacity import CORE
from marlaas.engine.machine.routing.router import AGAIN, Router, SamplerEndpoints, rates_at
from marlaas.engine.models.find import load_base
from marlaas.engine.samplers.protocol import SamplerStats
from marlaas.engine.spec.task import ONLY, SamplingSpec, TaskSpec

from ...rollout.endpoints import endpoint
from ...rollout.fake import FakeSampler
from ..placement.imaginary import SERVER, machine

CARD = SamplerAssignment("rollout", "vllm", Place(gpus=("GPU-0",)))
CORES = SamplerAssignment("rollout-2", "torch", Place(cores=(0, 1, 2)))


class Worker(FakeSampler):
    """Takes so many seconds for a token of either kind, and says its totals."""

    def __init__(self, read: float, written: float) -> None:
        super().__init__()
        self.read, self.written = read, written
        self.totals = [0, 0, 0.0]

    def work(self, read: int, written: int) -> None:
        seconds = read * self.read + written * self.written
        self.totals = [self.totals[0] + written, self.totals[1] + read, self.totals[2] + seconds]

    async def stats(self) -> SamplerStats:
        sampled, read, busy = self.totals
        return SamplerStats(int(sampled), int(read), busy, 0, 0)


class Lab:
    """A reader and a writer at both, with a clock of their own; costs are in microseconds."""

    def __init__(self) -> None:
        self.now, self.ledger = 0.0, Ledger()
        self.card, self.cores = Worker(1e-6, 4e-6), Worker(2e-4, 3e-4)
        places = [endpoint(self.card, 8, 512, "rollout"), endpoint(self.cores, 8, 512, "rollout-2")]
        rates = rates_at([CARD, CORES], lambda node: machine("A100"))
        self.endpoints = SamplerEndpoints(places, {}, load_base("tiny"), rates)
        self.router = Router(places, self.endpoints.costs, self.ledger.mixes, lambda: self.now)
        for task in (1, 2):
            self.router.join(
                task, TaskSpec("lab", f"t{task}", "sums", sampling=SamplingSpec(max_tokens=32, max_episode_tokens=256))
            )

    async def routes(self) -> list[set[str]]:
        """Where both are, after both have played and both samplers worked for a while."""
        for task, (read, written) in ((1, (900, 10)), (2, (10, 300))):
            self.ledger.rollout(task, read, written, policy=ONLY)
            self.ledger.environment(task, 0.0)
        for worker in (self.card, self.cores):
            worker.work(90_000, 1_000)
            await self.endpoints.stats(1.0)
            worker.work(1_000, 30_000)
            await self.endpoints.stats(1.0)
        self.now += AGAIN
        return [{share.sampler for share in self.router.shares(task, ONLY)} for task in (1, 2)]


def test_rates_are_those_of_the_devices() -> None:
    found = machine("A100")
    rates = rates_at([CARD, CORES], lambda node: found)
    assert rates["rollout"] == found.gpus[0].rates
    assert rates["rollout-2"] == Rates(3 * CORE.matrix, 3 * CORE.bandwidth), "no core is measured: the usual one"
    assert rates_at([CORES], lambda node: machine()) == rates_at([CARD, CORES], lambda node: None) == {}
    assert SERVER.rates is None


async def test_a_fast_card_has_all_before_anything_ran() -> None:
    """Without the rates each sampler would get a task, and one of them would wait for a processor."""
    lab = Lab()
    assert [{share.sampler for share in lab.router.shares(task, ONLY)} for task in (1, 2)] == [{"rollout"}] * 2
    card, cores = lab.endpoints.costs()
    assert cores.sampled > 20 * card.sampled and cores.prefilled > 100 * card.prefilled


async def test_what_runs_is_believed_and_noise_moves_nobody() -> None:
    lab = Lab()
    assert await lab.routes() == [{"rollout"}] * 2
    lab.card.read, lab.card.written = 1e-4, 9e-4  # others use the card
    for _ in range(60):
        moved = await lab.routes()
    assert moved == [{"rollout"}, {"rollout-2"}], "the writer goes to the processor"
    for waver in (1.06, 0.95, 1.04, 0.97):
        lab.card.read, lab.card.written = waver * 1e-4, waver * 9e-4
        assert await lab.routes() == moved
    lab.card.read, lab.card.written = 1e-6, 4e-6
    for _ in range(60):
        moved = await lab.routes()
    assert moved == [{"rollout"}] * 2


async def test_turns_are_counted_by_what_tokens_cost_there() -> None:
    lab = Lab()
    await lab.routes()
    for _ in range(20):
        await lab.routes()
    backlogs = [one.backlog for one in lab.endpoints.by_name.values()]
    assert [one.read for one in backlogs] == pytest.approx([1e-6, 2e-4], rel=0.1)
    assert [one.written for one in backlogs] == pytest.approx([4e-6, 3e-4], rel=0.1)
