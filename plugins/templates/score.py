"""Scored apart: the episode only talks, and a function judges what was said.

The function sees the task and the transcript and nothing else. It runs in its own process with a time limit of its
own, so that it may be slow; and `marlaas env replay` runs it again on episodes that were stored long ago.
"""

from typing import Any

from marlaas.plugins import Episode, Score, Transcript, env

WORDS = ("amber", "cloud", "ember", "field", "frost", "grain", "maple", "night", "river", "shore", "stone", "wheel")


@env(score_timeout=5)  # seconds of one call of the score
async def my_env(ep: Episode, words: int = 3) -> None:
    """Writes a sentence with given words in it."""
    ep.task = ep.rng.sample(WORDS, words)  # what the score gets; rows of `@env(data=…)` are there by themselves
    await ep.ask(f"Write one short sentence with the words {', '.join(ep.task)}.", max_tokens=48)


@my_env.score
def score(task: Any, transcript: Transcript) -> Score:
    """The share of the words that are there, if it is a sentence."""
    text = transcript.text.strip()
    found = sum(word in text.lower() for word in task) / len(task)
    sentence = float(text[:1].isupper() and text.endswith("."))
    return Score(found * (0.5 + 0.5 * sentence), words=found, sentence=sentence)
