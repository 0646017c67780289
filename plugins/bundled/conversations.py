"""Supervised fine-tuning: the rows of a task's [data] are conversations, and their replies are what is learned.

    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Ahoy!"}]}

Rows with "prompt" and "completion" are read as well, and those with "conversations" (ShareGPT). "tools" may stand in
any of them.
"""

from typing import Any

from marlaas.plugins import Episode, Skip, env


@env
async def conversations(ep: Episode, task: Any, weight: float = 1.0) -> float:
    """Learns the replies of conversations; in evaluations the score is the mean log-probability of a token."""
    if ep.member:
        raise Skip("a row is shown once in a group")
    shown = await ep.demonstrate(task)
    return shown * weight if ep.split == "train" else shown
