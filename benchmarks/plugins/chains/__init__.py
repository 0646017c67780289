"""Sums one after the other until a reply happens to end the episode: members of a group have very different turns.

user       47+85=
assistant  1ka
user       20+31=
assistant  5
"""

from marlaas.plugins import Episode, env


@env
async def chains(ep: Episode, most: int = 24, one_in: int = 8) -> float:
    """Pays the share of vowels; after a reply the episode ends once in `one_in` times, at the latest after `most`."""
    agent, said = ep.agent(), ""
    for _ in range(most):
        reply = await agent.ask(f"{ep.rng.randint(10, 99)}+{ep.rng.randint(10, 99)}=", max_tokens=8)
        said += reply.text
        if sum(map(ord, reply.text)) % one_in == 0:
            break
    return sum(said.count(vowel) for vowel in "aeiou") / max(1, len(said))
