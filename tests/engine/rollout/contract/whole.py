"""The contract of samplers: subclass ``SamplerContract`` and give it ``sampler``."""

import asyncio
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import checksum, read_state
from marlaas.engine.errors import AdapterError, ConfigError
from marlaas.engine.samplers.options import Wishes
from marlaas.engine.samplers.protocol import NewTokens, Sampler
from marlaas.engine.samplers.sampling import Truncation

from ....seldom import often, seldom
from ..plain import kept_tokens
from .asking import LONG, VOCABULARY, Asked, State, alone, extras_of, request, until_sampled
from .repeatable import RepeatableContract


class WishContract(Asked):
    """A part of ``SamplerContract``."""

    async def every(self, sampler: Sampler, tokens: np.ndarray, temperature: float) -> np.ndarray:
        """Log-probabilities of all tokens after these."""
        options = [np.append(tokens, np.int32(token)) for token in range(VOCABULARY)]
        return np.array([(await sampler.score("v0", option, len(tokens), temperature))[0] for option in options])

    @pytest.mark.parametrize("temperature", [seldom(1.0), 0.6, 0.0])
    async def test_the_likeliest_are_those_of_score(self, sampler: Sampler, temperature: float) -> None:
        """Of the whole distribution, whatever may be drawn."""
        plain = request("a", max_tokens=3, temperature=temperature, truncation=Truncation(top_k=2))
        result = await sampler.generate(plain.wishing(Wishes(likeliest=5)))
        extras, context = extras_of(result), plain.tokens
        assert extras.likeliest.tokens.dtype == np.int32 and extras.likeliest.logprobs.dtype == np.float32
        assert extras.likeliest.tokens.shape == extras.likeliest.logprobs.shape == (3, 5)
        assert extras.prompt_logprobs is None and extras.prompt_likeliest is None
        for place, token in enumerate(result.tokens):
            scores = await self.every(sampler, context, temperature)
            told, logprobs = extras.likeliest.tokens[place], extras.likeliest.logprobs[place]
            np.testing.assert_allclose(logprobs, np.sort(scores)[::-1][:5], atol=self.apart)
            np.testing.assert_allclose(logprobs, scores[told], atol=self.apart)
            assert extras.logprobs[place] == pytest.approx(scores[token], abs=self.apart)
            context = np.append(context, token)

    async def test_wishes_change_no_other_turn(self, sampler: Sampler) -> None:
        plain = [request(f"{n}", seed=n, version=f"v{n % 2}", max_tokens=30) for n in range(6)]
        expected = [await alone(sampler, each) for each in plain]
        wishes = [
            Wishes(likeliest=20),
            Wishes(presence_penalty=2.0, frequency_penalty=-1.0),
            Wishes(frequency_penalty=1.5, likeliest=1),
            Wishes(prompt=True, likeliest=2),
        ]
        wishful = [request(f"w{n}", seed=9 + n, max_tokens=25).wishing(each) for n, each in enumerate(wishes)]
        wishful.append(request("cut", truncation=Truncation(top_k=3), seed=1))  # an evaluation next to training
        apart = [await alone(sampler, each) for each in wishful]
        mixed = [*plain[:3], *wishful, *plain[3:]]
        together = await asyncio.gather(*(alone(sampler, each) for each in mixed))
        assert all(map(self.same, [*expected[:3], *apart, *expected[3:]], together))
        for one, other in zip(apart[:-1], together[3:-4], strict=True):
            if one.tokens.tolist() == other.tokens.tolist():  # else rounding decided
                told, again = extras_of(one), extras_of(other)
                assert told.likeliest.tokens.shape == again.likeliest.tokens.shape
                np.testing.assert_allclose(told.logprobs, again.logprobs, atol=self.apart)

    @pytest.mark.parametrize(
        ("length", "sampled"), often([(1, 0), (2, 1), (300, 7)], product([1, 2, 300], [0, 1, 7]), several=True)
    )
    async def test_prompts_are_told_of_as_scored(self, sampler: Sampler, sampled: int, length: int) -> None:
        tokens = [1 + n * n % 41 for n in range(length)]
        plain = request("a", tokens, max_tokens=sampled)
        result = await sampler.generate(plain.wishing(Wishes(prompt=True, likeliest=3)))
        extras = extras_of(result)
        assert (len(result.tokens), result.finish) == (sampled, "length")
        assert extras.prompt_logprobs is not None and extras.prompt_likeliest is not None
        scored = await sampler.score("v0", plain.tokens, 1, 1.0)
        np.testing.assert_allclose(extras.prompt_logprobs, scored, atol=self.apart)
        beside = extras.prompt_likeliest
        assert beside.tokens.shape == beside.logprobs.shape == (length - 1, 3)
        rounded = 1e-5  # of sums in float32
        assert (np.diff(beside.logprobs) <= 0).all()
        assert (beside.logprobs[:, 0] >= extras.prompt_logprobs - rounded).all()
        grown = [*tokens, *result.tokens.tolist(), 4]
        assert len((await sampler.generate(request("a", grown))).tokens) == 20

    async def test_release_aborts_before_a_prompt_is_told_of(self, sampler: Sampler) -> None:
        asked = request("a", list(range(1, 40)) * 20, max_tokens=LONG // 2).wishing(Wishes(prompt=True))
        running = asyncio.create_task(sampler.generate(asked))
        await asyncio.sleep(0)  # it has been asked for
        await sampler.release("a")
        assert (await running).finish == "abort"
        assert len((await sampler.generate(request("a"))).tokens) == 20

    @pytest.mark.parametrize(("presence", "frequency"), [seldom(1.5, 0.0), seldom(0.0, 0.7), (0.5, -1.0)])
    async def test_what_was_said_is_less_likely(self, sampler: Sampler, presence: float, frequency: float) -> None:
        wishes = Wishes(likeliest=20, presence_penalty=presence, frequency_penalty=frequency)
        plain = request("a", max_tokens=4, temperature=0.5)
        result = await sampler.generate(plain.wishing(wishes))
        context, counts, extras = plain.tokens, np.zeros(VOCABULARY), extras_of(result)
        for place, token in enumerate(result.tokens):
            logits = await self.every(sampler, context, 1.0) - presence * (counts > 0) - frequency * counts
            expected = 2 * logits - np.log(np.exp(2 * logits).sum())
            told = extras.likeliest.tokens[place]
            np.testing.assert_allclose(extras.likeliest.logprobs[place], expected[told], atol=2 * self.apart)
            assert result.logprobs[place] == pytest.approx(expected[token], abs=2 * self.apart)
            context = np.append(context, token)
            counts[token] += 1

    async def test_wishes_without_sense_are_refused(self, sampler: Sampler) -> None:
        senseless = [
            Wishes(likeliest=21),
            Wishes(likeliest=-1),
            Wishes(presence_penalty=float("nan")),
            Wishes(frequency_penalty=float("inf")),
        ]
        for number, wrong in enumerate(senseless):
            with pytest.raises(ValueError):
                await sampler.generate(request(f"{number}").wishing(wrong))
            assert len((await alone(sampler, request(f"{number}"))).tokens) == 20, wrong
        with pytest.raises(ValueError):
            await sampler.generate(request("a", max_tokens=0).wishing(Wishes(likeliest=1)))
        assert len((await sampler.generate(request("a"))).tokens) == 20

    async def test_a_schema_is_refused_in_words(self, sampler: Sampler) -> None:
        """The base has no tokenizer."""
        with pytest.raises(ConfigError):
            await sampler.generate(request("a").wishing(Wishes(schema="{}")))
        assert len((await sampler.generate(request("a"))).tokens) == 20


class SamplerContract(WishContract, RepeatableContract):
    """All of it; ``sampler`` is as ``Asked`` says."""

    # tokens in, tokens out

    async def test_a_turn_ends_at_its_length(self, sampler: Sampler) -> None:
        result = await sampler.generate(request("a", max_tokens=5))
        assert len(result.tokens) == len(result.logprobs) == 5
        assert result.tokens.dtype == np.int32 and result.logprobs.dtype == np.float32
        assert result.finish == "length" and result.version == "v0"
        assert result.tokens.min() >= 0 and result.tokens.max() < VOCABULARY and (result.logprobs <= 0).all()

    async def test_a_stop_token_ends_a_turn_and_is_part_of_it(self, sampler: Sampler) -> None:
        free = await alone(sampler, request("a"))
        stop = int(free.tokens[6])
        first = free.tokens.tolist().index(stop)
        stopped = await alone(sampler, request("b", stop=(stop,)))
        assert stopped.finish == "stop"
        assert stopped.tokens.tolist() == free.tokens[: first + 1].tolist()

    async def test_a_full_context_ends_a_turn(self, sampler: Sampler) -> None:
        room = (await sampler.limits()).context
        tokens = [1 + n % 40 for n in range(room - 3)]
        result = await sampler.generate(request("a", tokens, max_tokens=50))
        assert (result.finish, len(result.tokens)) == ("length", 3)
        grown = await sampler.generate(request("a", tokens + result.tokens.tolist()))
        assert (grown.finish, len(grown.tokens), grown.version) == ("length", 0, "v0")

    async def test_the_shortest_prompts_work(self, sampler: Sampler) -> None:
        for length in (1, 2, 3):
            assert len((await alone(sampler, request("a", [1, 2, 3][:length]))).tokens) == 20

    # as it is sampled

    async def test_tokens_are_streamed_as_they_are_sampled(self, sampler: Sampler) -> None:
        whole = await alone(sampler, request("a", max_tokens=60))
        said: list[NewTokens] = []
        result = await sampler.generate(request("b", max_tokens=60), stream_to=said.append)
        assert self.same(result, whole) and len(said) > 1
        assert np.concatenate([each.tokens for each in said]).tolist() == result.tokens.tolist()
        assert np.concatenate([each.logprobs for each in said]).tobytes() == result.logprobs.tobytes()

    async def test_the_first_token_comes_long_before_the_end(self, sampler: Sampler) -> None:
        first: asyncio.Future[NewTokens] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(
            sampler.generate(
                request("a", max_tokens=LONG), stream_to=lambda said: None if first.done() else first.set_result(said)
            )
        )
        await first
        await sampler.release("a")
        aborted = await running
        assert aborted.finish == "abort" and 0 < len(aborted.tokens) < LONG // 2

    async def test_nothing_is_streamed_once_the_caller_has_gone(self, sampler: Sampler) -> None:
        said: list[NewTokens] = []
        running = asyncio.create_task(sampler.generate(request("a", max_tokens=LONG), stream_to=said.append))
        await until_sampled(sampler, 2)
        running.cancel()
        await asyncio.wait([running])
        count = len(said)
        await alone(sampler, request("b", max_tokens=40))
        await sampler.release("a")
        assert len(said) == count

    # noise and log-probabilities

    async def test_the_seed_alone_decides(self, sampler: Sampler) -> None:
        one, again, other = [await alone(sampler, request("a", seed=seed)) for seed in (7, 7, 8)]
        assert self.same(one, again) and one.tokens.tolist() != other.tokens.tolist()
        await alone(sampler, request("a", seed=2**64 - 1))

    async def test_greedy_takes_the_likeliest_whatever_the_seed(self, sampler: Sampler) -> None:
        one, other = [await alone(sampler, request("a", temperature=0.0, seed=seed)) for seed in (1, 2)]
        assert self.same(one, other)
        tokens = np.concatenate([request("a").tokens, one.tokens])
        best = [int(np.argmax(await self.every(sampler, tokens[: 5 + n], 1.0))) for n in range(3)]
        assert best == one.tokens[:3].tolist()

    @pytest.mark.parametrize(
        "one",
        [
            seldom(Truncation(top_k=5)),
            seldom(Truncation(top_p=0.6)),
            seldom(Truncation(min_p=0.3)),
            Truncation(top_k=12, top_p=0.7, min_p=0.05),
        ],
    )
    async def test_the_kept_tokens_are_the_same_in_every_sampler(self, sampler: Sampler, one: Truncation) -> None:
        """Each log-probability tells the share of the kept tokens, and so which were kept, whatever was drawn."""
        logprobs = await self.every(sampler, request("a").tokens, 0.8)
        # the scores are of temperature 0.8 already
        kept = kept_tokens(logprobs, one, 1.0)
        whole = logprobs.astype(np.float64)
        share = np.log(np.exp(whole[kept]).sum())
        drawn = set()
        for seed in range(40):
            asked = request(f"t{seed}", max_tokens=1, temperature=0.8, seed=seed, truncation=one)
            result = await alone(sampler, asked)
            token = int(result.tokens[0])
            drawn.add(token)
            assert token in kept
            # rounding of a score and of a log-probability, in float32
            assert result.logprobs[0] == pytest.approx(whole[token] - share, abs=self.rounding)
        assert len(drawn) > 1

    rounding = 1e-4
    """How far log-probabilities of one distribution may be apart, in nats."""

    @pytest.mark.parametrize("temperature", [seldom(1.0), 0.5, seldom(1.7), 0.0])
    async def test_logprobs_are_those_of_score(self, sampler: Sampler, temperature: float) -> None:
        result = await sampler.generate(request("a", temperature=temperature))
        tokens = np.concatenate([request("a").tokens, result.tokens])
        scored = await sampler.score("v0", tokens, 5, temperature)
        assert scored.dtype == np.float32
        np.testing.assert_allclose(scored, result.logprobs, atol=self.apart)

    # conversations

    async def test_a_conversation_grows_turn_by_turn(self, sampler: Sampler) -> None:
        tokens = [3, 1, 4]
        for number in range(4):
            result = await sampler.generate(request("a", tokens, max_tokens=6, seed=number))
            context = tokens + result.tokens.tolist()
            scored = await sampler.score("v0", np.array(context, np.int32), len(tokens), 1.0)
            np.testing.assert_allclose(scored, result.logprobs, atol=self.apart)
            tokens = context + [10, 11, 12, 13][: number + 1]

    async def test_a_conversation_may_only_grow(self, sampler: Sampler) -> None:
        result = await sampler.generate(request("a", max_tokens=3))
        tokens = request("a").tokens.tolist() + result.tokens.tolist()
        for wrong in ([9, *tokens[1:], 4], tokens[:-1]):
            with pytest.raises(ValueError):
                await sampler.generate(request("a", wrong))
        await sampler.generate(request("a", [*tokens, 4]))
        await sampler.release("a")
        await sampler.generate(request("a", [9]))

    async def test_release_aborts_and_forgets(self, sampler: Sampler) -> None:
        untouched = await alone(sampler, request("b"))
        running = asyncio.create_task(sampler.generate(request("a", max_tokens=LONG)))
        await until_sampled(sampler, 3)
        with pytest.raises(ValueError):  # one turn at a time
            await sampler.generate(request("a", max_tokens=LONG))
        await sampler.release("a")
        aborted = await running
        assert aborted.finish == "abort" and len(aborted.tokens) == len(aborted.logprobs) < LONG
        assert self.same(await alone(sampler, request("a")), untouched)
        await sampler.release("a")
        await sampler.release("never heard of")

    async def test_more_conversations_than_sequences_take_turns(self, sampler: Sampler) -> None:
        count = (await sampler.limits()).sequences + 5
        results = await asyncio.gather(*[alone(sampler, request(f"{n}", seed=n, max_tokens=4)) for n in range(count)])
        assert [len(result.tokens) for result in results] == [4] * count
        assert self.same(results[-1], await alone(sampler, request("again", seed=count - 1, max_tokens=4)))

    async def test_bad_requests_are_refused_and_leave_no_trace(self, sampler: Sampler) -> None:
        bad: list[dict[str, Any]] = [
            {"tokens": np.empty(0, np.int32)},
            {"tokens": np.array([1, VOCABULARY], np.int32)},
            {"tokens": np.array([-1, 1], np.int32)},
            {"tokens": np.ones(100_000, np.int32)},
            {"max_tokens": 0},
            {"temperature": -1.0},
            {"temperature": float("nan")},
            {"seed": -1},
            {"version": "unknown"},
        ]
        for number, wrong in enumerate(bad):
            with pytest.raises(ValueError):  # AdapterError is one
                await sampler.generate(replace(request(f"{number}"), **wrong))
            assert len((await alone(sampler, request(f"{number}"))).tokens) == 20, wrong

    # versions

    async def test_results_name_the_bytes_that_served_them(self, sampler: Sampler, state: State) -> None:
        expected = [checksum(read_state(state(seed)).adapter) for seed in (0, 1)]
        results = [await alone(sampler, request("a", version=version)) for version in ("v0", "v1")]
        assert [result.checksum for result in results] == expected
        assert results[0].tokens.tolist() != results[1].tokens.tolist()
        assert await sampler.load("v2", str(state(2))) == checksum(read_state(state(2)).adapter)

    async def test_a_name_stands_for_the_same_bytes_for_ever(self, sampler: Sampler, state: State) -> None:
        before = await alone(sampler, request("a"))
        with pytest.raises(AdapterError):
            await sampler.load("v0", str(state(3)))
        await sampler.load("v2", str(state(3)))
        assert self.same(await alone(sampler, request("a")), before)
        await sampler.retire("v0")
        with pytest.raises(AdapterError):
            await sampler.load("v0", str(state(3)))
        assert await sampler.load("v0", str(state(0))) == before.checksum
        assert self.same(await alone(sampler, request("a")), before)

    async def test_a_damaged_state_is_refused_and_its_name_is_free(
        self, sampler: Sampler, state: State, tmp_path: Path
    ) -> None:
        (tmp_path / "damaged").write_bytes(state(2).read_bytes()[:-100])
        for name in ("damaged", "missing"):
            with pytest.raises(AdapterError):
                await sampler.load("v2", str(tmp_path / name))
        await sampler.load("v2", str(state(2)))

    async def test_retiring_lets_running_turns_end_and_refuses_new_ones(self, sampler: Sampler) -> None:
        expected = await alone(sampler, request("b", max_tokens=100))
        running = asyncio.create_task(sampler.generate(request("a", max_tokens=100)))
        await until_sampled(sampler, 2)
        await sampler.retire("v0")
        with pytest.raises(AdapterError):
            await sampler.generate(request("c"))
        with pytest.raises(AdapterError):
            await sampler.score("v0", np.array([1, 2, 3], np.int32), 1, 1.0)
        assert self.same(await running, expected)
        assert len((await sampler.generate(request("c", version="v1"))).tokens) == 20

    async def test_a_hundred_versions_at_once(self, sampler: Sampler, state: State) -> None:
        for number in range(2, 100):
            await sampler.load(f"v{number}", str(state(number)))
        asked = [request(f"{n}", version=f"v{n}", seed=n, max_tokens=8) for n in range(100)]
        together = await asyncio.gather(*[alone(sampler, each) for each in asked])
        for number in range(0, 100, 7):
            assert self.same(await alone(sampler, asked[number]), together[number])
        for number in range(100):
            await sampler.retire(f"v{number}")

    async def test_versions_come_and_go_beside_running_turns(self, sampler: Sampler, state: State) -> None:
        asked = [request(f"{n}", version=f"v{n % 2}", seed=n, max_tokens=90) for n in range(4)]
        expected = [await alone(sampler, each) for each in asked]
        running = [asyncio.create_task(alone(sampler, each)) for each in asked]
        for number in range(2, 8):
            await sampler.load(f"v{number}", str(state(number)))
            passing = asyncio.create_task(alone(sampler, request("passing", version=f"v{number}", max_tokens=9)))
            await asyncio.sleep(0)  # it has been asked for
            await sampler.retire(f"v{number}")
            assert (await passing).version == f"v{number}"
        assert all(map(self.same, expected, await asyncio.gather(*running)))


class PositionalContract(SamplerContract):
    """What samplers keep besides whose noise is ours, and not that of a foreign engine with a seed for each request."""

    async def test_noise_belongs_to_the_position_not_to_the_turn(self, sampler: Sampler) -> None:
        whole = await alone(sampler, request("a"))
        begun = await sampler.generate(request("b", max_tokens=8))
        tokens = request("b").tokens.tolist() + begun.tokens.tolist()
        ended = await sampler.generate(request("b", tokens, max_tokens=12))
        assert begun.tokens.tolist() + ended.tokens.tolist() == whole.tokens.tolist()
