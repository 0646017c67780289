"""For libraries that send the whole history with every question, while an agent takes only new messages.

Usually each history continues the one before. One that omits or rewrites something continues in a fork of the agent,
from the last reply that it shares with an earlier history. So every token is trained on once, in the conversation in
which it was sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..agent import Agent
from ..episode import Episode
from ..messages import Message, Reply
from ..tools import Tool


@dataclass
class _Point:
    """A place in a conversation from which it can continue."""

    said: tuple[Message, ...]
    """All messages up to there, without the system prompt."""
    agent: Agent


class FullHistory:
    """One agent of an episode, asked with whole histories."""

    def __init__(self, ep: Episode) -> None:
        self._ep = ep
        self._points: list[_Point] = []

    async def ask(self, history: Sequence[Message], tools: Callable[[], Sequence[Tool]]) -> Reply:
        """The reply to a history; ``tools`` is called once, before the first.

        Raises ``RuntimeError`` if the system prompt changes, or if there is nothing to reply to.
        """
        opened = bool(history) and history[0].role == "system"
        system, said = (history[0].content, tuple(history[1:])) if opened else (None, tuple(history))
        if not self._points:
            self._points.append(_Point((), self._ep.agent(system=system, tools=tools())))
        if system != self._points[0].agent.system:
            raise RuntimeError("the system prompt changes in the middle of a rollout, which is not supported")
        point = max((each for each in self._points if said[: len(each.said)] == each.said), key=lambda at: len(at.said))
        news = said[len(point.said) :]
        if not news:
            raise RuntimeError("the history ends with a reply: there is nothing to ask")
        agent = point.agent
        point.agent = agent.fork()  # stays behind, for a history that comes back to here
        reply = await agent.ask(news)
        self._points.append(_Point((*said, Message("assistant", reply.text, tool_calls=reply.tool_calls)), agent))
        return reply
