"""Turns messages into token ids."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from marlaas.plugins.messages import Ask, Message, ToolCall

from ..errors import BaseModelError, ConfigError
from ..models.memory import Wanted
from ..models.templates import SWITCH, load_template, read_settings, token_name
from ..samplers.vocabulary import Guard, Vocabulary, strings
from .spoken import CLOSE, OPEN, ReplyStream, Spoken, opened_thought, read_plain, read_reply, stopped_at
from .toolcalls import form_of

# The template gets a mark per thought and answer, replaced by sampled ids.

ROLES = ("system", "user", "assistant", "tool")

Said = Message | Spoken


class Placeholders:
    """Marks of one conversation's replies."""

    def __init__(self, guard: Guard, replies: Sequence[Spoken], trims: bool) -> None:
        """``trims``: without its thought, an answer loses its leading space."""
        self._guard = guard
        self._trims = trims
        self.replies = replies
        self._places = {mark: (number, False) for number, mark in enumerate(guard.thoughts)}
        self._places |= {mark: (number, True) for number, mark in enumerate(guard.answers)}
        any_of = [f"[{''.join(marks)}]" if marks else "(?!)" for marks in (guard.thoughts, guard.answers, self._places)]
        self._thought = re.compile(rf"(?:{OPEN}\s*)?({any_of[0]})(\s*{CLOSE}\s*({any_of[1]}))?")
        self._split = re.compile(f"({any_of[2]})")

    def safe(self, value: Any) -> Any:
        return self._guard.safe(list(value))

    def messages(self, said: Sequence[Said]) -> list[dict[str, Any]]:
        """Raises ``ValueError`` for an unknown role, which could spell a control token."""
        numbers = iter(range(len(self.replies)))
        return [self._guard.safe(plain(s)) if isinstance(s, Message) else self._reply(next(numbers)) for s in said]

    def normal(self, text: str) -> str:
        return self._thought.sub(self._as_sampled, text)

    def whole(self, number: int) -> str:
        reply, thought, answer = self.replies[number], self._guard.thoughts[number], self._guard.answers[number]
        if reply.thought is None:
            return answer
        return thought if _to_be_closed(reply) else thought + answer

    def splice(self, text: str, vocabulary: Vocabulary, stop: Sequence[int], after: Spoken | None = None) -> list[int]:
        """``after``: the previous reply."""
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
        number = self._places[shown[1]][0]
        reply = self.replies[number]
        if _to_be_closed(reply):
            return reply.opened + shown[1] + (shown[2] or "")
        return reply.opened + shown[1] + shown[3] if shown[3] == self._guard.answers[number] else shown[0]

    def _sampled(self, mark: str, before: str) -> tuple[int, ...]:
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
        answer = self._guard.answers[number]
        if self.replies[number].thought is None:
            return {"role": "assistant", "content": answer}
        return {"role": "assistant", "content": f"{OPEN}\n{self._guard.thoughts[number]}\n{CLOSE}{answer}"}


def plain(message: Message) -> dict[str, Any]:
    """Raises ``ValueError`` for an unknown role, which could spell a control token."""
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
    """The model had no room to close its thought."""
    return reply.cut and not reply.ended


# Text after the last mark is appended. If the template rewrote earlier text, the conversation begins again.

CACHED = 1024
"""First prompts; a group shares its own."""
CACHED_CHARACTERS = 16 << 20
TURN_ENDS = ("<|eom_id|>",)
"""Missing in some models' files: Llama ends tool calls with it."""

Key = tuple[tuple[tuple[str, ...], ...], str, bool | None]
Tools = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Opening:
    """A conversation's beginning, shared within a group."""

    tokens: tuple[int, ...]
    digest: bytes
    """Of the tokens, for held-out prompts."""

    @staticmethod
    def of(tokens: Sequence[int]) -> Opening:
        return Opening(tuple(tokens), blake2b(np.array(tokens, np.int32).tobytes(), digest_size=16).digest())


@dataclass(frozen=True)
class Continuation:
    """How a conversation continues."""

    tokens: list[int]
    """To append; the whole new prompt if ``anew``."""
    anew: bool
    """The template rewrote earlier turns."""


