"""Addition, in one turn.

    user       47+85=
    assistant  132

The reward is 1 for the sum and nothing else, 0 otherwise. `lenient` is logged next to it: whether the last number of
the reply is the sum, whatever stands around it. When only the reward rises, the policy has learned the format.
"""

import re
from typing import Annotated

from marlaas.plugins import Episode, Range, env


@env
async def arithmetic(ep: Episode, digits: Annotated[int, Range(1, 9)] = 2) -> bool:
    """Adds two numbers of this many digits."""
    low, high = 10 ** (digits - 1), 10**digits - 1
    a, b = ep.rng.randint(low, high), ep.rng.randint(low, high)
    reply = await ep.ask(f"{a}+{b}=", max_tokens=digits + 8)
    right = str(a + b)
    ep.log(lenient=float(re.findall(r"-?[0-9]+", reply.text)[-1:] == [right]))
    return reply.text == right
