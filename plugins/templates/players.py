"""Two players, one winner: both add the same numbers at the same time, and whoever is nearer has won.

One policy that acts as both agents plays against itself. Its score is shown by games against what it began as:

    [policies.player]
    [agents]
    first = "player"
    second = "player"
    [eval]
    agents = { second = "player@0" }
    rotate = true
"""

import asyncio

from marlaas.plugins import Episode, env

AGENTS = ("first", "second")


@env(agents=AGENTS)
async def my_env(ep: Episode, highest: int = 99) -> dict[str, float]:
    """Pays 1 to the nearer of two sums, and a half to each of two that are as near."""
    a, b = ep.rng.randint(0, highest), ep.rng.randint(0, highest)
    asked = (ep.agent(name).ask(f"{a}+{b}=", max_tokens=8) for name in AGENTS)  # several agents may be asked at once
    off = [_distance(reply.text.strip(), a + b) for reply in await asyncio.gather(*asked)]
    ep.log(off=min(off))
    if off[0] == off[1]:
        return dict.fromkeys(AGENTS, 0.5)
    return {name: float(mine == min(off)) for name, mine in zip(AGENTS, off, strict=True)}


def _distance(said: str, right: int) -> int:
    """What is no number is further away than any."""
    return abs(int(said) - right) if said.isdecimal() and len(said) < 10 else 10**9
