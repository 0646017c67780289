"""What every sampler keeps to the last bit, or as exactly as it can: what is asked beside a turn changes nothing."""

import asyncio
from dataclasses import replace

import pytest

from marlaas.engine.samplers.protocol import Sampler, SampleResult

from ....seldom import seldom
from .asking import Asked, State, alone, request, until_sampled


class RepeatableContract(Asked):
    """A part of ``SamplerContract``."""

    async def test_other_rows_change_nothing(self, sampler: Sampler) -> None:
        asked = request("a", [5, 4, 3, 2, 1, 2, 3], max_tokens=60)
        expected = await alone(sampler, asked)
        others = [
            request(f"other {n}", [1 + (n * k) % 40 for k in range(1, 2 + n)], seed=n, max_tokens=10 + n)
            for n in range(24)
        ]
        crowd = await asyncio.gather(*[alone(sampler, each) for each in (*others[:12], asked, *others[12:])])
        assert self.same(crowd[12], expected)
        for each, result in zip(others, crowd[:12] + crowd[13:], strict=True):
            assert self.same(await alone(sampler, each), result)

    async def test_late_joiners_change_nothing(self, sampler: Sampler) -> None:
        asked = request("a", max_tokens=120)
        expected = await alone(sampler, asked)
        running = asyncio.create_task(alone(sampler, asked))
        joined = []
        for n in range(12):
            await until_sampled(sampler, 3)
            late = request(f"late {n}", list(range(1, 2 + 3 * n)), seed=n, max_tokens=5 + 7 * (n % 4))
            joined.append(asyncio.create_task(alone(sampler, late)))
        assert self.same(await running, expected)
        await asyncio.gather(*joined)

    async def test_other_versions_change_nothing(self, sampler: Sampler) -> None:
        asked = [request(f"{n}", version=f"v{n % 2}", seed=n // 2, max_tokens=30 + n) for n in range(10)]
        expected = [await alone(sampler, each) for each in asked]
        together = await asyncio.gather(*[alone(sampler, each) for each in asked])
        assert all(map(self.same, expected, together))

    async def test_what_prompts_share_is_read_once_and_says_the_same(self, sampler: Sampler, state: State) -> None:
        system = [1 + n * n % 41 for n in range(600)]
        asked = [request(f"{n}", [*system, *range(1, 6 + 7 * n // 2)], version=f"v{n % 2}", seed=n) for n in range(10)]
        expected = []
        for each in asked:
            expected.append(await alone(sampler, each))
            await sampler.retire(each.version)  # and with it what is remembered
            await sampler.load(each.version, str(state(int(each.version[1:]))))
        begin = (await sampler.stats()).prefilled_tokens
        together = await asyncio.gather(*[alone(sampler, each) for each in asked])
        read = (await sampler.stats()).prefilled_tokens - begin
        assert all(map(self.same, expected, together))
        assert read <= sum(len(each.tokens) for each in asked) - 8 * 512  # of each version's five, one reads all of it
        later = [await alone(sampler, replace(each, conversation=f"later {each.conversation}")) for each in asked]
        assert all(map(self.same, expected, later))
        again = (await sampler.stats()).prefilled_tokens - begin - read
        assert again <= sum(len(each.tokens) for each in asked) - 10 * 512

    async def test_accounts_decide_about_order_alone(self, sampler: Sampler) -> None:
        plain = [request(f"{n}", version=f"v{n % 2}", seed=n, max_tokens=20) for n in range(30)]
        expected = await asyncio.gather(*[alone(sampler, each) for each in plain])
        paid = [replace(each, account="abc"[n % 3], weight=1.0 + n % 3) for n, each in enumerate(plain)]
        assert all(map(self.same, expected, await asyncio.gather(*[alone(sampler, each) for each in paid])))

    @pytest.mark.parametrize("appended", [seldom(1), 2, seldom(9)])
    async def test_later_turns_are_repeatable_too(self, sampler: Sampler, appended: int) -> None:
        async def talk(name: str, seed: int) -> list[SampleResult]:
            tokens, results = [2, 7, 1, 8], []
            for turn in range(3):
                results.append(await sampler.generate(request(name, tokens, seed=seed, max_tokens=9)))
                tokens = tokens + results[-1].tokens.tolist() + [20 + turn] * (appended - 1)
            await sampler.release(name)
            return results

        one_by_one = [await talk("a", seed) for seed in range(6)]
        together = await asyncio.gather(*[talk(f"{seed}", seed) for seed in range(6)])
        for alone_, beside in zip(one_by_one, together, strict=True):
            assert all(map(self.same, alone_, beside))
