"""Addition from rows that the benchmark wrote: the same prompts, in the same order, as the other side gets.

    user       3201+2033=
    assistant  5234

``train.jsonl`` and ``eval.jsonl`` lie next to this file; row *n* is group *n*.
"""

from marlaas.plugins import Episode, env

from .grading import reward


@env(data="{split}.jsonl")
async def sums(ep: Episode, task: dict[str, str], graded: bool = False) -> float:
    """Adds two numbers, with a preamble to read first where the row has one."""
    agent = ep.agent(system=task["preamble"] or None)
    reply = await agent.ask(task["prompt"])
    return reward(reply.text, task["answer"], graded)
