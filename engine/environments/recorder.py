"""Records what is said in an episode, to be scored or ranked later.

The transcript is made here, not in the plugin's process: so it is what was really said, and is not sent twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from marlaas.plugins.messages import Answer, Ask, Endpoint, Message, Reply
from marlaas.plugins.scoring import Transcript

from .protocol import Listener, endpoint_of

LARGEST = 2 << 20
"""Most characters of a transcript: together with the episode's task it has to fit into one message of the wire."""


class Recorder:
    """An ``Answer`` that passes asks to another one and records both sides."""

    def __init__(self, answer: Answer) -> None:
        self.too_long = False
        """Whether more was said than is kept: then there is no transcript."""
        self._answer = answer
        self._said: dict[str, list[Message]] = {}
        self._size = 0

    async def __call__(self, ask: Ask) -> Reply:
        """Pass an ask on, and its reply back."""
        self._keep(ask.agent, ask.messages)
        reply = await self._answer(ask)
        self._keep(ask.agent, (Message("assistant", reply.text, tool_calls=reply.tool_calls),))
        return reply

    async def endpoint(self, listener: Listener) -> Endpoint:
        """See ``Answering``; what is asked there goes through this recorder, too."""
        return await endpoint_of(self._answer)(listener)

    @property
    def transcript(self) -> Transcript:
        """What was said so far, by agent."""
        return Transcript({agent: tuple(said) for agent, said in self._said.items()})

    def _keep(self, agent: str, messages: Sequence[Message]) -> None:
        self._size += sum(len(message.content) for message in messages)
        self.too_long = self.too_long or self._size > LARGEST
        if self.too_long:
            self._said.clear()
        else:
            self._said.setdefault(agent, []).extend(messages)
