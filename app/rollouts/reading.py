"""Reads conversations for screens: parts, shades of tokens, search, steps and groups."""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import ONLY
from marlaas.engine.store.queries import episodes
from marlaas.engine.store.queries.episodes import (
    EVAL,
    TRAIN,
    StepSummary,
    StoredConversation,
    StoredTrajectory,
    Tokens,
    reply_ends,
)
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import Turn

from ..lists.lines import Learner
from ..reading import opened
from ..text.format import advantage, duration, line, number, plain, score
from ..text.tasks import who
from .answers import Block, Line, Stretch, group_replies, lines_of, occurrences

# Token ids as text: several tokens of one character are one piece.

Decode = Callable[[Sequence[int]], str]

HALF = "\ufffd"
"""A tokenizer's sign for incomplete characters."""
LONGEST = 6
"""Tokens of one character; longer runs of bytes are shown as they are."""


@dataclass(frozen=True)
class Piece:
    """Tokens ``start`` to ``stop`` and what they say."""

    text: str
    start: int
    stop: int


def pieces(ids: Sequence[int], decode: Decode) -> list[Piece]:
    """Decoded after the piece before: many tokenizers drop a leading space."""
    found: list[Piece] = []
    before, start = 0, 0
    for stop in range(1, len(ids) + 1):
        known = decode(ids[before:start]) if start > before else ""
        text = decode(ids[before:stop])[len(known) :]
        if text.endswith(HALF) and stop - start < LONGEST and stop < len(ids):
            continue
        found.append(Piece(text, start, stop))
        before, start = start, stop
    return found


@cache
def decoder(base: Path) -> Decode:
    """The decoder of a base, for any number of ids; slow the first time. Raises ``BaseModelError``."""
    from marlaas.engine.samplers.vocabulary import Vocabulary

    vocabulary = Vocabulary(base / "tokenizer.json")
    return lambda ids: vocabulary.decode([id for id in ids if id >= 0])


def home_decoder(home: Home) -> tuple[Decode | None, str]:
    """The decoder of the home's base, or the reason why there is none."""
    from marlaas.engine.home.settings import load_settings
    from marlaas.engine.models.find import find_base

    try:
        return decoder(find_base(load_settings(home).base)), ""
    except MarlaasError as error:
        return None, f"The tokens cannot be read: {error.message}"


# Every level has an attribute (underline, bold, reverse), so nothing depends on colour.

TURNS, ADVANTAGE, LOGPROB, WEIGHT, VERSION = "turns", "advantage", "log-probability", "importance weight", "version"
SHADES = (TURNS, ADVANTAGE, LOGPROB, WEIGHT, VERSION)
"""In the order of ``v``; the first shows turns, the others tokens."""

GIVEN = "$text-muted"
"""Tokens that were not sampled."""
UNKNOWN = "$text-disabled"
"""Sampled tokens without a value."""


@dataclass(frozen=True)
class Scale:
    """Classes: below the first bound, between bounds, from the last one on."""

    bounds: tuple[float, ...]
    labels: tuple[str, ...]
    styles: tuple[str, ...]

    def style(self, value: float) -> str:
        return UNKNOWN if math.isnan(value) else self.styles[bisect_right(self.bounds, value)]


_BAD, _WORSE = "underline $text-error", "reverse $text-error"
_GOOD, _BETTER = "bold $text-success", "bold reverse $text-success"

PROBABILITIES = Scale(
    (math.log(0.01), math.log(0.1), math.log(0.5), math.log(0.9)),
    ("< 1 %", "1-10 %", "10-50 %", "50-90 %", "≥ 90 %"),
    ("reverse $text-error", "bold underline $text-error", "bold $text-warning", "underline $text-warning", ""),
)
ADVANTAGES = Scale(
    (-0.5, -1e-6, 1e-6, 0.5),
    ("≤ -0.5", "< 0", "0", "> 0", "≥ 0.5"),
    (_WORSE, _BAD, "", _GOOD, _BETTER),
)
WEIGHTS = Scale(
    (math.log(0.5), math.log(0.9), math.log(1.1), math.log(2.0)),
    ("< 0.5", "0.5-0.9", "0.9-1.1", "1.1-2", "≥ 2"),
    (_WORSE, _BAD, "", _GOOD, _BETTER),
)
SCALES = {ADVANTAGE: ADVANTAGES, LOGPROB: PROBABILITIES, WEIGHT: WEIGHTS}
_TURN_ABOUT = ("", "underline $text-primary", "bold $text-accent", "bold underline $text-success", "reverse")


