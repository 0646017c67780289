"""Tasks on the same prompts share what constant answers score there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from marlaas.engine.environments.baselines import ConstantBaselines, HeldOut, Scores

PROMPTS = HeldOut("sums/sums", "v1", '{"digits": 2}', 5)


class Measured:
    """Counts what is measured; a text scores its length on each prompt, the empty one nothing."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.episodes = 0

    async def __call__(self, text: str, begin: int, end: int) -> Scores:
        self.texts.append(text)
        self.episodes += end - begin
        await asyncio.sleep(0)
        return [self.score(text, number) for number in range(begin, end)]

    def score(self, text: str, prompt: int) -> float | None:
        return float(len(text)) if text else None


def mean(scores: Scores) -> float | None:
    found = [score for score in scores if score is not None]
    return fmean(found) if len(found) > len(scores) / 2 else None


async def test_an_answer_is_measured_once_for_all_who_ask() -> None:
    baselines, measured = ConstantBaselines(), Measured()
    found = await asyncio.gather(*(baselines.of(PROMPTS, ["a", "bb", ""], measured, mean) for _ in range(20)))
    assert found == [2.0] * 20
    assert await baselines.of(PROMPTS, ["a", "ccc"], measured, mean) == 3.0
    assert await baselines.of(PROMPTS, ["a"], measured, mean) == 1.0, "the best of those that were asked for"
    assert await baselines.of(PROMPTS, [""], measured, mean) is None, "0 would be a score"
    assert measured.texts == ["a", "bb", "", "ccc"]


class Drawn(Measured):
    """A text is right on its own share of the prompts; one of them breaks the environment on most."""

    async def __call__(self, text: str, begin: int, end: int) -> Scores:
        assert begin < end, "no prompt is played twice"
        return await super().__call__(text, begin, end)

    def score(self, text: str, prompt: int) -> float | None:
        if text == "breaks" and prompt:
            return None
        return 1.0 if text == "breaks" else float(Random(f"{text}{prompt}").random() < float(text))


@pytest.mark.parametrize(("prompts", "most"), [(1, 17), (8, 17 * 8), (64, 328), (1000, 1264)])
async def test_a_slow_grader_is_not_asked_seventeen_times(prompts: int, most: int) -> None:
    """The half of the texts that does worse on few prompts is tried on no more."""
    measured, texts = Drawn(), ["breaks", "0.9", *(f"0.{number:02}" for number in range(15))]
    found = await ConstantBaselines().of(replace(PROMPTS, prompts=prompts), texts, measured, mean)
    assert measured.episodes == most
    full = {text: mean([measured.score(text, number) for number in range(prompts)]) for text in texts[1:]}
    assert found == (1.0 if prompts == 1 else full["0.9"])
    assert prompts == 1 or found == max(score for score in full.values() if score is not None)


async def test_who_asks_for_other_texts_waits_for_nobody() -> None:
    """Each policy has its own replies; tasks that end together try theirs at the same time."""
    goes_on, begun = asyncio.Event(), list[str]()

    class Slow(Measured):
        async def __call__(self, text: str, begin: int, end: int) -> Scores:
            begun.append(text)
            await goes_on.wait()
            return await super().__call__(text, begin, end)

    baselines, measured = ConstantBaselines(), Slow()
    asked = [["a", "own"], ["bb", "own"], ["a", "other"]]
    ends = [asyncio.ensure_future(baselines.of(PROMPTS, texts, measured, mean)) for texts in asked]
    for _ in range(5):
        await asyncio.sleep(0)
    assert begun == ["a", "bb"], "the third shares what the first measures"
    goes_on.set()
    assert await asyncio.gather(*ends) == [3.0, 3.0, 5.0]
    assert sorted(begun) == ["a", "bb", "other", "own"], "each text was measured once"


async def test_who_fails_or_goes_leaves_it_to_the_next() -> None:
    baselines, measured = ConstantBaselines(), Measured()

    async def broken(*_: object) -> Scores:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await baselines.of(PROMPTS, ["a"], broken, mean)
    going = asyncio.ensure_future(baselines.of(PROMPTS, ["a"], measured, mean))
    staying = asyncio.ensure_future(baselines.of(PROMPTS, ["a"], measured, mean))
    await asyncio.sleep(0)
    going.cancel()
    assert await staying == 1.0