class TooLong(ValueError):
    """A conversation exceeds its room."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"it has at least {tokens} tokens")
        self.tokens = tokens
        """A lower bound of its tokens."""


class Renderer:
    """A base's template and tokenizer. Thread-safe."""

    def __init__(self, base: Path, wanted: Wanted | None = None) -> None:
        """``wanted``: for sentences about memory. Raises ``BaseModelError``, also as ``check`` does."""
        self.wanted = wanted
        self.template = load_template(base)
        self.vocabulary = Vocabulary(base / "tokenizer.json")
        structure = self._structure(base)
        if not structure <= self.vocabulary.control.keys():
            self.vocabulary = Vocabulary(base / "tokenizer.json", structure)
        self._calls = form_of(self.template.source, self.vocabulary.added)
        self.shows_tools = self._shows_tools()
        """True if the template writes given tools."""
        self._opened: OrderedDict[Key, tuple[Opening, int]] = OrderedDict()
        """First prompts, with the characters that each was made from."""
        self._kept = 0
        self._lock = threading.Lock()
        self.thread = ThreadPoolExecutor(1, "renderer")
        """Renders long conversations, one after the other."""
        self.thinks = CLOSE in self.template.source or CLOSE in self.vocabulary.added
        """True if ``<think>`` at the beginning of a reply begins a thought."""
        self.switch = SWITCH in self.template.source
        """True if the template can switch thinking on or off."""
        self._trims = self.thinks and self._trims_answers()
        self.stop_ids: tuple[int, ...] = ()
        self.stop_ids = _ends(base, self.vocabulary, self._closing())
        """Tokens that end a turn."""
        self._check_pieces()
        self.warning = " ".join(
            sentence
            for sentence, holds in (
                (NO_TOOLS, not self.shows_tools),
                (DATED, "strftime_now" in self.template.source),
            )
            if holds
        )
        """Remarks on the template for people; may be empty."""

    def known(self, messages: Sequence[Message], tools: Tools = (), thinking: bool | None = None) -> Opening | None:
        """Cached beginning, or None."""
        key = _key(messages, tools, thinking)
        with self._lock:
            if key not in self._opened:
                return None
            self._opened.move_to_end(key)
            return self._opened[key][0]

    def open(
        self,
        messages: Sequence[Message],
        tools: Tools = (),
        thinking: bool | None = None,
        room: int | None = None,
    ) -> list[int]:
        return list(self.opening(messages, tools, thinking, room).tokens)

    def opening(
        self,
        messages: Sequence[Message],
        tools: Tools = (),
        thinking: bool | None = None,
        room: int | None = None,
    ) -> Opening:
        """With the generation prompt.

        ``thinking``: None: the template's default. Raises ``ValueError`` for an unknown role, ``BaseModelError`` if the
        template refuses, ``TooLong`` if the characters exceed ``room`` tokens.
        """
        known = self.known(messages, tools, thinking)
        if known is not None:
            return known
        size = characters(messages, tools)
        self._check_room(size, room)
        marks, text = self._render(messages, tools, thinking)
        self._check_room(len(text), room)
        opening = Opening.of(marks.splice(text, self.vocabulary, self.stop_ids))
        with self._lock:
            key = _key(messages, tools, thinking)
            if key not in self._opened:
                self._opened[key] = opening, size
                self._kept += size
            while len(self._opened) > CACHED or self._kept > CACHED_CHARACTERS:
                self._kept -= self._opened.popitem(last=False)[1][1]
        return opening

    def follow(
        self,
        history: Sequence[Said],
        new: Sequence[Message],
        tools: Tools = (),
        thinking: bool | None = None,
        room: int | None = None,
        anew: bool = False,
    ) -> Continuation:
        """``history`` ends with a reply (else ``ValueError``). ``anew``: its earlier messages have changed.

        New tokens end the reply's turn first if it lacks an end. Raises as ``opening``.
        """
        if not history or not isinstance(history[-1], Spoken):
            raise ValueError("A conversation goes on after a reply.")
        reply = history[-1]
        self._check_room(characters(new), room)
        marks, text = self._render([*history, *new], tools, thinking)
        said = marks.normal(self.template.render(marks.messages(history[:-1]), marks.safe(tools), thinking))
        said += marks.whole(len(marks.replies) - 1)
        if text.startswith(said) and not anew:
            self._check_room(len(text) - len(said), room)
            tail = marks.splice(text[len(said) :], self.vocabulary, self.stop_ids, after=reply)
            return Continuation(tail, anew=False)
        self._check_room(len(text), room)
        return Continuation(marks.splice(text, self.vocabulary, self.stop_ids), anew=True)

    def parse(self, tokens: Sequence[int], prompt: Sequence[int] = (), tools: bool = False) -> Spoken:
        """Any ids; invalid UTF-8 is replaced. A thought may begin in ``prompt``."""
        decode = self.vocabulary.decode
        if not self.thinks:
            return read_plain(tokens, self.stop_ids, decode, self._calls, tools)
        return read_reply(tokens, opened_thought(prompt, decode), self.stop_ids, decode, self._calls, tools)

    def plain(self, tokens: Sequence[int]) -> Spoken:
        return read_plain(tokens, self.stop_ids, self.vocabulary.decode, lambda text, _: (text, ()), False)

    def reread(self, shown: str, tools: bool) -> tuple[str, tuple[ToolCall, ...]]:
        return self._calls(shown, tools)

    def stopped_at(self, tokens: Sequence[int], stops: Sequence[str]) -> int:
        return stopped_at(tokens, stops, self.vocabulary.decode) if stops else len(tokens)

    def check_thinking(self, wanted: bool | None) -> None:
        if wanted is None or self.switch:
            return
        if wanted and not self.thinks:
            raise ConfigError(
                "The task wants 'sampling.thinking' = true, but the base model's chat template knows no thinking.",
                "Leave the setting out, or choose a base that thinks.",
            )
        if self.thinks and not wanted:
            raise ConfigError(
                "The task wants 'sampling.thinking' = false, but the base model's chat template cannot switch it off.",
                "Leave the setting out, or choose a base whose template knows enable_thinking.",
            )

    def guarded(self, messages: Sequence[Message], tools: Tools) -> tuple[list[dict[str, Any]], list[Any], str]:
        """Messages and tools for the template, and the mark to encode its text with. Raises as ``opening``."""
        self._check_tools(tools)
        said = [plain(message) for message in messages]
        guard = self.vocabulary.guard(strings([said, list(tools)]), 0)
        return guard.safe(said), guard.safe(list(tools)), guard.mark

    def _check_tools(self, tools: Tools) -> None:
        if tools and not self.shows_tools:
            raise BaseModelError(
                NO_TOOLS, "Describe the tools in the system prompt, or choose a base that knows tools."
            )

    def _render(self, said: Sequence[Said], tools: Tools, thinking: bool | None) -> tuple[Placeholders, str]:
        self._check_tools(tools)
        replies = [each for each in said if isinstance(each, Spoken)]
        texts = strings([[plain(each) for each in said if isinstance(each, Message)], list(tools)])
        marks = Placeholders(self.vocabulary.guard(texts, len(replies)), replies, self._trims)
        return marks, marks.normal(self.template.render(marks.messages(said), marks.safe(tools), thinking))

    def _check_room(self, size: int, room: int | None) -> None:
        least = size // self.vocabulary.longest
        if room is not None and least >= room:
            raise TooLong(least)

    def _structure(self, base: Path) -> set[str]:
        settings = read_settings(base)
        names = {token_name(value) for key, value in settings.items() if key.endswith("_token")}
        ends = _declared_ends(base)
        text = ""
        with contextlib.suppress(BaseModelError):
            turns = [("user", "a"), ("assistant", "b"), ("user", _LAST)]
            text = self.template.render([{"role": role, "content": said} for role, said in turns], None)
        head = text.rpartition(_LAST)[0]
        added = self.vocabulary.added
        names |= {name for name, number in added.items() if name in head or number in ends}
        return {name for name in names & added.keys() if name.strip()} - {OPEN, CLOSE}

    def _shows_tools(self) -> bool:
        parameters = {"type": "object", "properties": {"place": {"type": "string", "description": "where"}}}
        function = {"name": _LAST, "description": "Looks.", "parameters": parameters}
        user = {"role": "user", "content": "a"}
        refused = 0
        for messages in ([user], [{"role": "system", "content": "b"}, user]):
            try:
                if _LAST in self.template.render(messages, [{"type": "function", "function": function}]):
                    return True
            except BaseModelError:
                refused += 1
        return refused == 2  # then the template sets its own default

    def _closing(self) -> list[int]:
        marks, text = self._render([Message("user", "a"), self.parse([]), Message("user", "b")], (), None)
        _, found, tail = text.rpartition(marks.whole(0))
        if not found:
            raise BaseModelError("The base model's chat template does not show what the assistant said.")
        return marks.splice(tail, self.vocabulary, ())[:1]

    def _trims_answers(self) -> bool:
        user = {"role": "user", "content": "a"}
        said = [f"<think>\nb\n</think>{space}c" for space in ("", "\n\n")]
        bare, spaced = (
            self.template.render([user, {"role": "assistant", "content": text}, user], None) for text in said
        )
        return bare == spaced

    def _check_pieces(self) -> None:
        talk = [Message("user", "What is 1+1?\n\n  Tell."), Message("assistant", "It's 2."), Message("user", "Thanks.")]
        _, text = self._render(talk, (), None)
        if self.vocabulary.encode(text) != self.vocabulary.encode_whole(text):
            raise BaseModelError("The base model's tokenizer cannot be used piece by piece, which marlaas needs.")


