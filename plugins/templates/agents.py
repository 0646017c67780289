"""Two roles, one result: one tells a number without digits, the other one has to name it.

Each has a conversation and its own reward, compared with those of the same role in the other episodes of its
group. A task file with [policy] trains one policy for both; with a policy for each it says

    [policies.speaker]
    [policies.listener]
    [agents]
    teller = "speaker"
    finder = "listener"
"""

from marlaas.plugins import Episode, env


@env(agents=("teller", "finder"))  # who speaks in it: a task that leaves one out is refused when it is submitted
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
