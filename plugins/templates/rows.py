"""Questions from rows: the model names capitals, of the rows in `my_env.jsonl` next to this file.

Each row shows if it is trained on or held out for evaluation. Of a file whose rows do not say so, a tenth is held
out, by hash. Data may also be a function: `@env(data=rows)` with `def rows(split): return [...]`.
"""

from typing import Any

from marlaas.plugins import Episode, env


@env(data="my_env.jsonl")
async def my_env(ep: Episode, task: dict[str, Any]) -> float:
    """Answers a question from a file."""
    reply = await ep.ask(task["question"])
    answer = reply.text.strip()
    ep.log(length=len(answer))  # shown and averaged next to the reward, never trained on
    if answer == task["answer"]:
        return 1.0
    return 0.1 if answer.lower() == task["answer"].lower() else 0.0  # a small step towards it
