"""The samplers that serve one version, and which of them samples a turn: the one that is done with it first.

A sampler's own measured seconds decide (``Backlog``): what waits and is under way there, and the turn itself. What a
conversation has said is remembered by one sampler, and the prompt of a group by those that have members of it; another
one reads all that anew. So a turn moves where that pays, at a turn's border alone, and the members of a group go to
further samplers where their replies take longer than their prompt.

FlexMARL (arXiv 2602.09578) balances the replicas of an agent too: it moves instances where two queues differ by more
than five requests. Here the costs decide, so that long and short requests, and fast and slow samplers, count as what
they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..trajectories import Tokens
from .endpoint import SamplerEndpoint


@dataclass(frozen=True)
class Offer:
    """What a turn would take at one sampler, in that sampler's seconds, each at least 0."""

    backlog: float
    """What the sampler has to do before."""
    turn: float
    """The turn itself, with all that must be read for it there, and the way there and back."""
    again: float = 0.0
    """The part of it that is read although another sampler remembers it: at that one it would not be computed."""

    @property
    def seconds(self) -> float:
        """When the turn would be done."""
        return self.backlog + self.turn


def least(offers: Sequence[Offer]) -> int:
    """The place of the offer to take: the one that is done first; of equal ones that with the least to read again.

    What is read again counts twice, because it delays all that comes after it there, too: a turn goes elsewhere where
    it gains more than it costs others. Raises ``ValueError`` without offers.
    """
    return min(range(len(offers)), key=lambda place: (offers[place].seconds + offers[place].again, offers[place].again))


class Replicas:
    """The samplers that serve a version, as the members of one group use them."""

    def __init__(self, endpoints: Sequence[SamplerEndpoint]) -> None:
        """``endpoints``: at least one, the one that is to serve most of the policy's groups first."""
        self.endpoints = tuple(endpoints)
        self.context = min(endpoint.context for endpoint in self.endpoints)
        """Tokens that a conversation may have at any of them."""
        self._opened: Counter[tuple[str, bytes]] = Counter()
        """Conversations that begin with a prompt, by the sampler that remembers them and by the prompt's tokens."""

    def choose(
        self, tokens: Tokens, reply: float, here: SamplerEndpoint | None = None, held: int = 0
    ) -> tuple[SamplerEndpoint, int]:
        """The sampler for a turn with the context ``tokens``, int32 (T,), and how many of them it is to read.

        ``reply``: tokens that it is expected to sample; ``here``: the sampler that remembers the first ``held`` of the
        context; None where none does. One that has died is chosen where none lives, and raises that.
        """
        if len(self.endpoints) == 1:
            return self.endpoints[0], len(tokens) - held
        endpoints = [endpoint for endpoint in self.endpoints if not endpoint.lost] or self.endpoints
        prompt = b"" if here else tokens.tobytes()
        unread = [self._unread(endpoint, len(tokens), prompt, here, held) for endpoint in endpoints]
        fewest = min(unread)
        offers = []
        for endpoint, count in zip(endpoints, unread, strict=True):
            backlog = endpoint.backlog
            turn, again = backlog.cost(count, reply) + backlog.way, backlog.cost(count - fewest, 0)
            offers.append(Offer(backlog.seconds, turn, again))
        place = least(offers)
        return endpoints[place], unread[place]

    @property
    def lost(self) -> bool:
        """Whether none of them lives."""
        return all(endpoint.lost for endpoint in self.endpoints)

    def begin(self, endpoint: SamplerEndpoint, prompt: bytes) -> None:
        """A conversation with this first prompt begins at a sampler."""
        self._opened[endpoint.name, prompt] += 1

    def end(self, endpoint: SamplerEndpoint, prompt: bytes) -> None:
        """That sampler forgets it."""
        self._opened[endpoint.name, prompt] -= 1
        if not self._opened[endpoint.name, prompt]:
            del self._opened[endpoint.name, prompt]

    def _unread(
        self, endpoint: SamplerEndpoint, count: int, prompt: bytes, here: SamplerEndpoint | None, held: int
    ) -> int:
        if endpoint is here:
            return count - held
        return 0 if prompt and self._opened[endpoint.name, prompt] else count
