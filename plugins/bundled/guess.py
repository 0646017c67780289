"""A guessing game, in several turns.

    user       Guess my number from 412 to 426.
    assistant  419
    user       higher
    assistant  423
    user       lower
    assistant  421

The reward is 1 if the number is found in time. Halving what is left always finds it (15 numbers, 4 turns); counting
upwards from the lowest number finds it in 4 of 15 games.
"""

from marlaas.plugins import Episode, Invalid, env


@env
async def guess(ep: Episode, width: int = 15, turns: int = 4, highest: int = 999) -> bool:
    """Finds a number among `width`, in `turns`; the range lies anywhere from 0 to `highest`."""
    if not 1 <= width <= highest + 1:
        raise ValueError(f"width must be 1 to {highest + 1}, not {width}")
    low = ep.rng.randint(0, highest - width + 1)
    secret = ep.rng.randint(low, low + width - 1)
    say = f"Guess my number from {low} to {low + width - 1}."
    for turn in range(1, turns + 1):
        reply = await ep.ask(say, max_tokens=8)
        ep.log(turns=turn)
        if not (reply.text.isascii() and reply.text.isdigit()):
            raise Invalid("not a number", reward=0.0)
        number = int(reply.text)
        if number == secret:
            return True
        say = "higher" if number < secret else "lower"
    return False
