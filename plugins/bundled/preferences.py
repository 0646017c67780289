"""Direct preference optimization (DPO): the rows of a task's [data] are pairs of a chosen and a rejected reply.

{"prompt": "What is the capital of Spain?", "chosen": "Madrid.", "rejected": "I do not know."}
"""

from typing import Any

from marlaas.plugins import Episode, env
from marlaas.plugins.conversations import pair_of


@env
async def preferences(ep: Episode, task: Any) -> float:
    """Learns to prefer; in evaluations the score is the share of pairs whose chosen reply is likelier by token."""
    chosen, rejected = pair_of(task)
    if ep.split == "train":
        return -await ep.demonstrate(rejected) if ep.member else await ep.demonstrate(chosen)
    return float(await ep.demonstrate(chosen, "chosen") > await ep.demonstrate(rejected, "rejected"))
