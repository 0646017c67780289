"""Reads conversations for screens: their parts, shades of tokens, search, and the way through steps and groups."""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import ONLY
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
from .answers import Block, Payments, Stretch, group_replies, occurrences

# A conversation or an episode as blocks of text, its tokens shaded, its turns in order.

# Token ids as pieces of text: a character that takes several tokens is one piece of all of them.
#
# The texts of the pieces joined are what the ids say.

Decode = Callable[[Sequence[int]], str]

HALF = "\ufffd"
"""What a tokenizer prints for bytes that are no whole character."""
LONGEST = 6
"""Most tokens of one character; bytes that never make up one are shown as they are."""


@dataclass(frozen=True)
class Piece:
    """Tokens ``start`` to ``stop`` and what they say."""

    text: str
    start: int
    stop: int


def pieces(ids: Sequence[int], decode: Decode) -> list[Piece]:
    """The pieces of some ids. Each is decoded behind the one before: many tokenizers drop a space at a beginning."""
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
    """The decoder of the base in a folder, which accepts any number; slow the first time. Raises ``BaseModelError``."""
    from marlaas.engine.samplers.vocabulary import Vocabulary

    vocabulary = Vocabulary(base / "tokenizer.json")
    return lambda ids: vocabulary.decode([id for id in ids if id >= 0])


def home_decoder(home: Home) -> tuple[Decode | None, str]:
    """The decoder of the base that a home is set to, or why there is none, in one sentence."""
    from marlaas.engine.home.settings import load_settings
    from marlaas.engine.models.find import find_base

    try:
        return decoder(find_base(load_settings(home).base)), ""
    except MarlaasError as error:
        return None, f"The tokens cannot be read: {error.message}"


# The colours of tokens: by advantage, log-probability, importance weight, or the version that sampled them.
#
# A legend explains the scale. Every level has its own attribute (underline, bold, reverse), so that nothing
# depends on colour. Pure.

TURNS, ADVANTAGE, LOGPROB, WEIGHT, VERSION = "turns", "advantage", "log-probability", "importance weight", "version"
SHADES = (TURNS, ADVANTAGE, LOGPROB, WEIGHT, VERSION)
"""The shadings that ``v`` goes through; the first shows what was said, the others the tokens themselves."""

GIVEN = "$text-muted"
"""The style of tokens that were not sampled: prompts, and results of tools."""
UNKNOWN = "$text-disabled"
"""The style of sampled tokens without a value: untrained ones have no importance weight."""


@dataclass(frozen=True)
class Scale:
    """Divides values into classes: below the first bound, between two bounds, and from the last one on."""

    bounds: tuple[float, ...]
    labels: tuple[str, ...]
    styles: tuple[str, ...]

    def style(self, value: float) -> str:
        """The style of a value."""
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
_TURN_ABOUT = ("", "underline $text-primary", "bold $text-accent", "bold underline $text-success", "reverse")


@dataclass(frozen=True)
class Shading:
    """One way to shade a conversation's tokens."""

    name: str
    legend: tuple[tuple[str, str], ...] = ()
    """(label, style) of each class."""
    lacking: str = ""
    """Why nothing can be shaded, in one sentence."""


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
    scale = {ADVANTAGE: ADVANTAGES, LOGPROB: PROBABILITIES, WEIGHT: WEIGHTS}[name]
    legend = tuple(zip(scale.labels, scale.styles, strict=True))
    if name == ADVANTAGE:
        legend = ((f"here {number(conversation.advantage)}", ADVANTAGES.style(conversation.advantage)), *legend)
        return Shading(name, legend)
    return Shading(name, legend if name == LOGPROB else (*legend, ("not trained on", UNKNOWN)))


