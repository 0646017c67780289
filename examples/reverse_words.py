"""Spell a word backwards: an environment in ten lines. Copy this file into your plugins folder and it is served."""

from marlaas.plugins import Episode, env

WORDS = {"train": ["cat", "dog", "sun", "tree", "bird", "lamp"], "eval": ["moon", "fish"]}


@env(data=lambda split: WORDS[split])
async def reverse_words(ep: Episode, task: str) -> bool:
    reply = await ep.ask(f"reverse {task}")
    return reply.text.strip() == task[::-1]
