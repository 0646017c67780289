"""Requests to a sampler, and how their answers are compared; tests of every sampler use them.

The sampler's base has ``VOCABULARY`` tokens; the fixture ``state`` makes state files that fit it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlaas.engine.samplers.options import Extras
from marlaas.engine.samplers.protocol import Sampler, SampleRequest, SampleResult

VOCABULARY = 50
LONG = 1500
"""Tokens of a turn that is still running when the next call comes."""
State = Callable[[int], Path]
"""Writes the state file of a random adapter with the given seed."""


def request(name: str, tokens: list[int] | None = None, **changes: Any) -> SampleRequest:
    plain = SampleRequest(name, "v0", np.array(tokens or [3, 1, 4, 1, 5], np.int32), 20, 1.0, (), 7)
    return replace(plain, **changes)


def same(one: SampleResult, other: SampleResult) -> bool:
    """To the last bit."""
    return (
        one.tokens.tobytes() == other.tokens.tobytes()
        and one.logprobs.tobytes() == other.logprobs.tobytes()
        and (one.finish, one.version, one.checksum) == (other.finish, other.version, other.checksum)
    )


def alike(one: SampleResult, other: SampleResult, tolerance: float) -> bool:
    """But for rounding: under the same adapter, log-probabilities that are ``tolerance`` apart at most.

    Up to the first token that differs: where two were almost equally likely, rounding decides, and what follows is
    another text. The first one is the same in any case.
    """
    count = min(len(one.tokens), len(other.tokens))
    equal = one.tokens[:count] == other.tokens[:count]
    common = count if equal.all() else int(np.argmin(equal))
    gap = np.abs(one.logprobs[:common] - other.logprobs[:common]).max(initial=0.0)
    named = (one.version, one.checksum) == (other.version, other.checksum)
    return named and gap <= tolerance and (common > 0 or count == 0)


async def alone(sampler: Sampler, asked: SampleRequest) -> SampleResult:
    result = await sampler.generate(asked)
    await sampler.release(asked.conversation)
    return result


def extras_of(result: SampleResult) -> Extras:
    assert result.extras is not None
    return result.extras


async def until_sampled(sampler: Sampler, count: int) -> None:
    """Return once ``count`` more tokens have been sampled."""
    begin = (await sampler.stats()).sampled_tokens
    while (await sampler.stats()).sampled_tokens < begin + count:
        pass


class Asked:
    """What the parts of the contract share."""

    apart = 2e-2
    """How far a score may be from what the turn said, in nats: they may be computed in other parts."""

    @pytest.fixture
    async def sampler(self) -> Sampler:
        """With the versions v0 and v1 from ``state(0)`` and ``state(1)``; 64 sequences of more than LONG tokens."""
        raise NotImplementedError

    def same(self, one: SampleResult, other: SampleResult) -> bool:
        """Whether both are one answer. Backends whose last bits depend on the batch put ``alike`` here."""
        return same(one, other)
