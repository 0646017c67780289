"""Sums, in as few letters as will do: in training, the right answers of a group are compared with each other.

    user       35+4=
    assistant  39

Held-out episodes have no group: they are measured by their own reward, which is 1 for a right answer of any length.
"""

from marlaas.plugins import Episode, Member, env


@env
async def shortest(ep: Episode, digits: int = 2) -> bool:
    """Adds two numbers; the answer is the last word, and others may stand before it."""
    a, b = (ep.rng.randrange(10**digits) for _ in "ab")
    reply = await ep.ask(f"{a}+{b}=")
    return reply.text.split()[-1:] == [str(a + b)]


@shortest.group
def rank(episodes: list[Member]) -> list[float]:
    """The shortest right answer gets 1, one twice as long a half, a wrong one nothing."""
    lengths = [len(episode.transcript.text) if episode.reward else 0 for episode in episodes]
    best = min((length for length in lengths if length), default=0)
    return [best / length if length else 0.0 for length in lengths]