_LAST = "look-for-ships"
"""No template contains it."""
NO_TOOLS = "The base model's chat template shows the model no tools."
UNSHOWN = "tools: the base model's chat template shows the model none"
"""For clients and programs, whose requests may do without."""
DATED = "The base model's chat template writes the date, which is always 1 January 2025 here: prompts must not change."


def reply_stream(
    renderer: Renderer, prompt: Sequence[int], stops: Sequence[str] = (), tools: bool = False, plain: bool = False
) -> ReplyStream:
    """``plain``: without a thought."""
    decode, thinks = renderer.vocabulary.decode, renderer.thinks and not plain
    opened = thinks and bool(opened_thought(prompt, decode))
    return ReplyStream(decode, renderer.stop_ids, stops, thinks, opened, tools)


def characters(messages: Sequence[Message], tools: Tools = ()) -> int:
    """In messages and tools."""
    size = sum(len(message.content) + len(message.name) for message in messages)
    calls = [call.arguments for message in messages for call in message.tool_calls]
    return size + sum(map(len, strings([*calls, *tools])))


def _key(messages: Sequence[Message], tools: Tools, thinking: bool | None) -> Key:
    said = tuple((m.role, m.content, m.name, repr(m.tool_calls) if m.tool_calls else "") for m in messages)
    return said, repr(tools) if tools else "", thinking


