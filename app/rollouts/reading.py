"""A conversation as blocks of text: who said what, tool calls and results, rewards, and failures.

Everything in a row of the store is foreign; the blocks are safe. With a decoder they show the tokens themselves,
shaded. Slow for long texts: call it in a thread. Knows no widget.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from marlaas.engine.spec import ONLY
from marlaas.engine.store import StoredConversation, StoredTrajectory, Turn

from ..words.format import duration, line, number, plain, score
from ..words.policies import who
from .document import Block, Stretch, occurrences
from .paying import Payments
from .pieces import HALF, Decode, pieces
from .shading import TURNS, Shading, shading_of, token_styles

LONGEST_TURN = 1_000_000
"""Characters of a turn that are shown; an export has all of them."""
TRACEBACK_LINES = 20
LINE_END = "↵"
"""Shown before a line break in the tokens, because a line break itself shows no colour."""
_ROLES = {"assistant": "bold $text-primary", "tool": "bold $text-warning", "thinking": "$text-muted"}
_ANEW = "— a new prompt begins here: the template rewrote earlier turns, or this is a fork —"


def head(conversation: StoredConversation) -> str:
    """A line that says where a conversation comes from."""
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
    words += [] if conversation.speaker else [f"advantage {conversation.advantage:+.2f}"]
    words += [f"{line(name, 30)} {number(value)}" for name, value in list(conversation.scores.items())[:20]]
    return " · ".join(words)


def blocks(conversation: StoredConversation, shading: Shading, decode: Decode | None, problem: str = "") -> list[Block]:
    """All blocks of a conversation. ``problem``: why its tokens cannot be shown, where there is a reason."""
    found = [Block(head(conversation), "$text-muted"), Block(payment(conversation), "bold")]
    if conversation.metrics:
        logged = (f"{line(name, 30)} {_value(value)}" for name, value in list(conversation.metrics.items())[:20])
        found.append(Block(f"logged: {' · '.join(logged)}", "$text-muted"))
    found += _failure(conversation)
    lacking = shading.lacking or (problem if shading.name != TURNS else "")
    if lacking:
        found.append(Block(line(lacking), "$text-warning"))
    return [*found, *_said(conversation, shading, None if lacking else decode)]


def episode_blocks(
    episode: Sequence[StoredConversation], shading: Shading, decode: Decode | None, problem: str = ""
) -> list[Block]:
    """A conversation as ``blocks`` has it, and behind it what all others said in the same episode."""
    own, *others = episode
    found = blocks(own, shading, decode, problem)
    for other in others:
        name = who(other.agent, other.policy, other.version, other.speaker, other.spoke) or "another agent"
        found += [Block(""), Block(f"— in the same episode, {name} · {payment(other)} —", "bold $text-accent")]
        shaded = shading_of(shading.name, other)
        if shaded.lacking and not shading.lacking:
            found.append(Block(shaded.lacking, "$text-warning"))
        found += _said(other, shaded, None if shaded.lacking else decode)
    return found


def _said(conversation: StoredConversation, shading: Shading, decode: Decode | None) -> Iterator[Block]:
    """Turns with their rewards; or shaded tokens, where there is a decoder and something to shade by."""
    shaded = shading.name != TURNS
    payments = Payments(conversation.paid)
    for place, part in enumerate(conversation.parts):
        if place:
            yield from (Block(""), Block(_ANEW, "$text-warning"))
        if shaded and decode is not None:
            yield from (Block(""), _shaded(conversation, part, shading.name, decode))
        else:
            for turn, following in zip(part.turns, [*part.turns[1:], None], strict=False):
                yield from (*_turn(turn), *payments.after(turn, following))
    yield from payments.rest()


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


def _turn(turn: Turn) -> Iterator[Block]:
    role = line(turn.role, 20)
    text, left_out = plain(turn.text[:LONGEST_TURN]), len(turn.text) - LONGEST_TURN
    calls: list[str] = []
    if role == "assistant":
        text, calls = _calls(text)
    yield Block("")
    yield Block({"tool": "tool result", "thinking": "thinks"}.get(role, role), _ROLES.get(role, "bold $text-muted"))
    if text.strip() or not calls:
        yield Block(
            text if text.strip() else "(nothing)", "$text-muted" if role == "thinking" or not text.strip() else ""
        )
    for call in calls:
        yield Block(f"→ {call}", "$text-warning")
    if left_out > 0:
        yield Block(f"… {left_out:,} more characters; e exports them", "$text-muted")


def _calls(text: str) -> tuple[str, list[str]]:
    """What a model said besides its calls, and the calls in Python's notation."""
    if "{" not in text:
        return text, []
    from marlaas.engine.rollout import split_hermes, split_llama

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


def _shaded(conversation: StoredConversation, part: StoredTrajectory, name: str, decode: Decode) -> Block:
    """The tokens of one trajectory; neighbours of one style are one stretch."""
    styles = token_styles(name, conversation, part.tokens)
    text: list[str] = []
    stretches: list[Stretch] = []
    length = 0
    for piece in pieces(list(part.tokens.ids), decode):
        shown, style = _visible(piece.text), styles[piece.start]
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
