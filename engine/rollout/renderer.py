"""Conversations as tokens, by appending only: tokens in, tokens out.

Messages come in, the token ids to append go out; sampled ids come in, text and tool calls go out. What was sampled is
never tokenised again: ``extend`` renders the conversation with a mark in the reply's place and tokenises what follows
the mark. Knows no sampler and no policy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..environments.protocol import Message, ToolCall
from ..errors import BaseModelError
from .template import load_template, read_settings
from .toolcalls import split_calls
from .vocabulary import Vocabulary, strings

ROLES = ("system", "user", "assistant", "tool")
CACHED = 1024
"""First prompts kept; the members of a group share theirs."""

Key = tuple[tuple[tuple[str, ...], ...], str]


@dataclass(frozen=True)
class Spoken:
    """A reply as text."""

    text: str
    """Without tool calls and the token that ended the turn."""
    tool_calls: tuple[ToolCall, ...]
    shown: str
    """As the model wrote it, tool calls included: for people."""


class Renderer:
    """One base model's template and tokenizer."""

    def __init__(self, base: Path) -> None:
        """Read both from the base model's folder. Raises ``BaseModelError``, also as ``check_extension`` does."""
        self._template = load_template(base)
        self._vocabulary = Vocabulary(base / "tokenizer.json")
        self._opened: OrderedDict[Key, tuple[int, ...]] = OrderedDict()
        closing = self._after_reply([Message("user", "a")], [Message("user", "b")])[:1]
        control = self._vocabulary.control.values()
        self.stop_ids = tuple(
            sorted({*_ends(base, self._vocabulary), *(token for token in closing if token in control)})
        )
        """Tokens that end a turn."""
        self.check_extension()

    def open(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """The first tokens of a conversation, generation prompt included.

        Raises ``ValueError`` for an unknown role, ``BaseModelError`` where the template refuses the conversation.
        """
        key = _key(messages, tools)
        if key in self._opened:
            self._opened.move_to_end(key)
            return list(self._opened[key])
        tokens = self._render(messages, tools)
        self._opened[key] = tuple(tokens)
        if len(self._opened) > CACHED:
            self._opened.popitem(last=False)
        return tokens

    def extend(self, history: Sequence[Message], finish: str, new: Sequence[Message]) -> list[int]:
        """The tokens to append after a sampled reply: the turn's end if it lacks, ``new``, the generation prompt.

        ``history`` ends with the reply (or does not have it, where nothing could be said); ``finish`` is the sampler's:
        after ``stop`` the reply holds its own end. Raises as ``open`` does.
        """
        before = list(history)
        if before and before[-1].role == "assistant":
            before.pop()
        tokens = self._after_reply(before, new)
        return tokens[1:] if finish == "stop" and tokens[:1] and tokens[0] in self.stop_ids else tokens

    def parse(self, tokens: Sequence[int]) -> Spoken:
        """What a reply says. Any token ids are fine; invalid UTF-8 is replaced."""
        said = list(tokens)
        if said and said[-1] in self.stop_ids:
            said.pop()
        shown = self._vocabulary.decode(said)
        text, calls = split_calls(shown)
        return Spoken(text, calls, shown)

    def check_extension(self) -> None:
        """Raise ``BaseModelError`` unless later turns leave earlier tokens as they are.

        Also that tokenising by pieces gives what the tokenizer gives for the whole.
        """
        call = (ToolCall("f", {"x": 1}),)
        talk = [
            Message("system", "Be brief."),
            Message("user", "What is 1+1?"),
            Message("assistant", "2"),
            Message("user", "And f of 1?"),
            Message("assistant", "", tool_calls=call),
            Message("tool", "3", name="f"),
            Message("assistant", "3"),
            Message("user", "Thanks."),
        ]
        talk = [message for message in talk if message.role != "system" or self._takes_system()]
        prompts = [talk[: n + 1] for n in range(len(talk)) if talk[n].role in ("user", "tool")]
        texts = [self._template.render([_plain(message) for message in prompt], None) for prompt in prompts]
        for shorter, longer in pairwise(texts):
            if not longer.startswith(shorter):
                raise BaseModelError(
                    "The base model's chat template rewrites earlier turns when later ones are added.",
                    "marlaas trains on the tokens that were sampled; use a template that only appends.",
                )
        if self._vocabulary.encode(texts[-1]) != self._vocabulary.encode_whole(texts[-1]):
            raise BaseModelError("The base model's tokenizer cannot be used piece by piece, which marlaas needs.")

    def _takes_system(self) -> bool:
        try:
            self._template.render([_plain(Message("system", "a")), _plain(Message("user", "b"))], None)
        except BaseModelError:
            return False
        return True

    def _render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
        plain = [_plain(message) for message in messages]
        guard = self._vocabulary.guard(strings([plain, list(tools)]))
        return self._vocabulary.encode(self._template.render(guard.safe(plain), guard.safe(list(tools))), guard.mark)

    def _after_reply(self, history: Sequence[Message], new: Sequence[Message]) -> list[int]:
        """Tokens that follow a reply to ``history`` when ``new`` comes after it, the turn's end included."""
        before, after = [_plain(message) for message in history], [_plain(message) for message in new]
        guard = self._vocabulary.guard(strings([before, after]))
        said = {"role": "assistant", "content": guard.reply}
        text = self._template.render([*guard.safe(before), said, *guard.safe(after)], None)
        _, found, tail = text.rpartition(guard.reply)
        if not found:
            raise BaseModelError("The base model's chat template does not show what the assistant said.")
        return self._vocabulary.encode(tail, guard.mark)


def _key(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Key:
    """What equal conversations have in common, and different ones have not."""
    said = tuple((m.role, m.content, m.name, repr(m.tool_calls) if m.tool_calls else "") for m in messages)
    return said, repr(tools) if tools else ""


def _plain(message: Message) -> dict[str, Any]:
    """As templates want it. Raises ``ValueError`` for an unknown role, which could spell a control token."""
    if message.role not in ROLES:
        raise ValueError(f"A message has the role {message.role!r}; it must be one of {', '.join(ROLES)}.")
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        plain["name"] = message.name
    if message.tool_calls:
        calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        plain["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return plain


def _ends(base: Path, vocabulary: Vocabulary) -> set[int]:
    """Ends of text that the model's own files name."""
    declared = read_settings(base, "generation_config.json").get("eos_token_id", [])
    ids = {declared} if isinstance(declared, int) else set(declared or [])
    name = read_settings(base).get("eos_token")
    if isinstance(name, dict):
        name = name.get("content")
    return ids | ({vocabulary.control[name]} if name in vocabulary.control else set())
