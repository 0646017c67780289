"""Ways to divide turns among samplers that the engine does not have: by a group's number, and for a whole episode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from unittest.mock import patch
from weakref import WeakKeyDictionary

from marlaas.engine.fleet.routing.assignment import Share
from marlaas.engine.rollout.slots import Replicas, SamplerEndpoint
from marlaas.engine.train.selfplay import Match, Participants
from marlaas.engine.trajectories import Tokens

GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, less their whole part, fill the interval from 0 to 1 evenly, however many there are."""


def sampler_of(shares: Sequence[Share], group: int) -> str:
    """The sampler that serves a group, by its number; each sampler gets its part of any run of numbers."""
    place = math.modf(group * GOLDEN)[0]
    for share, reached in zip(shares, accumulate(share.part for share in shares), strict=True):
        if place < reached:
            return share.sampler
    return shares[0].sampler  # parts may add up to a little less than 1


@contextmanager
def by_number() -> Iterator[None]:
    """While the block runs, each group that begins has all its turns at one sampler, by its task's count of groups.

    All samplers that serve a version get equal parts.
    """
    usual, counts = Participants.replicas, WeakKeyDictionary[Participants, int]()

    def replicas(self: Participants, match: Match) -> dict[str, Replicas]:
        number = counts[self] = counts.get(self, -1) + 1
        return {name: _one(found, number) for name, found in usual(self, match).items()}

    with patch.object(Participants, "replicas", replicas):
        yield


@contextmanager
def staying() -> Iterator[None]:
    """While the block runs, an episode has all its turns where it had its first."""
    usual = Replicas.choose

    def choose(
        self: Replicas, tokens: Tokens, reply: float, here: SamplerEndpoint | None = None, held: int = 0
    ) -> tuple[SamplerEndpoint, int]:
        return usual(self, tokens, reply) if here is None else (here, len(tokens) - held)

    with patch.object(Replicas, "choose", choose):
        yield


def _one(found: Replicas, number: int) -> Replicas:
    endpoints = {endpoint.name: endpoint for endpoint in found.endpoints}
    chosen = sampler_of([Share(name, 1 / len(endpoints)) for name in endpoints], number)
    return Replicas((endpoints[chosen],))