@dataclass(frozen=True)
class Shading:
    """One way to shade a conversation's tokens."""

    name: str
    legend: tuple[tuple[str, str], ...] = ()
    """(label, style) of each class."""
    lacking: str = ""
    """Why nothing can be shaded."""


def shading_of(name: str, conversation: StoredConversation) -> Shading:
    """How a conversation is shaded, or why it cannot be."""
    if name == TURNS:
        return Shading(name)
    sampled = [part.tokens for part in conversation.parts if part.tokens.ids]
    if not sampled:
        given_up = any(part.length for part in conversation.parts)
        reason = "its tokens were deleted to save disk space" if given_up else "it has no tokens"
        return Shading(name, lacking=f"There is nothing to shade: {reason}.")
    if name == WEIGHT and not any(tokens.weights for tokens in sampled):
        return Shading(name, lacking=_why_no_weights(conversation))
    if name == VERSION:
        styles = version_styles(conversation)
        return Shading(name, tuple((f"v{version}", style) for version, style in styles.items()))
    here = f"here {number(conversation.advantage)}", ADVANTAGES.style(conversation.advantage)
    before = (here,) if name == ADVANTAGE else ()
    after = (("not trained on", UNKNOWN),) if name == WEIGHT else ()
    return Shading(name, (*before, *zip(SCALES[name].labels, SCALES[name].styles, strict=True), *after))


def token_styles(name: str, conversation: StoredConversation, tokens: Tokens) -> list[str]:
    """A style for each token of a trajectory, (T,)."""
    if name == VERSION:
        styles, result = version_styles(conversation), [GIVEN] * len(tokens.ids)
        for start, stop, version in tokens.spans:
            result[start:stop] = [styles[version]] * (stop - start)
        return result
    weights, values = iter(tokens.weights), list(tokens.logprobs)
    if name == ADVANTAGE:
        values = [conversation.advantage] * len(tokens.ids)
        for (start, stop, _), own in zip(tokens.spans, tokens.advantages, strict=False):
            values[start:stop] = [conversation.advantage if own is None else own] * (stop - start)
    elif name == WEIGHT:
        values = [next(weights, math.nan) if sampled else math.nan for sampled in tokens.sampled]
    pairs = zip(tokens.sampled, values, strict=True)
    return [SCALES[name].style(value) if sampled else GIVEN for sampled, value in pairs]


def version_styles(conversation: StoredConversation) -> dict[int, str]:
    """A style for each version that sampled, oldest first."""
    versions: Sequence[int] = sorted({version for part in conversation.parts for _, _, version in part.tokens.spans})
    return {version: _TURN_ABOUT[place % len(_TURN_ABOUT)] for place, version in enumerate(versions)}


def _why_no_weights(conversation: StoredConversation) -> str:
    if conversation.split != "train":
        return "Held-out conversations are not trained on: their tokens have no importance weights."
    if conversation.step is None:
        return "No step has consumed this group yet: its tokens get importance weights when it is trained on."
    return "Nothing is known of importance weights here: all rewards were equal, or an older marlaas trained on it."


@dataclass(frozen=True)
class Said:
    """A turn with its place."""

    conversation: int
    """Index in the episode."""
    part: int
    """Index in the conversation."""
    place: int
    """Index in the trajectory."""
    turn: Turn


def in_order(episode: Sequence[StoredConversation]) -> list[Said]:
    """All turns in the order of speaking."""
    told: list[tuple[int, Said]] = []
    for conversation, one in enumerate(episode):
        for part, trajectory in enumerate(one.parts):
            for place, at in enumerate(places(one, part)):
                told.append((at, Said(conversation, part, place, trajectory.turns[place])))
    return [said for _, said in sorted(told, key=lambda entry: entry[0])]