def token_styles(name: str, conversation: StoredConversation, tokens: Tokens) -> list[str]:
    """A style for each token of one trajectory, (T,)."""
    if name == ADVANTAGE:
        whole = ADVANTAGES.style(conversation.advantage)
        result = [whole if sampled else GIVEN for sampled in tokens.sampled]
        for (start, stop, _), own in zip(tokens.spans, tokens.advantages, strict=False):
            if own is not None:
                result[start:stop] = [ADVANTAGES.style(own)] * (stop - start)
        return result
    if name == LOGPROB:
        return [
            PROBABILITIES.style(logprob) if sampled else GIVEN
            for sampled, logprob in zip(tokens.sampled, tokens.logprobs, strict=True)
        ]
    if name == WEIGHT:
        weights = iter(tokens.weights)
        return [WEIGHTS.style(next(weights, math.nan)) if sampled else GIVEN for sampled in tokens.sampled]
    styles, result = version_styles(conversation), [GIVEN] * len(tokens.ids)
    for start, stop, version in tokens.spans:
        result[start:stop] = [styles[version]] * (stop - start)
    return result


def version_styles(conversation: StoredConversation) -> dict[int, str]:
    """A style for each policy version that sampled in the conversation, oldest first."""
    versions: Sequence[int] = sorted({version for part in conversation.parts for _, _, version in part.tokens.spans})
    return {version: _TURN_ABOUT[place % len(_TURN_ABOUT)] for place, version in enumerate(versions)}


def _why_no_weights(conversation: StoredConversation) -> str:
    if conversation.split != "train":
        return "Held-out conversations are not trained on: their tokens have no importance weights."
    if conversation.step is None:
        return "No step has consumed this group yet: its tokens get importance weights when it is trained on."
    return "Nothing is known of importance weights here: all rewards were equal, or an older marlaas trained on it."


# An episode as it was played: the turns of all its agents in the order in which they were said. Pure.


@dataclass(frozen=True)
class Said:
    """A turn, and whose it is."""

    conversation: int
    """The place of its conversation in the episode."""
    part: int
    """The place of its trajectory in the conversation."""
    place: int
    """Its place among the turns of the trajectory."""
    turn: Turn
    following: Turn | None
    """What comes next in its trajectory."""


def in_order(episode: Sequence[StoredConversation]) -> list[Said]:
    """All turns of these conversations in the order in which they were said."""
    told: list[tuple[int, Said]] = []
    for conversation, one in enumerate(episode):
        for part, trajectory in enumerate(one.parts):
            following = [*trajectory.turns[1:], None]
            for place, at in enumerate(places(one, part)):
                said = Said(conversation, part, place, trajectory.turns[place], following[place])
                told.append((at, said))
    return [said for _, said in sorted(told, key=lambda entry: entry[0])]


def places(conversation: StoredConversation, part: int) -> Sequence[int]:
    """When the turns of a trajectory were said; of one without places, after those of the trajectories before it."""
    own: StoredTrajectory = conversation.parts[part]
    if len(own.places) == len(own.turns):
        return own.places
    before = sum(len(each.turns) for each in conversation.parts[:part])
    return range(before, before + len(own.turns))


# A conversation, or a whole episode, as blocks of text: who said what, tool calls, rewards, and failures.
#
# Everything in a row of the store is foreign; the blocks are safe. With a decoder they show the tokens themselves,
# shaded. Slow for long texts: call it in a thread. Knows no widget.

LONGEST_TURN = 1_000_000
"""Characters of a turn that are shown; an export has all of them."""
TRACEBACK_LINES = 20
LINE_END = "↵"
"""Shown before a line break in the tokens, because a line break itself shows no colour."""
_ROLES = {"assistant": "bold $text-primary", "tool": "bold $text-warning", "thinking": "$text-muted"}
_ANEW = "a new prompt begins here: the template rewrote earlier turns, or this is a fork"


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


def blocks(conversation: StoredConversation, shading: Shading, decode: Decode | None, problem: str = "") -> list[Block]:
    """All blocks of a conversation. ``problem``: why its tokens cannot be shown, if there is a reason."""
    return episode_blocks([conversation], shading, decode, problem)


