"""A game of several turns, with a reward for each: bulls and cows, a secret number of different digits.

    user       Guess my 3 different digits.
    assistant  123
    user       1 in place, 1 elsewhere
    assistant  325

The last turn pays 1. Every digit that is in place pays a little when it is so for the first time: learning needs
rewards before the first game is won.
"""

from typing import Annotated

from marlaas.plugins import Episode, Invalid, Range, env


@env
async def bulls(ep: Episode, digits: Annotated[int, Range(1, 9)] = 3, turns: Annotated[int, Range(1, 20)] = 6) -> bool:
    """Finds a number of different digits from what is said about its guesses."""
    secret = "".join(ep.rng.sample("0123456789", digits))
    say, best = f"Guess my {digits} different digits.", 0
    for turn in range(1, turns + 1):
        guess = (await ep.ask(say, max_tokens=digits + 4)).text.strip()
        ep.log(turns=turn)
        if not (guess.isascii() and guess.isdigit() and len(set(guess)) == len(guess) == digits):
            raise Invalid(f"not {digits} different digits", reward=-0.5)
        if guess == secret:
            return True
        placed = sum(a == b for a, b in zip(guess, secret, strict=True))
        if placed > best:
            ep.reward(0.1 * (placed - best) / digits, name="progress")
            best = placed
        say = f"{placed} in place, {len(set(guess) & set(secret)) - placed} elsewhere"
    return False