def places(conversation: StoredConversation, part: int) -> Sequence[int]:
    """Times of a trajectory's turns; unknown ones follow the trajectories before it."""
    own: StoredTrajectory = conversation.parts[part]
    if len(own.places) == len(own.turns):
        return own.places
    before = sum(len(each.turns) for each in conversation.parts[:part])
    return range(before, before + len(own.turns))


# Rows of the store are foreign; blocks are safe. Slow for long texts: call it in a thread.

LONGEST_TURN = 1_000_000
"""Shown characters; an export has all."""
TRACEBACK_LINES = 20
LINE_END = "↵"
"""Before a line break in tokens, which itself shows no colour."""
_ROLES = {"assistant": "bold $text-primary", "tool": "bold $text-warning", "thinking": "$text-muted"}
_ANEW = "a new prompt begins here: earlier text has changed, or this is a fork"


def head(conversation: StoredConversation) -> str:
    """A line that shows where a conversation comes from."""
    one = conversation
    words = [
        f"held-out prompt {one.number}" if one.split != "train" else f"group {one.number}",
        f"member {one.member}",
        who(one.agent, one.policy, one.version, one.speaker, one.spoke),
        "waits for its step" if one.step is None else f"step {one.step}",
        f"version {one.version}" if one.policy in ("", ONLY) and not one.speaker else "",
        f"environment {line(f'{one.component} {one.environment_version}'.strip(), 60)}",
        f"{one.tokens} tokens" + (f" in {len(one.parts)} trajectories" if len(one.parts) > 1 else ""),
        duration(one.seconds) if one.seconds else "",
        line(one.status, 12) if one.status != "ok" else "",
        "cut off by the length limit" if one.cut else "",
    ]
    return " · ".join(word for word in words if word)


def payment(conversation: StoredConversation) -> str:
    """Its reward, advantage, and the named parts of the reward."""
    words = [f"reward {score(conversation.reward)}"]
    words += [] if conversation.speaker else [f"advantage {advantage(conversation.advantage)}"]
    words += [f"{line(name, 30)} {number(value)}" for name, value in list(conversation.scores.items())[:20]]
    return " · ".join(words)


def episode_blocks(
    episode: Sequence[StoredConversation], shading: Shading, decode: Decode | None, problem: str = ""
) -> list[Block]:
    """The blocks of an episode: facts of each conversation, then all turns in order.

    ``shading`` is the first conversation's.
    """
    own, *others = episode
    lacking = shading.lacking or (problem if shading.name != TURNS else "")
    shadings = [replace(shading, lacking=lacking), *(shading_of(shading.name, other) for other in others)]
    logged = " · ".join(f"{line(name, 30)} {_value(value)}" for name, value in list(own.metrics.items())[:20])
    found = [
        Block(head(own), "$text-muted"),
        Block(payment(own), "bold"),
        Block(logged and f"logged: {logged}", "$text-muted"),
        *_failure(own),
        Block(line(lacking), "$text-warning"),
    ]
    for other, shaded in zip(others, shadings[1:], strict=True):
        name = who(other.agent, other.policy, other.version, other.speaker, other.spoke) or "another agent"
        found.append(Block(f"with {name} · {payment(other)}", "$text-accent"))
        found.append(Block("" if lacking else shaded.lacking, "$text-warning"))
    guessed = "An older marlaas played this: who spoke when is a guess." if others and not own.order_known else ""
    found.append(Block(guessed, "$text-warning"))
    return [*(block for block in found if block.text), *_said(episode, shadings, decode if not problem else None)]