def episode_blocks(
    episode: Sequence[StoredConversation], shading: Shading, decode: Decode | None, problem: str = ""
) -> list[Block]:
    """A conversation and the others of its episode: what is known of each, then all turns in the order of the episode.

    ``shading`` is that of the first conversation.
    """
    own, *others = episode
    found = [Block(head(own), "$text-muted"), Block(payment(own), "bold")]
    if own.metrics:
        logged = (f"{line(name, 30)} {_value(value)}" for name, value in list(own.metrics.items())[:20])
        found.append(Block(f"logged: {' · '.join(logged)}", "$text-muted"))
    found += _failure(own)
    lacking = shading.lacking or (problem if shading.name != TURNS else "")
    if lacking:
        found.append(Block(line(lacking), "$text-warning"))
    shadings = [replace(shading, lacking=lacking)]
    for other in others:
        name = who(other.agent, other.policy, other.version, other.speaker, other.spoke) or "another agent"
        found.append(Block(f"with {name} · {payment(other)}", "$text-accent"))
        shadings.append(shaded := shading_of(shading.name, other))
        if shaded.lacking and not lacking:
            found.append(Block(shaded.lacking, "$text-warning"))
    if others and not own.order_known:
        found.append(Block("An older marlaas played this: who spoke when is a guess.", "$text-warning"))
    return [*found, *_said(episode, shadings, decode if not problem else None)]


def _said(episode: Sequence[StoredConversation], shadings: Sequence[Shading], decode: Decode | None) -> Iterator[Block]:
    """Turns with their rewards; or shaded tokens, if there is a decoder and something to shade by."""
    several = len(episode) > 1
    names = [(line(one.agent, 20) or "an agent") if several else "" for one in episode]
    payments = [Payments(one.paid, name) for one, name in zip(episode, names, strict=True)]
    decoders = [None if shade.name == TURNS or shade.lacking else decode for shade in shadings]
    if not several and decoders[0] is not None:
        yield from _tokens(episode[0], shadings[0].name, decoders[0])
        yield from payments[0].rest()
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
            yield from (*_turn(said.turn, names[one]), *payments[one].after(said.turn, said.following))
        else:
            yield from _reply_tokens(episode[one], said, shadings[one].name, decoder, names[one])
    for own in payments:
        yield from own.rest()


def _tokens(conversation: StoredConversation, shade: str, decode: Decode) -> Iterator[Block]:
    """All tokens of a conversation, one trajectory after the other."""
    for place, part in enumerate(conversation.parts):
        if place:
            yield from (Block(""), Block(_turn_of("", place, False), "$text-warning"))
        yield Block("")
        yield _shaded(conversation, part.tokens, shade, decode, 0, len(part.tokens.ids))


def _turn_of(name: str, part: int, again: bool) -> str:
    """A line where a conversation continues in another of its trajectories."""
    whose = f"{name}: " if name else ""
    return f"— {whose}trajectory {part + 1} goes on here —" if again else f"— {whose}{_ANEW} —"


def _reply_tokens(
    conversation: StoredConversation, said: Said, shade: str, decode: Decode, name: str
) -> Iterator[Block]:
    """The tokens of a reply and of what the agent was told before it; nothing for a turn that ends no reply."""
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


def marked(found: list[Block], needle: str) -> tuple[list[Block], tuple[int, int] | None]:
    """The blocks with every occurrence of a word marked, and the first of them as (block, character)."""
    first: tuple[int, int] | None = None
    result = []
    for number_, block in enumerate(found):
        places = occurrences(block.text, needle)
        if places and first is None and number_ > 1:
            first = (number_, places[0][0])
        result.append(_highlighted(block, places) if places else block)
    return result, first


