"""Two agents, one asked ten times as often: a writer makes drafts, all at once, and a judge reads one of them.

writer     40 81773 9 …  ->  7 1
writer     40 81773 9 …  ->  88
judge      7 1           ->  7 1 0
"""

import asyncio

from marlaas.plugins import Episode, env


@env(agents=("writer", "judge"))
async def drafts(ep: Episode, count: int = 10, prompt: int = 24, tool: float = 0.0) -> dict[str, float]:
    """Pays each agent the share of its characters that are odd digits: what any base can learn.

    The writer is done when its drafts are there; the judge begins after ``tool`` seconds.
    """
    writer, text = ep.agent("writer"), "".join(ep.rng.choices("0123456789 ", k=prompt))
    replies = await asyncio.gather(*(writer.fork().ask(text) for _ in range(count)))
    said = [reply.text for reply in replies]
    ep.reward(_odd("".join(said)), agent="writer", final=True)
    await asyncio.sleep(tool)
    verdict = await ep.agent("judge").ask(said[0][:prompt] or "0")
    return {"judge": _odd(verdict.text)}


def _odd(text: str) -> float:
    return sum(text.count(digit) for digit in "13579") / max(1, len(text))