def _said(episode: Sequence[StoredConversation], shadings: Sequence[Shading], decode: Decode | None) -> Iterator[Block]:
    """Turns with rewards, or shaded tokens."""
    several = len(episode) > 1
    names = [(line(one.agent, 50) or "an agent") if several else "" for one in episode]
    payments = [_payments(one, name) for one, name in zip(episode, names, strict=True)]
    decoders = [None if shade.name == TURNS or shade.lacking else decode for shade in shadings]
    if not several and decoders[0] is not None:
        yield from _tokens(episode[0], shadings[0].name, decoders[0])
        yield from chain.from_iterable(payments[0].values())
        return
    at = [0] * len(episode)
    begun = [{0} for _ in episode]
    for said in in_order(episode):
        one, part = said.conversation, said.part
        if at[one] != part:
            yield from (Block(""), Block(_turn_of(names[one], part, part in begun[one]), "$text-warning"))
            at[one] = part
            begun[one].add(part)
        if (decoder := decoders[one]) is None:
            yield from (*_turn(said.turn, names[one]), *payments[one].pop((part, said.place), ()))
        else:
            yield from _reply_tokens(episode[one], said, shadings[one].name, decoder, names[one])
    for rest in payments:
        yield from chain.from_iterable(rest.values())


def _payments(conversation: StoredConversation, name: str) -> dict[tuple[int, int], list[Block]]:
    """The rewards paid during the episode, by (part, place) of the turn that ended the reply that earned them.

    ``name``: the agent's safe name, if there are several.
    """
    parts = enumerate(conversation.parts)
    ends = [(part, end - 1) for part, trajectory in parts for end in reply_ends(trajectory.turns)]
    found: dict[tuple[int, int], list[Block]] = {}
    for paid in conversation.paid:
        why = f" for {line(paid.name, 40)}" if paid.name else ""
        words = f"{name and f'{name} is '}paid {paid.amount:+.3g}{why}"
        at = ends[max(1, paid.turns) - 1] if paid.turns <= len(ends) and ends else (len(conversation.parts), 0)
        found.setdefault(at, []).append(Block(words, "$text-success" if paid.amount > 0 else "$text-error"))
    return found


def _tokens(conversation: StoredConversation, shade: str, decode: Decode) -> Iterator[Block]:
    for place, part in enumerate(conversation.parts):
        if place:
            yield from (Block(""), Block(_turn_of("", place, False), "$text-warning"))
        yield Block("")
        yield _shaded(conversation, part.tokens, shade, decode, 0, len(part.tokens.ids))


def _turn_of(name: str, part: int, again: bool) -> str:
    """The line at a change of trajectory."""
    whose = f"{name}: " if name else ""
    return f"— {whose}trajectory {part + 1} goes on here —" if again else f"— {whose}{_ANEW} —"


def _reply_tokens(
    conversation: StoredConversation, said: Said, shade: str, decode: Decode, name: str
) -> Iterator[Block]:
    """Tokens of a reply and of what came before it; nothing for a turn that ends no reply."""
    part = conversation.parts[said.part]
    ends = reply_ends(part.turns)
    if said.place + 1 not in ends:
        return
    number = ends.index(said.place + 1)
    spans = part.tokens.spans
    if number < len(spans):
        start = spans[number - 1][1] if number else 0
        yield from (Block(""), Block(name, "$text-muted"))
        yield _shaded(conversation, part.tokens, shade, decode, start, spans[number][1])


def first_place(blocks: Sequence[Block], word: str) -> tuple[int, int] | None:
    """(block, character) of the first occurrence of a word below the head."""
    for number_, block in enumerate(blocks[2:], 2):
        if places := occurrences(block.text, word):
            return number_, places[0][0]
    return None


def _turn(turn: Turn, name: str) -> Iterator[Block]:
    """``name``: the agent's, if there are several."""
    role = line(turn.role, 20)
    text, left_out = plain(turn.text[:LONGEST_TURN]), len(turn.text) - LONGEST_TURN
    calls: list[str] = []
    if role == "assistant":
        text, calls = _calls(text)
    yield Block("")
    yield Block(_heading(role, name), _ROLES.get(role, "bold $text-muted"))
    if text.strip() or not calls:
        yield Block(
            text if text.strip() else "(nothing)", "$text-muted" if role == "thinking" or not text.strip() else ""
        )
    for call in calls:
        yield Block(f"→ {call}", "$text-warning")
    if left_out > 0:
        yield Block(f"… {left_out:,} more characters; e exports them", "$text-muted")


def _heading(role: str, name: str) -> str:
    if role in ("assistant", "thinking"):
        speaks = name or ("assistant" if role == "assistant" else "")
        return f"{speaks} thinks".strip() if role == "thinking" else speaks
    return ("tool result" if role == "tool" else role) + (f" → {name}" if name else "")


