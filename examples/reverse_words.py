"""Spell a word backwards: a whole environment. Copy this file into your plugins folder: it is served at once."""

from marlaas.plugins import Episode, env


@env
async def reverse_words(ep: Episode, letters: int = 4) -> bool:
    """Rewards the reversed word."""
    word = "".join(ep.rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(letters))
    reply = await ep.ask(f"reverse {word}")
    return reply.text == word[::-1]
