"""Two players add the same numbers at the same time, and whoever is nearer wins: copy it into your plugins folder."""

import asyncio

from marlaas.plugins import Episode, env


@env(agents=("first", "second"))
async def duel(ep: Episode, highest: int = 99) -> dict[str, float]:
    """Pays 1 to the winner and 0 to the loser, in a draw a half to each."""
    a, b = ep.rng.randint(0, highest), ep.rng.randint(0, highest)
    players = ep.agent("first"), ep.agent("second")
    replies = await asyncio.gather(*(player.ask(f"{a}+{b}=", max_tokens=8) for player in players))
    first, second = (abs(int(said.text) - a - b) if said.text.isdecimal() else 10**9 for said in replies)
    won = 0.5 if first == second else float(first < second)
    return {"first": won, "second": 1 - won}
