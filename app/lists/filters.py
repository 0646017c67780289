"""Lists of tasks and events: filters, order, pages."""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from marlaas.engine.environments.conformance.finding import count
from marlaas.engine.errors import ConfigError
from marlaas.engine.store.queries.machine import LEVELS, EnvironmentUse, EventFilter
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import ACTIVE, FINISHED, EnvironmentRow, TaskRow

ORDER = ("broken", "failing", "stale", "waiting", "building", "loading", "ready", "hidden")
"""Worst first."""
MANY = 0.05
"""Least share of failed episodes to list a serving environment first."""

Used = tuple[EnvironmentRow, EnvironmentUse]


def broken_first(rows: Iterable[Used]) -> list[Used]:
    """Sort by what is wrong, then by shown name."""

    rows = list(rows)
    names = short_names([row.name for row, _ in rows])

    def place(one: Used) -> tuple[int, bool, str]:
        row, use = one
        state = ORDER.index(row.state) if row.state in ORDER else 0
        fine = not count(row.findings, "error") and use.failed <= MANY
        return state, fine, names[row.name]

    return sorted(rows, key=place)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """The part after the plugin for each full name, or all of it if ambiguous."""
    counts = Counter(name.rpartition("/")[2] for name in names)
    return {name: short if counts[short := name.rpartition("/")[2]] == 1 else name for name in names}


STATES = (*ACTIVE, *FINISHED)
TEXTS: dict[str, Callable[[TaskRow], str]] = {
    "state": lambda task: task.state,
    "tenant": lambda task: task.tenant,
    "env": lambda task: task.environment,
    "family": lambda task: task.family,
    "name": lambda task: task.name,
}
NUMBERS: dict[str, Callable[[TaskRow], float | None]] = {
    "id": lambda task: task.id,
    "reward": lambda task: task.reward,
    "score": lambda task: task.score,
    "best": lambda task: task.best,
    "step": lambda task: task.step,
    "steps": lambda task: task.steps,
    "priority": lambda task: task.priority,
    "staleness": lambda task: task.staleness,
    "tokens": lambda task: task.tokens,
    "seconds": lambda task: task.seconds,
}
FIELDS = (*TEXTS, *NUMBERS)
LONGEST = 1000
"""Most characters of a query: longer ones are pasted by mistake."""
_KNOWN = f"Known are {', '.join(FIELDS)}."

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ":": operator.eq,
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_TERM = re.compile(
    r"(?P<negated>[!-]?)"
    r"(?:(?P<field>[A-Za-z_]++)(?P<sign>>=|<=|!=|[:=<>]))?"
    r'(?:"(?P<quoted>[^"]*)"?|(?P<bare>[^\s"]*))'
)


@dataclass(frozen=True)
class Term:
    """One word of a query."""

    field: str
    """One of ``FIELDS``; empty: name, tenant or environment."""
    sign: str
    """Numbers: one of : = > >= < <=; text: : (contains) or = (is)."""
    value: str | float
    """Text in lower case."""
    negated: bool = False


Query = tuple[Term, ...]
"""Terms that must all hold; without terms every task fits."""


def parse(text: str) -> Query:
    """Read a query, also a half-typed one. Raises ``ConfigError`` with one sentence."""
    if len(text) > LONGEST:
        raise ConfigError(f"A filter has at most {LONGEST:,} characters, not {len(text):,}.")
    found = (_term(match) for match in _TERM.finditer(text) if match[0].strip("!-"))
    return tuple(term for term in found if term is not None)


def _term(match: re.Match[str]) -> Term | None:
    negated, field, sign = bool(match["negated"]), (match["field"] or "").lower(), match["sign"] or ":"
    if sign == "!=":
        negated, sign = not negated, "="
    value = match["bare"] if match["quoted"] is None else match["quoted"]
    if not field:
        return Term("", ":", value.lower(), negated) if value else None
    field = "env" if field == "environment" else field
    if field in NUMBERS:
        return Term(field, sign, _number(field, value), negated)
    if field not in TEXTS:
        hint = f"{_KNOWN} Text with {match['sign']} in it goes in quotes."
        raise ConfigError(f"There is no field {field!r} to filter by.", hint)
    if sign not in (":", "="):
        raise ConfigError(f"The field {field!r} is text: write {field}:{value or 'word'}.")
    if field == "state" and not any(state.startswith(value.lower()) for state in STATES):
        check_state(value)
    return Term(field, sign, value.lower(), negated)


