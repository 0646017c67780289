"""Sums one after the other in one episode, each paid as soon as it is right.

    user       47+85=
    assistant  132
    user       20+31=
    assistant  50

No sum depends on another: a reply is answerable for its own payment alone.
"""

from marlaas.plugins import Episode, env


@env
async def series(ep: Episode, turns: int = 5) -> None:
    """Adds two numbers of two digits, several times."""
    for _ in range(turns):
        a, b = ep.rng.randint(10, 99), ep.rng.randint(10, 99)
        reply = await ep.ask(f"{a}+{b}=", max_tokens=8)
        ep.reward(float(reply.text == str(a + b)) / turns, name="right")