def _ends(base: Path, vocabulary: Vocabulary, closing: Sequence[int]) -> tuple[int, ...]:
    ids = _declared_ends(base)
    names = (token_name(read_settings(base).get("eos_token")), *TURN_ENDS)
    ids |= {vocabulary.control[name] for name in names if name in vocabulary.control}
    control = vocabulary.control.values()
    return tuple(sorted(ids | {token for token in closing if token in control}))


def _declared_ends(base: Path) -> set[int]:
    declared = read_settings(base, "generation_config.json").get("eos_token_id")
    listed = declared if isinstance(declared, list) else [declared]
    return {token for token in listed if type(token) is int and token >= 0}


# Short texts render on the event loop, long ones in a thread.
#
# What exceeds one turn of the loop waits for the next. What cannot fit is not rendered.

SHORT = 4000
"""Characters per turn of the loop: a few milliseconds, as a thread switch."""
_EACH = 200
"""Characters added per conversation."""

PLAIN = "text"
"""Bypasses the template; not for environments."""

Made = TypeVar("Made")


class Rendering:
    """For one payer, in order."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self._alone = asyncio.Lock()
        self._spent = 0
        """Characters of short ones in this turn of the loop."""

    async def open(self, ask: Ask, thinking: bool | None, room: int) -> Opening:
        if _plain(ask.messages):
            return Opening.of(await self._encoded(ask.messages, room))
        if known := self.renderer.known(ask.messages, ask.tools, thinking):
            return known
        size = characters(ask.messages, ask.tools)
        return await self.made(size, lambda: self.renderer.opening(ask.messages, ask.tools, thinking, room))

    async def follow(
        self,
        history: Sequence[Said],
        new: Sequence[Message],
        tools: Tools,
        thinking: bool | None,
        room: int,
        anew: bool = False,
    ) -> Continuation:
        if _plain(new):
            return Continuation(await self._encoded(new, room), anew=False)
        said = [each for each in history if isinstance(each, Message)]
        size = characters([*said, *new], tools)
        return await self.made(size, lambda: self.renderer.follow(history, new, tools, thinking, room, anew))

    async def _encoded(self, messages: Sequence[Message], room: int) -> list[int]:
        text = "".join(message.content for message in messages)
        least = len(text) // self.renderer.vocabulary.longest
        if least >= room:
            raise TooLong(least)
        return await self.made(len(text), lambda: self.renderer.vocabulary.encode(text))

    async def made(self, size: int, make: Callable[[], Made]) -> Made:
        """What ``make`` returns, once it is its turn; ``size`` in characters."""
        loop = asyncio.get_running_loop()
        if size > SHORT:
            async with self._alone:
                return await loop.run_in_executor(self.renderer.thread, make)
        while self._spent > SHORT:
            await asyncio.sleep(0)
        if not self._spent:
            loop.call_soon(setattr, self, "_spent", 0)
        self._spent += size + _EACH
        return make()


def _plain(messages: Sequence[Message]) -> bool:
    return bool(messages) and messages[0].role == PLAIN
