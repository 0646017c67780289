"""Stands in for the model in a replay: answers the environment's asks with the recorded replies of an episode.

It also tells where the asks first differ from the recorded ones. Knows neither a database nor processes.

The store keeps a reply as the text that the model wrote, so nothing is decoded here. The tools of an agent and the
limits of an ask are not stored: an ask that differs in them alone counts as the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marlaas.plugins.messages import Ask, Reply, ToolCall

from ..errors import MarlaasError
from ..rollout import before_stop
from ..store import RecordedAgent, RecordedEpisode

Calls = Callable[[str, bool], tuple[str, tuple[ToolCall, ...]]]
"""Parses tool calls in the base's format: (reply, whether it had tools) to (text without the calls, calls)."""

SAID = ("thinking", "assistant")
DEAF_ASKS = 100
"""Asks after an agent's tokens are used up, until the replay of the episode ends."""


class BeyondRecord(MarlaasError):
    """No reply was recorded for an ask, so the replay of the episode ends."""


class Playback:
    """Answers the asks of one episode; can be passed as an ``Answer``."""

    def __init__(self, episode: RecordedEpisode, max_tokens: int, calls: Calls) -> None:
        """``max_tokens``: the limit of one reply, by the task."""
        self._tracks = {name: _Track(name, agent, max_tokens, calls) for name, agent in episode.agents.items()}
        self._difference = ""

    async def __call__(self, ask: Ask) -> Reply:
        """The recorded reply. Raises ``BeyondRecord`` where there is none, or where it cannot be told which it is."""
        if ask.branch or (ask.fork is not None and ask.fork.branch):
            raise BeyondRecord("an agent's own conversation branches there, which cannot be replayed")
        track = self._tracks.get(ask.agent)
        if track is None:
            raise BeyondRecord(f"it asks the agent {ask.agent!r}, whom nobody asked then")
        if ask.fork is not None:
            track.leave(self._tracks.get(ask.fork.agent), ask.fork.turns)
        difference = track.difference(ask)
        self._difference = self._difference or difference
        return track.reply(ask)

    @property
    def difference(self) -> str:
        """How the asks so far first differ from the recorded ones; empty where they do not."""
        return self._difference

    @property
    def unheard(self) -> str:
        """That recorded replies have not been asked for so far, in words; empty if all have been."""
        return next((left for track in self._tracks.values() if (left := track.unheard)), "")


@dataclass
class _Track:
    """The conversation of one agent."""

    name: str
    recorded: RecordedAgent
    max_tokens: int
    calls: Calls
    tools: bool = False
    at: int = 0
    """The recorded turn that comes next."""
    replied: int = 0
    before: int = 0
    """For a fork, replies in the original conversation before it."""
    deaf: int = 0

    @property
    def unheard(self) -> str:
        """See ``Playback.unheard``."""
        recorded = len(self.recorded.replies)
        return f"it ends after {self.replied} of {recorded} replies" if self.replied < recorded else ""

    def leave(self, origin: _Track | None, turns: int) -> None:
        """Begin as a fork of another agent's conversation after ``turns`` replies."""
        self.before = turns
        self.tools = origin is not None and origin.tools

    def difference(self, ask: Ask) -> str:
        """Skip the recorded messages to the agent up to its next reply; return how the ask differs from them."""
        self.tools = self.tools or bool(ask.tools)
        if self.deaf:
            return ""
        turns = self.recorded.turns
        asked = [(message.role, message.content) for message in ask.messages]
        start, end = self.at, self.at + len(asked)
        then = [(turn.role, turn.text) for turn in turns]
        if asked == then[start:end] and (end >= len(turns) or turns[end].role in SAID):
            self.at = end
            return ""
        while self.at < len(turns) and turns[self.at].role not in SAID:
            self.at += 1
        told = then[start : self.at]
        more = "more" if len(asked) > len(told) else "less"
        amount = f"it says {more} to the agent {self.name!r} than it did then"
        pairs = zip(asked, told, strict=False)
        return next((_told(now, before) for now, before in pairs if now != before), amount)

    def reply(self, ask: Ask) -> Reply:
        """The next of the recorded replies."""
        if self.replied >= len(self.recorded.replies):
            return self._nothing()
        number, self.replied = self.replied, self.replied + 1
        thinking, shown = self._said("thinking"), self._said("assistant")
        text, found = self.calls(shown, self.tools)
        finish = "tool" if found else self._finish(number, ask)
        return Reply(before_stop(text, ask.stop), finish, self.before + number, found, thinking)

    def _said(self, role: str) -> str:
        turns = self.recorded.turns
        if self.at >= len(turns) or turns[self.at].role != role:
            return ""
        self.at += 1
        return turns[self.at - 1].text

    def _finish(self, number: int, ask: Ask) -> str:
        """The finish reason: "length" where a limit ended the reply, or it ended by itself exactly at the limit."""
        limit = min(ask.max_tokens or self.max_tokens, self.max_tokens)
        last = number == len(self.recorded.replies) - 1
        cut = self.recorded.cut if last and not ask.max_tokens else self.recorded.replies[number] >= limit
        return "length" if cut else "stop"

    def _nothing(self) -> Reply:
        """The empty reply of an agent whose tokens are used up, if they were when this was recorded."""
        turns = self.recorded.turns
        full = self.recorded.cut and bool(turns) and turns[-1].role not in SAID
        self.deaf += 1
        if not full or self.deaf > DEAF_ASKS:
            raise BeyondRecord(f"it asks the agent {self.name!r} more often than it did then")
        return Reply("", "length", self.before + self.replied)


def _told(now: tuple[str, str], before: tuple[str, str]) -> str:
    """How two messages, each its role and its text, differ."""
    if now[0] != before[0]:
        return f"it speaks as {now[0]} where it spoke as {before[0]}"
    return f"it says {now[1]!r:.80} where it said {before[1]!r:.80}"
