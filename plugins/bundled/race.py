"""Two players look for the same number in turn; who finds it first has won.

    first      Guess my number from 412 to 426.  ->  419  ->  higher  ->  423  ->  lower  ->  421
    second     Guess my number from 412 to 426.  ->  412  ->  higher  ->  413

Each hears of its own guesses only. The winner's reward is 1 and the other's 0; if neither finds the number in time,
both get a half. Halving what is left beats counting upwards, and whoever is first has a turn more, so that policies are
measured as both agents: `rotate = true` under [eval].
"""

from typing import Annotated

from marlaas.plugins import Agent, Episode, Range, env

DRAW = 0.5


@env(agents=("first", "second"))
async def race(
    ep: Episode, width: int = 15, turns: Annotated[int, Range(1, 64)] = 6, highest: int = 999
) -> dict[str, float]:
    """Two players hunt a number among `width`, each with `turns` guesses; it lies anywhere from 0 to `highest`."""
    if not 1 <= width <= highest + 1:
        raise ValueError(f"width must be 1 to {highest + 1}, not {width}")
    low = ep.rng.randint(0, highest - width + 1)
    secret = ep.rng.randint(low, low + width - 1)
    first, second = ep.agent("first"), ep.agent("second")
    says = dict.fromkeys(("first", "second"), f"Guess my number from {low} to {low + width - 1}.")
    for turn in range(1, turns + 1):
        for player, opponent in ((first, second), (second, first)):
            guess = await _guess(player, says[player.name])
            if guess == secret:
                ep.log(turns=turn)
                return {player.name: 1.0, opponent.name: 0.0}
            if guess is None:
                ep.log(turns=turn)
                return {player.name: 0.0, opponent.name: 1.0}
            says[player.name] = "higher" if guess < secret else "lower"
    ep.log(turns=turns)
    return {"first": DRAW, "second": DRAW}


async def _guess(player: Agent, say: str) -> int | None:
    """A number, or None for what is none."""
    reply = await player.ask(say, max_tokens=8)
    return int(reply.text) if reply.text.isascii() and reply.text.isdigit() else None