def _highlighted(block: Block, places: list[tuple[int, int]]) -> Block:
    """A block with these places marked, over its other styles."""
    cut: list[Stretch] = []
    for stretch in block.stretches:
        start = stretch.start
        for begin, end in places:
            if begin < stretch.stop and end > start:
                if begin > start:
                    cut.append(replace(stretch, start=start, stop=begin))
                start = max(start, end)
        if start < stretch.stop:
            cut.append(replace(stretch, start=start))
    found = [Stretch(begin, end, "bold reverse $text-accent") for begin, end in places]
    return replace(block, stretches=sorted([*cut, *found], key=lambda stretch: stretch.start))


def _turn(turn: Turn, name: str) -> Iterator[Block]:
    """A turn below a line that says who speaks, or to whom; ``name``: the agent's, if there are several."""
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
    """What a model said besides its calls, and the calls in Python's notation."""
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
    """Tokens ``start`` to ``stop`` of one trajectory; neighbours of one style are one stretch."""
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
    """The token with every character visible, because a terminal hides or obeys some."""
    return plain(text).replace("\n", f"{LINE_END}\n") or (HALF if text else "")


def _value(value: object) -> str:
    return number(value) if isinstance(value, int | float) else line(str(value), 60)


def _json(value: object) -> str:
    return plain(json.dumps(value, ensure_ascii=False))


# Reads a conversation, the others of its episode, and what its group answered into the page that shows them.
#
# Slow: call it in a thread.


@dataclass(frozen=True)
class Wish:
    """What somebody wants to read, and how it is shaded."""

    conversation: int
    shade: str = TURNS
    word: str = ""
    """A word to be marked."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A conversation, ready to be shown."""

    wish: Wish
    conversation: StoredConversation | None
    """None if it is gone."""
    blocks: tuple[Block, ...] = ()
    episode: tuple[StoredConversation, ...] = ()
    """The conversation, and behind it the others of its episode."""
    shading: Shading = field(default_factory=lambda: Shading(TURNS))
    first: tuple[int, int] | None = None
    """The first place of the word: (block, character)."""


def load(home: Home, wish: Wish) -> Loaded:
    """Read the conversation and lay it out. Raises ``StoreError``."""
    with opened(home) as reader:
        together = reader.episode(wish.conversation)
        group = reader.group_rows([together[0].group]).get(together[0].group) if together else None
    if not together:
        return Loaded(wish, None, (Block("This conversation has gone.", "$text-muted"),))
    found = together[0]
    shading = shading_of(wish.shade, found)
    decode, problem = (None, "") if wish.shade == TURNS or shading.lacking else home_decoder(home)
    shown, first = marked(episode_blocks(together, shading, decode, problem), wish.word)
    shown += group_replies(group, found) if group is not None else []
    return Loaded(wish, found, tuple(shown), tuple(together), shading, first)


# The way from a task down to one conversation, and the search through everything that was said.

# Searches for a word in everything that was said, from the newest conversation back.
#
# Hits are reported as they are found. Texts are searched in their stored form; only possible hits are parsed.

CHUNK = 256
"""Conversations that are read at once."""


@dataclass(frozen=True)
class Progress:
    """How far a search has come."""

    looked: int
    """Conversations searched so far."""
    hits: tuple[int, ...]
    """Hits since the last report."""


def search(reader: Reader, ids: Sequence[int], word: str) -> Iterator[Progress]:
    """Find the conversations in which somebody says ``word``, whatever the case. Raises ``StoreError``."""
    stored = json.dumps(word)[1:-1].lower() if word.isascii() else ""  # the escapes of É and é are not alike
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        said = reader.conversation_texts(chunk)
        hits = tuple(key for key in chunk if stored in (text := said.get(key, "")).lower() and _says(text, word))
        yield Progress(min(start + CHUNK, len(ids)), hits)


def _says(stored: str, word: str) -> bool:
    """Whether the word is in the text that was said, and not in the JSON around it."""
    folded = word.lower()
    return any(folded in text.lower() for turns in json.loads(f"[{stored}]") for text in _texts(turns))


