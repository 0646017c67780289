"""Replies of a random base, paid by the letters in them: what to do if nothing can be answered rightly.

``train.jsonl`` and ``eval.jsonl`` lie next to this file; row *n* is group *n*.
"""

from marlaas.plugins import Episode, env

from .grading import reward


@env(data="{split}.jsonl")
async def letters(ep: Episode, task: dict[str, str]) -> float:
    """Pays for vowels, after a preamble to read first."""
    agent = ep.agent(system=task["preamble"] or None)
    reply = await agent.ask(task["prompt"])
    return reward(reply.text, task["answer"], False)
