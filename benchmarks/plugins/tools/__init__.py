"""Sums in several turns, with a tool that takes its time after each.

    user       47+85=
    assistant  132
    (the tool: 0.4 s)
    user       12+30=
    assistant  42

How long the tool takes is drawn before the first turn from the episode's own noise: the same instance and member
waits the same whatever the policy says, so two runs of one workload wait the same seconds. Held-out episodes wait for
nothing: measuring is not what is timed.
"""

import asyncio
import math
from random import Random

from marlaas.plugins import Episode, env

FEWEST, MOST = 2, 6
"""Turns of an episode."""


@env
async def tools(ep: Episode, digits: int = 2, mean: float = 0.5, sigma: float = 1.0) -> float:
    """Adds numbers of so many digits; a tool takes a lognormal time after each turn, `mean` seconds on average."""
    low, high = 10 ** (digits - 1), 10**digits - 1
    turns = ep.rng.randint(FEWEST, MOST)
    waits = latencies(ep.noise, turns, mean, sigma)
    right = 0
    for wait in waits:
        a, b = ep.rng.randint(low, high), ep.rng.randint(low, high)
        reply = await ep.ask(f"{a}+{b}=", max_tokens=digits + 2)
        right += reply.text == str(a + b)
        if ep.split == "train" and wait:
            await asyncio.sleep(wait)
    ep.log(waited=sum(waits))
    return right / turns


def latencies(noise: Random, turns: int, mean: float, sigma: float) -> list[float]:
    """Seconds after each turn; `sigma` is the deviation of their logarithm: 1 puts 1 % beyond six times the mean."""
    if not mean:
        return [0.0] * turns
    return [noise.lognormvariate(math.log(mean) - sigma**2 / 2, sigma) for _ in range(turns)]
