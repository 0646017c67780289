"""Replies of a base of random weights, paid by the vowels in them: no two members of a group are worth the same.

system     40 81773 9 …
user       12+45=
assistant  ouqa…
"""

from marlaas.plugins import Episode, env


@env
async def babble(ep: Episode, preamble: int = 64) -> float:
    """Pays the share of vowels in a reply to a sum, after `preamble` characters to be read first."""
    text = "".join(ep.rng.choices("0123456789 ", k=preamble))
    agent = ep.agent(system=text or None)
    reply = await agent.ask(f"{ep.rng.randint(10, 99)}+{ep.rng.randint(10, 99)}=")
    vowels = sum(reply.text.lower().count(vowel) for vowel in "aeiou")
    return vowels / max(1, len(reply.text))