def _calls(text: str) -> tuple[str, list[str]]:
    """The text without calls, and the calls in Python's notation."""
    if "{" not in text:
        return text, []
    from marlaas.engine.rollout.toolcalls import split_hermes, split_llama

    rest, calls = split_hermes(text, True)
    if not calls:
        rest, calls = split_llama(text, True)
    return rest, [
        f"{line(call.name)}({', '.join(f'{line(name)}={_json(value)}' for name, value in call.arguments.items())})"
        for call in calls
    ]


def _failure(conversation: StoredConversation) -> Iterator[Block]:
    if conversation.failure:
        place = f"{line(conversation.file)}, line {conversation.line}: " if conversation.file else ""
        yield Block(f"! {place}{plain(conversation.failure[:2000])}", "bold $text-error")
    trace = plain(conversation.traceback[-20_000:]).strip().split("\n")[-TRACEBACK_LINES:]
    if any(trace):
        yield Block("\n".join(trace), "$text-muted")


def _shaded(
    conversation: StoredConversation, tokens: Tokens, name: str, decode: Decode, start: int, stop: int
) -> Block:
    """Neighbours of one style are one stretch."""
    styles = token_styles(name, conversation, tokens)
    text: list[str] = []
    stretches: list[Stretch] = []
    length = 0
    for piece in pieces(list(tokens.ids[start:stop]), decode):
        shown, style = _visible(piece.text), styles[start + piece.start]
        if stretches and stretches[-1].style == style:
            stretches[-1] = replace(stretches[-1], stop=length + len(shown))
        else:
            stretches.append(Stretch(length, length + len(shown), style))
        text.append(shown)
        length += len(shown)
    return Block("".join(text), "", stretches)


def _visible(text: str) -> str:
    """A terminal hides or obeys some characters."""
    return plain(text).replace("\n", f"{LINE_END}\n") or (HALF if text else "")


def _value(value: object) -> str:
    return number(value) if isinstance(value, int | float) else line(str(value), 60)


def _json(value: object) -> str:
    return plain(json.dumps(value, ensure_ascii=False))


@dataclass(frozen=True)
class Wish:
    """What somebody wants to read, and how it is shaded."""

    conversation: int
    shade: str = TURNS
    word: str = ""
    """To be marked."""
    width: int = 80
    """Cells of its lines."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A conversation, ready to be shown."""

    wish: Wish
    conversation: StoredConversation | None
    """None if it is gone."""
    blocks: Sequence[Block] = ()
    lines: Sequence[Line] = ()
    episode: tuple[StoredConversation, ...] = ()
    """The conversation first."""
    shading: Shading = field(default_factory=lambda: Shading(TURNS))
    first: tuple[int, int] | None = None
    """(block, character) of the word."""


def load(home: Home, wish: Wish) -> Loaded:
    """Read and lay out a conversation. Slow: call it in a thread."""
    try:
        return _load(home, wish)
    except Exception as error:  # of an invalid row; unreported, another conversation would stay in sight
        why = error.message if isinstance(error, MarlaasError) else f"{type(error).__name__}: {error}"
        return _notice(wish, f"This conversation cannot be read: {line(why, 400)}", "$text-error")


def _notice(wish: Wish, text: str, style: str) -> Loaded:
    blocks = [Block(text, style)]
    return Loaded(wish, None, blocks, lines_of(blocks, wish.width))


def _load(home: Home, wish: Wish) -> Loaded:
    with opened(home) as reader:
        together = episodes.episode(reader, wish.conversation)
        group = episodes.group_rows(reader, [together[0].group]).get(together[0].group) if together else None
    if not together:
        return _notice(wish, "This conversation has gone.", "$text-muted")
    shading = shading_of(wish.shade, together[0])
    decode, problem = (None, "") if wish.shade == TURNS or shading.lacking else home_decoder(home)
    shown = episode_blocks(together, shading, decode, problem)
    first = first_place(shown, wish.word)
    shown += group_replies(group, together[0]) if group is not None else []
    return Loaded(wish, together[0], shown, lines_of(shown, wish.width), tuple(together), shading, first)


