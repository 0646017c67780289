"""The lines around the table of keys: the state of the API; one key in detail, the names that its tenant may use, and
what was asked with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marlaas.engine.store import ApiKeyRow, ApiRow, GivenName, TaskRow

from ...home.api.request_log import Request
from ...rollouts.document import wrapped
from ...words.api import (
    CLOSED,
    GLYPHS,
    OPEN,
    api_state,
    last_use,
    may_text,
    requests_text,
    state_text,
    used_text,
    variables,
)
from ...words.format import ago, cells, count, duration, line, pad, short_duration
from ..engine.pane import Line, table

_STYLES = {OPEN: "bold $text-success", CLOSED: "bold $text-muted"}
_HINTS = {OPEN: "", CLOSED: " o opens it."}
REQUESTS = 20
"""Latest requests of a key that are shown."""
_LABEL = 10
"""Cells of the labels' column."""


def head(row: ApiRow, keys: Sequence[ApiKeyRow], alive: bool, now: float, width: int) -> list[Line]:
    """The API in a line or more: its state, with what to do about it; then what its keys have used."""
    state = api_state(row, alive)
    style = _STYLES.get(state, "bold $text-error")
    hint = _HINTS.get(state, " o tries again.") if alive else " S starts one."
    text = f"{GLYPHS[state]} The API is {state_text(row, alive, now)}{hint}"
    lines: list[Line] = [((text[start:stop], style),) for start, stop in wrapped(text, width)]
    return [*lines, ((used_text(keys), ""),)] if keys else lines


def key_lines(key: ApiKeyRow | None, url: str, now: float, width: int) -> list[Line]:
    """All that is known of a key, and how a program uses it; nothing without one."""
    if key is None:
        return []
    facts = [
        ("key", f"{line(key.prefix, 80)}…  The rest was shown once, when it was made."),
        ("name", line(key.name, 100) or "-"),
        ("tenant", line(key.tenant, 100)),
        ("may", may_text(key.scopes)),
        ("made", ago(key.created, now)),
        ("last use", last_use(key, now)),
        (
            "answered",
            f"{requests_text(key.requests)}: {count(key.tokens_in)} tokens read, {count(key.tokens_out)} sampled",
        ),
    ]
    if key.revoked is not None:
        facts.append(("revoked", f"{ago(key.revoked, now)}: programs that show it are refused"))
    elif url:
        facts += zip(("use", "", "", ""), variables(line(url, 200)), strict=True)
    return [made for label, text in facts for made in _labelled(label, text, width)]


def name_lines(
    names: Sequence[GivenName], tasks: Mapping[int, TaskRow], key: ApiKeyRow | None, width: int
) -> list[Line]:
    """The names by which the key's tenant may ask for its versions, and how it makes more."""
    if key is None:
        return []
    widest = min(30, max((cells(line(each.name)) for each in names), default=0))
    lines: list[Line] = []
    for each in names:
        task = tasks.get(each.task)
        policy = f"/{line(each.policy, 30)}" if task and task.policies else ""
        told = f"  {each.task}{policy}@{each.number}  {line(task.name, 60) if task else ''}"
        gone = "" if each.kept else "  its file is gone"
        lines.append(((pad(line(each.name, 30), widest), "bold"), (told, ""), (gone, "$text-error")))
    more = "`marlaas adapters name` gives a version a name of its own; without one it is 17@best, 17/player@12, base."
    return [*lines, *(((more[start:stop], "$text-muted"),) for start, stop in wrapped(more, width))]


def request_lines(requests: Sequence[Request], now: float, width: int) -> list[Line]:
    """The latest requests of a key in columns, the newest first; nothing without any."""
    if not requests:
        return []
    shown = requests[:REQUESTS]
    rows = [
        (
            short_duration(now - each.when),
            line(each.route.removeprefix("/v1/").partition("/")[0], 20),
            line(each.model, 30) or "-",
            "answered" if each.status == 200 else f"{each.status} {line(each.error, 30)}",
            duration(each.seconds),
            f"{count(each.tokens[0])} → {count(each.tokens[1])}",
        )
        for each in shown
    ]
    return table(("ago", "interface", "model", "outcome", "took", "tokens"), rows, (-4, 11, 14, 21, -7, 20), width)


def _labelled(label: str, text: str, width: int) -> list[Line]:
    """A fact in lines of ``width`` cells; what follows the label stays beside it."""
    pieces = [text[start:stop] for start, stop in wrapped(text, max(1, width - _LABEL))]
    labels = (label, *[""] * len(pieces))
    return [((pad(name, _LABEL), "$text-muted"), (piece, "")) for name, piece in zip(labels, pieces, strict=False)]