def _texts(turns: list[dict[str, str]]) -> list[str]:
    return [turn["text"] for turn in turns]


# The way from a task down to one conversation: the place that is looked at, and what is found there.
#
# Only reads, and may be slow: call it in a thread.

ALL = 0
"""All steps, or all groups, if a step's key or a group's id is expected."""
WAITING = 3
"""The key of the groups that no step has consumed yet."""


def step_key(split: str, step: int | None) -> int:
    """The key of a step or an evaluation, in a list of both."""
    return WAITING if step is None else 4 * (step + 1) + (split == EVAL)


def step_of(key: int) -> tuple[str | None, int | None]:
    """The split and the step of a key; None for both: all of them."""
    if key == ALL:
        return None, None
    return (TRAIN, None) if key == WAITING else (EVAL if key % 4 else TRAIN, key // 4 - 1)


def step_words(key: int) -> str:
    """A key in words."""
    split, step = step_of(key)
    if split is None:
        return "all steps"
    return "waiting" if step is None else f"held-out at step {step}" if split == EVAL else f"step {step}"


def in_list(steps: Sequence[StepSummary], failures: bool) -> dict[int, StepSummary]:
    """Steps by key in the order of the list: all steps as one entry, groups that wait, then the newest first."""
    shown = [step for step in steps if step.failures or not failures]
    if not shown:
        return {}
    found = {step_key(step.split, step.step): step for step in shown}
    first = {key: found.pop(key) for key in (WAITING,) if key in found}
    total = StepSummary("", None, sum(s.groups for s in shown), None, sum(s.failures for s in shown))
    return {ALL: total, **first, **dict(sorted(found.items(), reverse=True))}


def newest(listed: Sequence[int]) -> int:
    """The key to begin with: the newest step, else the groups that wait."""
    return next((key for key in listed if key > WAITING and step_of(key)[0] == TRAIN), max(listed, default=ALL))


@dataclass(frozen=True)
class Selection:
    """What somebody looks at."""

    learner: Learner
    """The task or policy whose steps and groups are shown."""
    step: int
    """A step's key."""
    group: int | None = None
    """A group's id, or ALL; None: the first."""
    conversation: int | None = None
    """A conversation's id; None: the first."""
    failures: bool = False
    """Whether only failures are shown."""
    at_end: bool = False
    """Whether the last conversation is meant if none is named, instead of the first."""

    @property
    def scope(self) -> tuple[object, ...]:
        """What the list of groups depends on."""
        return (self.learner, self.step, self.failures)


@dataclass(frozen=True, eq=False)
class Found:
    """What was found at a place."""

    place: Selection
    """The place, with a group and a conversation that exist, as far as any do."""
    groups: array[int]
    conversations: array[int]

    @property
    def scope(self) -> tuple[object, ...]:
        """What the list of conversations depends on."""
        return (*self.place.scope, self.place.group)


def find(reader: Reader, place: Selection, before: Found | None = None) -> Found:
    """What is at a place; a group or conversation that is gone is replaced by the first. Raises ``StoreError``.

    ``before``: what was found last; in the list of all groups, only conversations that it lacks are read.
    """
    split, step = step_of(place.step)
    task, policy = place.learner.task, place.learner.policy or None
    groups = reader.group_ids(task, split, step, place.failures, policy)
    group = place.group
    if group is None or (group != ALL and group not in groups):
        group = groups[0] if groups else ALL
    within = None if group == ALL else group
    listed = partial(reader.conversation_ids, task, split, step, within, place.failures, policy=policy)
    if before is not None and group == ALL and before.conversations and before.scope == (*place.scope, ALL):
        conversations = listed(after=before.conversations[0]) + before.conversations
    else:
        conversations = listed()
    conversation = place.conversation
    if conversation not in conversations:
        conversation = (conversations[-1 if place.at_end else 0]) if conversations else None
    return Found(replace(place, group=group, conversation=conversation, at_end=False), groups, conversations)
