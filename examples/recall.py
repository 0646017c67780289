"""A fork: one conversation goes on in several, none of which hears the others.

    user       Remember: the cat is red, the dog is blue, the cow is green. Say "ready".
    assistant  ready
    user       The dog is?          (in a fork)
    assistant  blue
    user       The cow is?          (in another fork: it has not heard of the dog)
    assistant  green

What was said before the fork is trained on once, not once for each question. The questions are asked at the same time:
nobody has to wait for what does not concern it.
"""

import asyncio

from marlaas.plugins import Episode, env

ANIMALS = ("cat", "dog", "cow", "hen", "pig")
COLOURS = ("red", "blue", "green", "black", "white", "brown")


@env
async def recall(ep: Episode, facts: int = 3) -> float:
    """Pays the share of questions that are answered right, each by an agent that was asked nothing else."""
    colours = dict(zip(ep.rng.sample(ANIMALS, facts), ep.rng.sample(COLOURS, facts), strict=True))
    said = ", ".join(f"the {animal} is {colour}" for animal, colour in colours.items())
    reader = ep.agent()
    await reader.ask(f'Remember: {said}. Say "ready".', max_tokens=8)
    questions = [reader.fork().ask(f"The {animal} is?", max_tokens=8) for animal in colours]
    replies = await asyncio.gather(*questions)
    right = [reply.text.strip() == colour for reply, colour in zip(replies, colours.values(), strict=True)]
    return sum(right) / facts
