"""Spell a word backwards: a whole environment. Copy this file into your plugins folder: it is served at once."""

from marlaas.plugins import Episode, env

WORDS = {"train": ["cat", "dog", "sun", "tree", "bird", "lamp"], "eval": ["moon", "fish"]}


@env(data=lambda split: WORDS[split])
async def reverse_words(ep: Episode, task: str) -> bool:
    """Reward the reversed word."""
    reply = await ep.ask(f"reverse {task}")
    return reply.text.strip() == task[::-1]
