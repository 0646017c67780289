"""What every sampler keeps of what a request may wish for: the likeliest, penalties, and word of the prompt."""

import asyncio
from itertools import product

import numpy as np
import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.samplers.options import Wishes
from marlaas.engine.samplers.protocol import NewTokens, Sampler
from marlaas.engine.samplers.sampling import Truncation

from ....seldom import often, seldom
from .asking import LONG, VOCABULARY, Asked, alone, extras_of, request


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

    async def test_to_be_told_of_the_likeliest_changes_nothing(self, sampler: Sampler) -> None:
        plain = [request(f"{n}", seed=n, truncation=Truncation(top_k=9 * n)) for n in range(3)]
        wished = [each.wishing(Wishes(likeliest=4)) for each in plain]
        for one, other in zip(plain, wished, strict=True):
            assert self.same(await alone(sampler, one), await alone(sampler, other))

    async def test_wishes_change_no_other_turn(self, sampler: Sampler) -> None:
        plain = [request(f"{n}", seed=n, version=f"v{n % 2}", max_tokens=30) for n in range(6)]
        expected = [await alone(sampler, each) for each in plain]
        wishes = [
            Wishes(likeliest=20),
            Wishes(presence_penalty=2.0, frequency_penalty=-1.0),
            Wishes(repetition_penalty=1.5, likeliest=1),
            Wishes(prompt=True, likeliest=2),
        ]
        wishful = [request(f"w{n}", seed=9 + n, max_tokens=25).wishing(each) for n, each in enumerate(wishes)]
        apart = [await alone(sampler, each) for each in wishful]
        mixed = [*plain[:3], *wishful, *plain[3:]]
        together = await asyncio.gather(*(alone(sampler, each) for each in mixed))
        assert all(map(self.same, [*expected[:3], *apart, *expected[3:]], together))
        for one, other in zip(apart, together[3:-3], strict=True):
            if one.tokens.tolist() == other.tokens.tolist():  # else rounding decided
                told, again = extras_of(one), extras_of(other)
                assert told.likeliest.tokens.shape == again.likeliest.tokens.shape
                np.testing.assert_allclose(told.logprobs, again.logprobs, atol=self.apart)

    async def test_what_is_streamed_adds_up_to_what_was_wished(self, sampler: Sampler) -> None:
        said: list[NewTokens] = []
        wishes = Wishes(likeliest=3, prompt=True)
        result = await sampler.generate(request("a", max_tokens=60).wishing(wishes), stream_to=said.append)
        streamed, extras = [each.extras for each in said if each.extras is not None], extras_of(result)
        assert len(streamed) == len(said) > 1 and all(each.prompt_logprobs is None for each in streamed)
        for one in ("tokens", "logprobs"):
            pieces = np.concatenate([getattr(each.likeliest, one) for each in streamed])
            assert pieces.tobytes() == getattr(extras.likeliest, one).tobytes()
        assert np.concatenate([each.logprobs for each in streamed]).tobytes() == extras.logprobs.tobytes()

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

    async def test_a_factor_touches_what_is_in_the_prompt(self, sampler: Sampler) -> None:
        plain = request("a", max_tokens=1)
        scores = await self.every(sampler, plain.tokens, 1.0)
        result = await sampler.generate(plain.wishing(Wishes(likeliest=20, repetition_penalty=1.8)))
        told, logprobs = extras_of(result).likeliest.tokens[0], extras_of(result).likeliest.logprobs[0]
        shift = logprobs - scores[told]
        fresh = ~np.isin(told, plain.tokens)
        np.testing.assert_allclose(shift[fresh], shift[fresh].mean(), atol=2 * self.apart)
        assert (shift[~fresh] < shift[fresh].mean() + 2 * self.apart).all()

    async def test_wishes_without_sense_are_refused(self, sampler: Sampler) -> None:
        senseless = [
            Wishes(likeliest=21),
            Wishes(likeliest=-1),
            Wishes(presence_penalty=float("nan")),
            Wishes(frequency_penalty=float("inf")),
            Wishes(repetition_penalty=0.0),
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
