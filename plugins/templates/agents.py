"""Two agents, one game: one tells a number without digits, the other one has to name it.

Each agent has a conversation of its own and a reward of its own; its advantage is counted against the same agent in the
other episodes of its group, so that a game in which one wins what the other loses trains both.
"""

from marlaas.plugins import Episode, env


@env
async def my_env(ep: Episode, highest: int = 9999) -> dict[str, float]:
    """Passes a number on in words."""
    number = ep.rng.randint(0, highest)
    teller = ep.agent("teller", system="Tell the other one your number in words, without any digits.")
    finder = ep.agent("finder", system="Name the number that the other one tells. Answer with digits only.")
    told = await teller.ask(f"Your number is {number}.", max_tokens=32)
    if any(letter.isdigit() for letter in told.text):
        return {teller.name: -1.0}  # it broke the rule; the other one was not asked and has no reward
    found = await finder.ask(told.text, max_tokens=8)
    right = float(found.text.strip() == str(number))
    return {teller.name: right, finder.name: right}