def check_state(state: str) -> None:
    """Raise ``ConfigError`` for an unknown state."""
    if state not in STATES:
        raise ConfigError(f"There is no state {state!r}.", f"Known are {', '.join(STATES)}.")


def _number(field: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ConfigError(f"The field {field!r} is compared with a number, as in {field}>0.5, not with {value!r}.")
    return number


def matches(query: Query, task: TaskRow) -> bool:
    """True if all terms hold. A missing number fits no comparison."""
    return all(_holds(term, task) is not term.negated for term in query)


def _holds(term: Term, task: TaskRow) -> bool:
    if isinstance(term.value, float):
        has = NUMBERS[term.field](task)
        return has is not None and _COMPARE[term.sign](has, term.value)
    if not term.field:
        return any(term.value in text.lower() for text in (task.name, task.tenant, task.environment))
    text = TEXTS[term.field](task).lower()
    if term.field == "state":
        return text.startswith(term.value)
    return text == term.value if term.sign == "=" else term.value in text


def in_order(tasks: Sequence[TaskRow], field: str, backwards: bool = False) -> list[TaskRow]:
    """Sort by a field: words A to Z, numbers largest first, or ``backwards``; missing values last.

    Raises ``ConfigError`` for an unknown field.
    """
    if field in TEXTS:
        text = TEXTS[field]
        return sorted(tasks, key=lambda task: text(task).lower(), reverse=backwards)
    if field not in NUMBERS:
        raise ConfigError(f"There is no field {field!r} to sort by.", _KNOWN)
    number = NUMBERS[field]
    having = [(value, task) for task in tasks if (value := number(task)) is not None and not math.isnan(value)]
    without = [task for task in tasks if (value := number(task)) is None or math.isnan(value)]
    return [task for _, task in sorted(having, key=lambda pair: pair[0], reverse=not backwards)] + without


# ``level:error task:17 tenant:bio kind:worker some words``: all must hold. A word with an unknown field is searched as
# it is: logs are full of colons.

HINT = "level:error task:17 tenant:bio some words"


def level_of(text: str) -> str:
    """A level by name or prefix. Raises ``ConfigError``."""
    for level in LEVELS:
        if level.startswith(text.lower()):
            return level
    raise ConfigError(f"There is no level {text!r}.", f"Known are {', '.join(LEVELS)}.")


def _task_of(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ConfigError(f"{text!r} is no task number.")
    return int(text)


LOG_FIELDS: dict[str, Callable[[str], object]] = {"level": level_of, "task": _task_of, "tenant": str, "kind": str}
_LOG_TERM = re.compile(rf'(?:({"|".join(LOG_FIELDS)}):)?(?:"([^"]*)"?|(\S+))', re.IGNORECASE)


def parse_log_filter(text: str) -> EventFilter:
    """The filter of a text, also half-typed. Raises ``ConfigError`` with one sentence."""
    wanted, words = dict[str, Any](), list[str]()
    for match in _LOG_TERM.finditer(text):
        field, value = (match[1] or "").lower(), match[2] if match[3] is None else match[3]
        if not value or (not field and value.lower().removesuffix(":") in LOG_FIELDS and value.endswith(":")):
            continue  # its value has not been typed yet
        if field:
            wanted[field] = LOG_FIELDS[field](value)
        else:
            words.append(value)
    return EventFilter(**wanted, words=tuple(words))


def with_field(text: str, field: str, value: str) -> str:
    """The same text with another value for a field, or without it."""
    rest = re.sub(rf'(?i)\b{field}:(?:"[^"]*"?|\S*)\s*', "", text).strip()
    if not value:
        return rest
    quoted = f'"{value}"' if re.search(r"\s", value) else value
    return f"{field}:{quoted} {rest}".strip()


Row = TypeVar("Row")


@dataclass(frozen=True, eq=False)
class Listing(Generic[Row]):
    """The rows of a list."""

    ids: Sequence[Any]
    """Keys in order; an ``array`` holds 100,000 in less than a megabyte."""
    read: Callable[[Reader, Sequence[Any]], Mapping[Any, Row]] = field(default=lambda reader, ids: {})
    """Reads rows by key, in a thread; deleted rows are left out."""
    stamp: object = 0
    """Rows read under another stamp are shown until read again."""
    at_hand: Mapping[Any, Row] | None = None

    @classmethod
    def of(cls, rows: Mapping[Any, Row]) -> Listing[Row]:
        return cls(tuple(rows), at_hand=rows)
