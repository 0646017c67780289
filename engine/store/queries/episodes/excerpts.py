"""What was asked and answered in a conversation, in a few words, for lists. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

PROMPT, REPLY = 2000, 200
"""Characters that lists get to see: what differs between prompts may stand behind much that all have in common."""
BETWEEN = " … "


@dataclass(frozen=True)
class Excerpt:
    """Foreign text: a model, an environment or a tenant wrote it."""

    prompt: str = ""
    """The last message before the first reply."""
    reply: str = ""
    """The last reply, without its thoughts; empty where there is none, or nothing in it."""
    replies: int = 0
    """Turns in which the agent answered."""

    @property
    def short_prompt(self) -> str:
        """The beginning of the prompt."""
        return self.prompt[:PROMPT]

    @property
    def short_reply(self) -> str:
        """The reply; of a long one its beginning and its end, where answers stand."""
        half = REPLY // 2
        return self.reply if len(self.reply) <= REPLY else f"{self.reply[:half]}{BETWEEN}{self.reply[-half:]}"


def excerpt(trajectories: Iterable[str | None]) -> Excerpt:
    """What a conversation was about, from the stored turns of its trajectories, in order.

    A damaged row gives nothing, so that it spoils no list; whoever opens it is told what is wrong.
    """
    prompt, reply, replies = "", "", 0
    try:
        for stored in trajectories:
            for turn in json.loads(stored or "[]"):
                role, text = turn["role"], turn["text"]
                if role == "assistant":
                    reply, replies = text, replies + 1
                elif role != "thinking" and not replies:
                    prompt = text
    except (ValueError, KeyError, TypeError):
        return Excerpt()
    return Excerpt(prompt, reply, replies)


def first_place(places: str | None) -> int:
    """The place in its episode of a trajectory's first turn, from the stored places; 0 where it is not known."""
    try:
        return int(json.loads(places or "[0]")[0])
    except (ValueError, TypeError, LookupError):
        return 0
