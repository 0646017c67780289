"""Two roles, one result: what the adder hands on is all that the sorter has.

    adder      237+682=  ->  919
    sorter     sort 919  ->  199

Both are paid the same: 1 if the sorter's digits are those of the right sum, in rising order. Neither role can do it
alone, so a task with a policy for each learns what a task that trains one of them cannot.
"""

from typing import Annotated

from marlaas.plugins import Episode, Range, env


@env(agents=("adder", "sorter"))
async def relay(ep: Episode, digits: Annotated[int, Range(2, 5)] = 3) -> bool:
    """Adds two numbers of `digits` digits and sorts the digits of their sum, a role for each."""
    low, high = 10 ** (digits - 1), 10**digits - 1
    a, b = ep.rng.randint(low, high), ep.rng.randint(low, high)
    said = await ep.agent("adder").ask(f"{a}+{b}=", max_tokens=8)
    handed = said.text if said.text.isascii() and said.text.isdigit() else "0"
    reply = await ep.agent("sorter").ask(f"sort {handed}", max_tokens=8)
    ep.log(added=handed == str(a + b), sorted=reply.text == "".join(sorted(handed)))
    return reply.text == "".join(sorted(str(a + b)))
