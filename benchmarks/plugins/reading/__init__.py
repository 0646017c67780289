"""A sum behind a preamble of random digits, different for each group: long prompts and short answers.

system     40 81773 9 …
user       12+45=
assistant  57
"""

from marlaas.plugins import Episode, env


@env
async def reading(ep: Episode, preamble: int = 240) -> float:
    """Adds two numbers after `preamble` characters; half-right answers are paid by the share of places that agree."""
    text = "".join(ep.rng.choices("0123456789 ", k=preamble))
    a, b = ep.rng.randint(10, 99), ep.rng.randint(10, 99)
    agent = ep.agent(system=text or None)
    reply = await agent.ask(f"{a}+{b}=", max_tokens=6)
    right = str(a + b)
    agree = sum(said == place for said, place in zip(reply.text, right, strict=False))
    return agree / max(len(reply.text), len(right))
