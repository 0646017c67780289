"""What is known of several samplers while they work: who answers is believed, who does not is left out."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.devices.machine import Cpu, Gpu, Machine, Place, SamplerAssignment, SamplerKind
from marlaas.engine.fairness.line import Standing, together
from marlaas.engine.machine.routing.router import SamplerEndpoints, device_of, repeats
from marlaas.engine.models.find import load_base
from marlaas.engine.samplers.protocol import SamplerStats

from ...rollout.endpoints import endpoint
from ...rollout.fake import FakeSampler


class Working(FakeSampler):
    """Says totals that a test sets; None: nothing at all."""

    totals: SamplerStats | None = SamplerStats(0, 0, 0.0, 0, 0)

    async def stats(self) -> SamplerStats:
        if self.totals is None:
            await asyncio.Event().wait()
        assert self.totals is not None
        return self.totals


async def test_costs_are_learnt_and_silence_delays_nobody() -> None:
    reads, silent = Working(), Working()
    endpoints = SamplerEndpoints([endpoint(reads, 1, 8), endpoint(silent, 1, 8, "rollout-2")], {}, load_base("tiny"))
    guess, other = endpoints.costs()
    silent.totals = None
    for step in range(1, 6):
        reads.totals = SamplerStats(100 * step, 1000 * step, 2.0 * step, 1, 0)
        assert list(await endpoints.stats(0.01)) == ["rollout"]
    learnt, untouched = endpoints.costs()
    assert untouched == other and learnt.name == "rollout"
    assert learnt.prefilled * 1000 + learnt.sampled * 100 == pytest.approx(2.0, rel=0.05) and learnt != guess


@pytest.mark.parametrize(
    ("kind", "gpus", "stored", "expected"),
    [
        ("torch", (), "f32", True),
        ("llama.cpp", (), "q8_0", True),
        ("llama.cpp", (), "q4_k_m", False),
        ("llama.cpp", ("GPU-1",), "f32", False),
        ("vllm", (), "f32", False),
    ],
)
def test_what_repeats_itself_to_the_last_bit(
    kind: SamplerKind, gpus: tuple[str, ...], stored: str, expected: bool
) -> None:
    assert repeats(SamplerAssignment("rollout", kind, Place(gpus=gpus)), stored) is expected


def test_lines_before_one_stage_are_told_as_one() -> None:
    lines = [[Standing("ann", 2, 0.0), Standing("bob", 1, 5.0)], [Standing("bob", 3, 7.0)]]
    assert together(lines) == [Standing("ann", 2, 0.0), Standing("bob", 4, 7.0)]


async def test_samplers_that_are_alike_cost_alike() -> None:
    """Few conversations in a pass take nearly as long as many: the one that is asked little must not look slow."""
    much, little, other = Working(), Working(), Working()
    places = [endpoint(sampler, 1, 8, name) for sampler, name in ((much, "a"), (little, "b"), (other, "c"))]
    for place in places[:2]:
        place.alike = "torch, f32, 1 cores"
    endpoints = SamplerEndpoints(places, {}, load_base("tiny"))
    for step in range(1, 6):
        much.totals = SamplerStats(1000 * step, 1000 * step, 1.0 * step, 1, 0)
        little.totals = SamplerStats(100 * step, 100 * step, 0.5 * step, 1, 0)
        other.totals = SamplerStats(100 * step, 100 * step, 0.5 * step, 1, 0)
        await endpoints.stats(1.0)
    (first, second, third), shared = endpoints.costs(), 1.5 / 1100
    assert [cost.name for cost in endpoints.costs()] == ["a", "b", "c"]
    assert (first.prefilled, first.sampled) == (second.prefilled, second.sampled)
    assert first.prefilled + first.sampled == pytest.approx(shared, rel=0.05)
    assert third.prefilled + third.sampled == pytest.approx(0.5 / 100, rel=0.05)


def test_devices_are_alike_that_have_one_name() -> None:
    cards = tuple(Gpu(n, f"GPU-{n}", "A100" if n < 2 else "T4", "cuda", 1, 1) for n in range(3))
    machine = Machine(Cpu((), 1, 1), cards)
    words = [device_of(SamplerAssignment("rollout", "vllm", Place(gpus=(card.uuid,))), machine) for card in cards]
    assert words == ["A100", "A100", "T4"]
    assert device_of(SamplerAssignment("rollout", "vllm", Place(gpus=("GPU-9",))), machine) == ""
    assert device_of(SamplerAssignment("rollout", "torch", Place(cores=(0, 1))), None) == "2 cores"
