"""One question, one answer: the model adds two numbers.

A person sees the reward with `marlaas env play my_env`; `marlaas env check my_env` looks for mistakes.
"""

from typing import Annotated

from marlaas.plugins import Episode, Range, Score, env


@env
async def my_env(ep: Episode, digits: Annotated[int, Range(1, 6)] = 2) -> Score:  # the settings of a task file
    """Adds two numbers of this many digits."""  # the first line is what `marlaas env list` shows
    # ep.rng draws the task. All members of a group draw the same one, so that their rewards can be compared.
    a, b = (ep.rng.randrange(10**digits) for _ in range(2))
    reply = await ep.ask(f"{a}+{b}=", max_tokens=digits + 8)  # as the tiny base was taught; ask others in words
    right = reply.text.strip() == str(a + b)
    # A number or a bool is a reward, too. The named parts of a Score are charted next to it and never trained on.
    return Score(float(right), digits_only=float(reply.text.strip().isdigit()))
