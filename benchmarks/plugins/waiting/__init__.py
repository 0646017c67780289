"""Sums one after the other, with a tool after each that takes its time, fails, or hangs until its time limit.

    user       47+85=
    assistant  132
    (the tool: 0.4 s)
    user       12+30=
    assistant  42

Each sum is its own conversation, paid by itself. How long the tools take, and which of them fail, is drawn from
the member's own noise and the number of its play, so all arms of a comparison wait the same seconds. With ``batch`` the
episodes of one step go turn by turn together, as environments do that are stepped as a batch: none continues before the
slowest tool of the turn has answered. Held-out episodes wait for nothing.
"""

import asyncio
import math
from collections import Counter, defaultdict
from random import Random

from marlaas.plugins import Episode, env

LIMIT = 2.0
"""Seconds after which a tool that hangs is given up."""


class Batch:
    """Episodes that wait for each other after each turn; whoever has left is waited for no more."""

    def __init__(self, size: int) -> None:
        self._left = size
        """Episodes that have not ended."""
        self._arrived: Counter[int] = Counter()
        """Of these, those that have ended a turn, by turn."""
        self._gone: dict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def arrive(self, turn: int) -> None:
        """A turn of an episode has ended; wait until those of all others have."""
        self._arrived[turn] += 1
        self._look()
        await self._gone[turn].wait()

    def leave(self, turns: int) -> None:
        """An episode has ended after this many turns."""
        self._left -= 1
        for turn in range(turns):
            self._arrived[turn] -= 1
        self._look()

    def _look(self) -> None:
        for turn, arrived in self._arrived.items():
            if arrived >= self._left:
                self._gone[turn].set()


_plays: Counter[tuple[str, int, int]] = Counter()
_batches: dict[tuple[str, int], Batch] = {}


@env(timeout=600)
async def waiting(
    ep: Episode,
    arm: str = "",
    turns: int = 4,
    mean: float = 0.5,
    sigma: float = 1.0,
    failing: float = 0.0,
    batch: int = 0,
    groups: int = 4,
) -> dict[str, float]:
    """Adds numbers of two digits; a tool takes a lognormal time after each turn, `mean` seconds on average.

    Args:
        arm: whose episodes these are.
        turns: of an episode.
        mean: seconds of a tool on average.
        sigma: deviation of the logarithm of these seconds.
        failing: share of episodes one of whose tools breaks (half of them) or hangs.
        batch: episodes that go turn by turn together; 0: each goes by itself.
        groups: of one step, whose episodes they are.
    """
    waits, ends = [0.0] * turns, (turns, False)
    play = 0
    if ep.split == "train":
        member = ep.noise.getrandbits(64)
        play = _plays[arm, ep.index, member]
        _plays[arm, ep.index, member] += 1
        draw = Random(f"{member} {play}")
        waits, ends = latencies(draw, turns, mean, sigma), fate(draw, turns, failing)
    together = None
    if batch and ep.split == "train" and not play and ep.index < 1_000_000:  # those played again are on their own
        together = _batches.setdefault((arm, ep.index // groups), Batch(batch))
    rewards, done = {}, 0
    try:
        for turn, wait in enumerate(waits):
            a, b = ep.rng.randint(10, 99), ep.rng.randint(10, 99)
            reply = await ep.agent(f"sum {turn + 1}").ask(f"{a}+{b}=", max_tokens=8)
            rewards[f"sum {turn + 1}"] = float(reply.text == str(a + b))
            if turn == ends[0]:
                await asyncio.sleep(LIMIT * ends[1])
                raise RuntimeError("the tool hangs" if ends[1] else "the tool is broken")
            if wait:
                await asyncio.sleep(wait)
            if together is not None:
                done = turn + 1
                await together.arrive(turn)
    finally:
        if together is not None:
            together.leave(done)
    return rewards


def latencies(draw: Random, turns: int, mean: float, sigma: float) -> list[float]:
    """Seconds after each turn."""
    return [draw.lognormvariate(math.log(mean) - sigma**2 / 2, sigma) if mean else 0.0 for _ in range(turns)]


def fate(draw: Random, turns: int, failing: float) -> tuple[int, bool]:
    """The turn after which the tool fails, ``turns`` if none does; and whether it hangs."""
    share, turn, hangs = draw.random(), draw.randrange(turns), draw.random() < 0.5
    return (turn, hangs) if share < failing else (turns, False)
