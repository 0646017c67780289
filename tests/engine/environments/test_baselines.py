"""Tasks on the same prompts share what constant answers score there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from marlaas.engine.environments.baselines import REMEMBERED, ConstantBaselines, HeldOut

PROMPTS = HeldOut("sums/sums", "v1", '{"digits": 2}', 1024)


class Measured:
    """Counts what is measured; a text scores its length, the empty one nothing."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def __call__(self, text: str) -> float | None:
        self.texts.append(text)
        await asyncio.sleep(0)
        return float(len(text)) if text else None


async def test_an_answer_is_measured_once_for_all_who_ask() -> None:
    baselines, measured = ConstantBaselines(), Measured()
    found = await asyncio.gather(*(baselines.of(PROMPTS, ["a", "bb", ""], measured) for _ in range(20)))
    assert found == [2.0] * 20
    assert await baselines.of(PROMPTS, ["a", "ccc"], measured) == 3.0
    assert await baselines.of(PROMPTS, ["a"], measured) == 1.0, "the best of those that were asked for"
    assert await baselines.of(PROMPTS, [""], measured) is None, "0 would be a score"
    assert measured.texts == ["a", "bb", "", "ccc"]


@pytest.mark.parametrize("other", [{"version": "v2"}, {"config": "{}"}, {"prompts": 64}, {"environment": "x/y"}])
async def test_other_prompts_are_measured_anew(other: dict[str, Any]) -> None:
    baselines, measured = ConstantBaselines(), Measured()
    await baselines.of(PROMPTS, ["a"], measured)
    await baselines.of(replace(PROMPTS, **other), ["a"], measured)
    assert measured.texts == ["a", "a"]


async def test_who_fails_or_goes_leaves_it_to_the_next() -> None:
    baselines, measured = ConstantBaselines(), Measured()

    async def broken(_: str) -> float | None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await baselines.of(PROMPTS, ["a"], broken)
    going = asyncio.ensure_future(baselines.of(PROMPTS, ["a"], measured))
    staying = asyncio.ensure_future(baselines.of(PROMPTS, ["a"], measured))
    await asyncio.sleep(0)
    going.cancel()
    assert await staying == 1.0


async def test_only_the_last_used_prompts_are_remembered() -> None:
    baselines, measured = ConstantBaselines(), Measured()
    for count in range(REMEMBERED + 1):
        await baselines.of(replace(PROMPTS, prompts=count), ["a"], measured)
    await baselines.of(replace(PROMPTS, prompts=REMEMBERED), ["a"], measured)
    assert len(measured.texts) == REMEMBERED + 1
    await baselines.of(replace(PROMPTS, prompts=0), ["a"], measured)
    assert len(measured.texts) == REMEMBERED + 2