# Stored texts are searched; only possible hits are parsed.

CHUNK = 256
"""Conversations of one read."""


def search(reader: Reader, ids: Sequence[int], word: str) -> Iterator[tuple[int, ...]]:
    """Conversations in which somebody says ``word``, ignoring case, newest first, a read at a time.

    Raises ``StoreError``.
    """
    stored = json.dumps(word)[1:-1].lower() if word.isascii() else ""  # the escapes of É and é are not alike
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        said = episodes.conversation_texts(reader, chunk)
        yield tuple(key for key in chunk if stored in (text := said.get(key, "")).lower() and _says(text, word))


def _says(stored: str, word: str) -> bool:
    """True if the word is in a text, not only in the JSON around it."""
    turns = chain.from_iterable(json.loads(f"[{stored}]"))
    return any(word.lower() in turn["text"].lower() for turn in turns)


ALL = 0
"""All groups."""
StepKey = tuple[str, int | None]
"""Split and step."""
ALL_STEPS: StepKey = ("", None)
WAITING: StepKey = (TRAIN, None)
"""Groups without a step."""


def step_words(key: StepKey) -> str:
    """A key in words."""
    split, step = key
    if key == ALL_STEPS:
        return "all steps"
    return "waiting" if step is None else f"held-out at step {step}" if split == EVAL else f"step {step}"


def in_list(steps: Sequence[StepSummary], failures: bool) -> dict[StepKey, StepSummary]:
    """All steps, waiting groups, then the newest first."""
    shown = [step for step in steps if step.failures or not failures]
    if not shown:
        return {}
    total = StepSummary("", None, sum(s.groups for s in shown), None, sum(s.failures for s in shown))
    shown.sort(key=lambda s: (s.step is None, s.step or 0, s.split == EVAL), reverse=True)
    return {ALL_STEPS: total, **{(step.split, step.step): step for step in shown}}


def newest(listed: Sequence[StepKey]) -> StepKey:
    """The newest step, else the waiting groups, else the newest evaluation."""
    made = (key for key in listed if key[0] == TRAIN and key[1] is not None)
    return next(made, WAITING if WAITING in listed else next(iter(listed[1:]), ALL_STEPS))


@dataclass(frozen=True)
class Selection:
    """What somebody looks at."""

    learner: Learner
    step: StepKey
    group: int | None = None
    """An id, or ALL; None: the first."""
    conversation: int | None = None
    """An id; None: the first."""
    failures: bool = False
    """Only failures."""
    at_end: bool = False
    """True: the last conversation instead of the first."""

    @property
    def scope(self) -> tuple[object, ...]:
        """The key of the list of groups."""
        return (self.learner, self.step, self.failures)


@dataclass(frozen=True, eq=False)
class Found:
    """What was found at a place."""

    place: Selection
    """With an existing group and conversation, if there are any."""
    groups: array[int]
    conversations: array[int]

    @property
    def scope(self) -> tuple[object, ...]:
        """The key of the list of conversations."""
        return (*self.place.scope, self.place.group)


def find(reader: Reader, place: Selection, before: Found | None = None) -> Found:
    """Look a place up; missing groups and conversations become the first. Raises ``StoreError``.

    ``before``: the last result; in the list of all groups, only new conversations are read.
    """
    split, step = place.step[0] or None, place.step[1]
    task, policy = place.learner.task, place.learner.policy or None
    groups = episodes.group_ids(reader, task, split, step, place.failures, policy)
    group = place.group
    if group is None or (group != ALL and group not in groups):
        group = groups[0] if groups else ALL
    within = None if group == ALL else group
    listed = partial(episodes.conversation_ids, reader, task, split, step, within, place.failures, policy=policy)
    if before is not None and group == ALL and before.conversations and before.scope == (*place.scope, ALL):
        conversations = listed(after=before.conversations[0]) + before.conversations
    else:
        conversations = listed()
    conversation = place.conversation
    if conversation not in conversations:
        conversation = (conversations[-1 if place.at_end else 0]) if conversations else None
    return Found(replace(place, group=group, conversation=conversation, at_end=False), groups, conversations)
