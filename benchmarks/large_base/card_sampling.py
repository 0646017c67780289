"""Tokens a second that a sampler makes under 1, 8 and 32 adapters: a stage flows in, rows flow out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from marlaas.engine.devices.machine import SamplerKind
from marlaas.engine.rollout.protocol import Sampler, SampleRequest

from ..report.figures import Row, Series
from .card_stage import CONTEXT, CONVERSATIONS, MOST_ADAPTERS, Stage
from .half_billion_sampling import write_adapter

PROMPT, REPLY = 64, 128


async def sampling(stage: Stage, kind: SamplerKind, counts: Sequence[int], window: float) -> list[Row]:
    """Each number of adapters for ``window`` seconds, after a wave that warms up. Counts that have no time are left."""
    state = stage.folder / "adapter.state"
    if not state.exists():
        write_adapter(stage.base, state)
    worker = await stage.sampler(kind).spawn(stage.folder)
    rows: list[Row] = []
    try:
        sampler: Sampler = worker.proxy(Sampler, posted=("release",))
        held = (await sampler.limits()).sequences
        for version in range(MOST_ADAPTERS):
            await sampler.load(f"v{version}", str(state))
        await _turn(sampler, stage, 0, "v0", "warm", 0)
        for adapters in counts:
            if stage.clock.left < window:
                break
            rows += _rows(stage, kind, adapters, held, await _rate(sampler, stage, adapters, held, window))
    finally:
        await worker.stop()
    return rows


async def _rate(sampler: Sampler, stage: Stage, adapters: int, held: int, window: float) -> float:
    """Tokens a second while ``held`` conversations go on, each a new one when it has ended."""
    end = perf_counter() + window

    async def talk(place: int) -> None:
        number = 0
        while perf_counter() < end:
            await _turn(sampler, stage, place, f"v{place % adapters}", f"{adapters}/{place}/{number}", number)
            number += 1

    talks = [asyncio.create_task(talk(place)) for place in range(min(held, CONVERSATIONS))]
    await asyncio.sleep(window / 4)  # prompts first: then everybody is at another place of a reply
    begun, started = await sampler.stats(), perf_counter()
    await asyncio.sleep(max(0.0, end - perf_counter()))
    ended, seconds = await sampler.stats(), perf_counter() - started
    for task in talks:
        task.cancel()
    await asyncio.gather(*talks, return_exceptions=True)
    return (ended.sampled_tokens - begun.sampled_tokens) / seconds


async def _turn(sampler: Sampler, stage: Stage, place: int, version: str, name: str, seed: int) -> None:
    random = np.random.default_rng((place, seed))
    prompt = random.integers(0, stage.base.config.vocab_size, PROMPT).astype(np.int32)
    most = min(REPLY, CONTEXT - PROMPT)
    try:
        await sampler.generate(SampleRequest(name, version, prompt, most, 1.0, (), place << 32 | seed))
    finally:
        await sampler.release(name)


def _rows(stage: Stage, kind: SamplerKind, adapters: int, held: int, rate: float) -> list[Row]:
    who = f"{kind}, {adapters} adapter{'' if adapters == 1 else 's'}, {held} conversations"
    rows = [Row(f"sampled by {who}", "tokens/s", Series((rate,)), higher_is_better=True)]
    if stage.rates is not None:
        weights = stage.layers + stage.head
        matrix = 100 * rate * 2 * weights / stage.rates.matrix
        rows.append(Row("… share of the matrix rate", "%", Series((matrix,)), higher_is_better=True))
        width = 2 if stage.gpu else 4
        read = 100 * rate / held * width * weights / stage.rates.bandwidth
        rows.append(Row("… share of the bandwidth, weights alone", "%", Series((read,)), higher_is_better=True))
    return rows
