"""Placeholders that stand for replies while a template writes a conversation, and the way back to the sampled ids.

The template gets plain messages with one mark for each reply's thought and one for its answer; in its text the marks
are then replaced by the sampled ids. No text of a model is ever tokenised here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from marlaas.plugins.messages import Message

from .spoken import CLOSE, OPEN, Spoken
from .vocabulary import Guard, Vocabulary

ROLES = ("system", "user", "assistant", "tool")

Said = Message | Spoken
"""An entry of a conversation: a message of the environment, or a reply."""


class Placeholders:
    """The marks of one conversation's replies."""

    def __init__(self, guard: Guard, replies: Sequence[Spoken], trims: bool) -> None:
        """``trims``: whether the template removes the space before an answer whose thought it leaves out."""
        self._guard = guard
        self._trims = trims
        self.replies = replies
        self._places = {mark: (number, False) for number, mark in enumerate(guard.thoughts)}
        self._places |= {mark: (number, True) for number, mark in enumerate(guard.answers)}
        any_of = [f"[{''.join(marks)}]" if marks else "(?!)" for marks in (guard.thoughts, guard.answers, self._places)]
        self._thought = re.compile(rf"(?:{OPEN}\s*)?({any_of[0]})(\s*{CLOSE}\s*({any_of[1]}))?")
        self._split = re.compile(f"({any_of[2]})")

    def safe(self, value: Any) -> Any:
        """``value`` with every string made safe for the template."""
        return self._guard.safe(list(value))

    def messages(self, said: Sequence[Said]) -> list[dict[str, Any]]:
        """For the template. Raises ``ValueError`` for an unknown role, which could spell a control token."""
        numbers = iter(range(len(self.replies)))
        return [self._guard.safe(plain(s)) if isinstance(s, Message) else self._reply(next(numbers)) for s in said]

    def normal(self, text: str) -> str:
        """``text`` with each thought that it shows in the form of the sampled ids, which include the tags."""
        return self._thought.sub(self._as_sampled, text)

    def whole(self, number: int) -> str:
        """What stands in a normal text for a whole reply."""
        reply, thought, answer = self.replies[number], self._guard.thoughts[number], self._guard.answers[number]
        if reply.thought is None:
            return answer
        return thought if _to_be_closed(reply) else thought + answer

    def splice(self, text: str, vocabulary: Vocabulary, stop: Sequence[int], after: Spoken | None = None) -> list[int]:
        """Ids of a normal text, with the sampled ones in place of the marks.

        ``after`` is the reply before the text. A reply that ended by itself keeps the id that ended it, and the
        template's end of that turn, which follows, is left out.
        """
        ids: list[int] = []
        ended = after is not None and after.ended
        before = ""
        for number, piece in enumerate(self._split.split(text)):
            if number % 2:
                reply, of_answer = self.replies[self._places[piece][0]], self._places[piece][1]
                ids.extend(self._sampled(piece, before))
                ended = reply.ended and (of_answer or reply.cut)
                before = piece
                continue
            found = vocabulary.encode(piece, self._guard.mark)
            ids.extend(found[1:] if ended and found[:1] and found[0] in stop else found)
            if piece:
                ended, before = False, ""
        return ids

    def _as_sampled(self, shown: re.Match[str]) -> str:
        """A shown thought with its tags as sampled; where its answer does not follow, the text as it is."""
        number = self._places[shown[1]][0]
        reply = self.replies[number]
        if _to_be_closed(reply):
            return reply.opened + shown[1] + (shown[2] or "")
        return reply.opened + shown[1] + shown[3] if shown[3] == self._guard.answers[number] else shown[0]

    def _sampled(self, mark: str, before: str) -> tuple[int, ...]:
        """The ids that a mark stands for; ``before`` is the mark directly before it."""
        number, of_answer = self._places[mark]
        reply = self.replies[number]
        if reply.thought is None:
            return reply.tokens
        if reply.cut:
            return () if of_answer else reply.tokens
        if not of_answer:
            return reply.tokens[: reply.thought]
        kept = before == self._guard.thoughts[number]
        return reply.tokens[reply.thought if kept or not self._trims else reply.answer :]

    def _reply(self, number: int) -> dict[str, Any]:
        """A reply for the template; its calls are part of its text, so they are not given separately."""
        answer = self._guard.answers[number]
        if self.replies[number].thought is None:
            return {"role": "assistant", "content": answer}
        return {"role": "assistant", "content": f"{OPEN}\n{self._guard.thoughts[number]}\n{CLOSE}{answer}"}


def plain(message: Message) -> dict[str, Any]:
    """For the template. Raises ``ValueError`` for an unknown role, which could spell a control token."""
    if message.role not in ROLES:
        raise ValueError(f"A message has the role {message.role!r}; it must be one of {', '.join(ROLES)}.")
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        made["name"] = message.name
    if message.tool_calls:
        calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        made["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return made


def _to_be_closed(reply: Spoken) -> bool:
    """Whether the template must close a reply's thought, because the model had no room for that."""
    return reply.cut and not reply.ended
