"""Environments in words: facts, findings, episodes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from marlaas.engine.environments.conformance.finding import Finding, Level, count
from marlaas.engine.store.rows import EnvironmentRow

from .format import ago, counted, duration, excerpt, line, number, pad, share, short_duration

if TYPE_CHECKING:
    from marlaas.engine.environments.protocol import EpisodeOutcome
    from marlaas.engine.store.queries.machine import EnvironmentUse, EpisodeFailure, EpisodeUse
    from marlaas.engine.trajectories import Failure
    from marlaas.plugins.messages import Message, Reply, ToolCall
    from marlaas.plugins.parameters import Parameter


MARKS: dict[Level, str] = {"error": "✗", "warning": "!", "note": "·"}
LEVELS: tuple[Level, ...] = ("error", "warning")
"""Of findings to mend."""
_CHECK_WIDTH = 11


def spoken(finding: Finding) -> str:
    """One finding as a line."""
    return f"{MARKS[finding.level]} {line(finding.check, _CHECK_WIDTH):<{_CHECK_WIDTH}} {line(finding.message)}"


def mark(environment: EnvironmentRow) -> str:
    """The mark for an environment's findings in a table; empty before it was checked."""
    if environment.checked is None:
        return ""
    errors, warnings = (count(environment.findings, level) for level in LEVELS)
    if errors:
        return f"{MARKS['error']} {errors}"
    return f"{MARKS['warning']} {warnings}" if warnings else "✓"


def troubles(findings: Sequence[Finding]) -> list[Finding]:
    """Findings to mend."""
    return [finding for finding in findings if finding.level != "note"]


def verdict(findings: Sequence[Finding]) -> str:
    """All findings in a few words."""
    numbers = {level: count(findings, level) for level in LEVELS}
    return " and ".join(counted(number, level) for level, number in numbers.items() if number) or "nothing wrong"


# ``facts`` gives safe text; ``short`` and ``bounds`` give foreign text.

STATES = {
    "ready": "can be played, while an engine runs",
    "loading": "is being loaded; until then the version before serves, if there was one",
    "broken": "no version serves",
    "stale": "an older version serves; the newest edit does not load",
    "failing": "serves, but some parameters gave only errors: tasks with these wait",
    "hidden": "is not served: another plugin has its name",
    "waiting": "waits for somebody to allow its libraries",
    "building": "its libraries are being installed",
}


def named(name: str, rows: Sequence[EnvironmentRow]) -> list[EnvironmentRow]:
    """The environment of that name, or all of the plugin. Raises ``EnvironmentMissing``."""
    from marlaas.engine.queue.submission.queue import find_environment

    of_plugin = [row for row in rows if plugin_of(row) == name]
    return of_plugin or [find_environment(name, list(rows))]


def plugin_of(row: EnvironmentRow) -> str:
    """The name of the plugin that an environment belongs to."""
    return row.name.partition("/")[0]


def place_of(of: EnvironmentRow | EpisodeFailure) -> str:
    """In brackets; empty if unknown."""
    place = f"{of.file}:{of.line}" if of.line else of.file
    return f" ({place})" if place else ""


def where(of: EnvironmentRow | EpisodeFailure) -> str:
    """Before a colon; empty if unknown."""
    return f"{of.file}:{of.line}: " if of.line else f"{of.file}: " if of.file else ""


def trouble(row: EnvironmentRow, use: EnvironmentUse) -> EnvironmentRow | EpisodeFailure | None:
    """The environment's error, else an episode's of the last hour; None: nothing is wrong."""
    return row if row.message else use.failure if use.failed else None


def trouble_words(row: EnvironmentRow, use: EnvironmentUse) -> str:
    """Place and cause in one safe line; empty if nothing is wrong.

    Without failures, the first error of its checks.
    """
    if of := trouble(row, use):
        return line(f"{where(of)}{of.message}", 300)
    return next((line(found.message, 300) for found in row.findings if found.level == "error"), "")


def short(parameter: Mapping[str, Any]) -> str:
    """``digits=2``, with bounds ``digits=2 (1..9)``; without ``=`` if required."""
    text = str(parameter.get("name"))
    if not parameter.get("required"):
        text += f"={_json(parameter.get('default'))}"
    return text + (f" ({bounds(parameter)})" if bounds(parameter) else "")


def bounds(parameter: Mapping[str, Any]) -> str:
    """``1..9``, ``0..``, ``easy|hard``; empty if none are declared."""
    if parameter.get("choices"):
        return "|".join(map(str, parameter["choices"]))
    low, high = parameter.get("low"), parameter.get("high")
    if low is None and high is None:
        return ""
    return f"{'' if low is None else _number(low)}..{'' if high is None else _number(high)}"


@dataclass(frozen=True)
class Fact:
    """Something that is known of an environment."""

    label: str | None
    """Empty: the label before it continues; None: no column of labels."""
    text: str
    """Safe, one line."""
    level: str = ""
    """error, warning, note, hint, wrong, or empty; ``code``: a line of the plugin."""


def facts(
    row: EnvironmentRow,
    use: EnvironmentUse,
    now: float,
    lines: Mapping[tuple[str, int], str] | None = None,
    checks: bool = True,
) -> Iterator[Fact]:
    """What is known of an environment but its description, errors first.

    ``lines``: code by file and line, foreign text; ``checks``: with findings.
    """
    lines = lines or {}
    parts: list[tuple[str, Iterable[Fact]]] = [
        ("state", [Fact("", f"{line(row.state)}: {STATES.get(row.state, 'see the log')}")]),
        (
            "error",
            [Fact("", line(f"{where(row)}{row.message}", 600), "error"), *_code(row, lines)] if row.message else (),
        ),
        ("last hour", _lately(use, now, lines)),
        ("processes", [Fact("", processes_of(row))] if row.playing else ()),
        ("version", [Fact("", line(row.version, 20))] if row.version else ()),
        ("file", [Fact("", line(row.path, 200))]),
        ("agents", [Fact("", line(", ".join(row.agents), 600))] if row.agents else ()),
        ("parameters", [Fact("", _declared(parameter)) for parameter in row.parameters]),
        ("checks", _checks(row, now) if checks else ()),
    ]
    for label, known in parts:
        for place, fact in enumerate(known):
            yield replace(fact, label="" if place else label)


def processes_of(row: EnvironmentRow) -> str:
    """Processes and episodes in a line."""
    parts = (
        f"{row.playing} process{'' if row.playing == 1 else 'es'}",
        f"{row.live:,} episode{'' if row.live == 1 else 's'} under way",
        f"{row.waiting:,} wait for a place" if row.waiting else "",
        f"{row.scoring} more for scores" if row.scoring else "",
    )
    return ", ".join(filter(None, parts))


def lately_json(use: EnvironmentUse) -> dict[str, Any]:
    """The last hour's episodes as an object."""
    return {"episodes": use.episodes, "failed": use.failed} | asdict(use)


def failed_share(use: EpisodeUse) -> str:
    """Never 0 % if one failed."""
    return "<1 %" if 0 < use.failed < 0.01 else share(use.failed)


def takes(seconds: float) -> str:
    """In six cells."""
    return f"{1000 * seconds:.0f}ms" if seconds < 1 else f"{seconds:.1f}s" if seconds < 10 else short_duration(seconds)


def _checks(row: EnvironmentRow, now: float) -> Iterator[Fact]:
    if row.checked is None:
        yield Fact("", "not checked yet")
        return
    for finding in row.findings:
        yield Fact("", spoken(finding), finding.level)
    done = f"done {ago(row.checked, now)}"
    yield Fact("", done if row.findings else f"nothing wrong; {done}")


def _code(of: EnvironmentRow | EpisodeFailure, lines: Mapping[tuple[str, int], str]) -> Iterator[Fact]:
    if text := lines.get((of.file, of.line)):
        yield Fact("", f"{of.line} │ {line(text, 300)}", "code")


def _lately(use: EnvironmentUse, now: float, lines: Mapping[tuple[str, int], str]) -> Iterator[Fact]:
    if not use.episodes:
        yield Fact("", "no episode has ended")
        return
    yield Fact("", _played(use))
    if len(use.versions) > 1:
        for version, one in sorted(use.versions.items()):
            yield Fact("", f"version {line(version, 20)[:8]}: {_played(one)}")
    if use.failure is not None:
        said = f"{where(use.failure)}{use.failure.message}"
        when = f"version {use.failure.version[:8]}, {ago(use.failure.created, now)}"
        yield Fact("", line(f"last error, {when}: {said}", 600), "error")
        yield from _code(use.failure, lines)


def _played(use: EpisodeUse) -> str:
    count = f"{use.episodes:,} episode{'' if use.episodes == 1 else 's'}"
    ends = ", ".join(f"{number:,} {line(status, 12)}" for status, number in sorted(use.statuses.items()))
    times = f"; median {takes(use.median)}, p95 {takes(use.slow)}" if use.statuses.get("ok") else ""
    return f"{count}, {failed_share(use)} failed ({ends}){times}"


def _declared(parameter: Mapping[str, Any]) -> str:
    words = [str(parameter.get("type"))]
    words += [bounds(parameter)] if bounds(parameter) else []
    words += ["required" if parameter.get("required") else f"default {parameter.get('default')!r}"]
    return line(f"{parameter.get('name')}: {', '.join(words)}", 200)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | list | dict) else str(value)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# Plugins and models wrote this: it is made safe, cut, and indented under its role.

LABEL = 10
"""Cells of the column of roles."""
CHARACTERS, LINES = 20_000, 300
"""Of one message."""
TRACEBACK_LINES = 20
_ENDINGS = {
    "ok": "ended",
    "skip": "was skipped by the environment",
    "timeout": "ran out of time",
    "error": "failed",
    "cancelled": "was cancelled",
}


def labelled(label: str, text: str) -> list[str]:
    """Lines beyond the first are indented."""
    first, *others = excerpt(text, CHARACTERS, LINES).split("\n")
    rows = [f"{pad(line(label, LABEL), LABEL)} {first}", *(f"{pad('', LABEL)} {row}" for row in others)]
    return [row.rstrip() for row in rows]


def message(said: Message) -> list[str]:
    """With the tool's name for results."""
    label = "result" if said.role == "tool" else said.role
    text = f"{said.name}: {said.content}" if said.role == "tool" and said.name else said.content
    return [*labelled(label, text), *(row for call in said.tool_calls for row in labelled("call", call_text(call)))]


def reply(said: Reply) -> list[str]:
    """An empty text is shown as such."""
    rows = labelled("thinking", said.thinking) if said.thinking else []
    if said.text or not said.tool_calls:
        rows += labelled("reply", said.text if said.text.strip() else f"(nothing: {said.text!r})")
    rows += [row for call in said.tool_calls for row in labelled("call", call_text(call))]
    return [*rows, *labelled("", "(cut off by the length limit)")] if said.finish == "length" else rows


def call_text(call: ToolCall) -> str:
    """A call in Python's notation."""
    return f"{call.name}({', '.join(f'{name}={_json_of_transcript(value)}' for name, value in call.arguments.items())})"


def tools(schemas: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tools of an agent, one a line: how to call them, and what they are for."""
    rows = []
    for schema in schemas:
        function = table(schema.get("function"))
        parameters = table(function.get("parameters"))
        needed = parameters.get("required")
        arguments = ", ".join(
            f"{name}{'' if isinstance(needed, list) and name in needed else '?'}: {_kind(table(described))}"
            for name, described in table(parameters.get("properties")).items()
        )
        purpose = str(function.get("description") or "")
        rows += labelled("tool", f"{function.get('name')}({arguments}){'  ' if purpose else ''}{purpose}")
    return rows


def outcome(ended: EpisodeOutcome) -> list[str]:
    """How an episode ended: rewards, parts and logged values; or the failure and its place."""
    rewards = ended.rewards
    rows = (
        ("invalid", ended.invalid),
        ("reward", _listed(rewards) if len(rewards) > 1 else "".join(map(number, rewards.values()))),
        ("parts", _listed(ended.parts)),
        ("logged", _listed(ended.metrics)),
    )
    texts = [text for label, value in rows if value for text in labelled(label, value)]
    failed = failure(ended.failure) if ended.failure else []
    return [f"The episode {_ENDINGS[ended.status]} after {duration(ended.seconds)}.", *texts, *failed]


def failure(failed: Failure) -> list[str]:
    """Cause, place, and the end of the traceback."""
    line_number = f", line {failed.line}" if failed.line else ""
    place = f"{failed.file}{line_number}: " if failed.file else ""
    rows = labelled("error", f"{place}{failed.message}")
    trace = failed.traceback.strip().split("\n")[-TRACEBACK_LINES:] if failed.traceback.strip() else []
    return [*rows, *(row for text in trace for row in labelled("", text))]


def settings(parameters: Sequence[Parameter], config: Mapping[str, Any]) -> str:
    """In the environment's order."""
    return ", ".join(
        f"{line(p.name)} = {line(_json_of_transcript(config[p.name]), 60)}" for p in parameters if p.name in config
    )


def _listed(values: Mapping[str, float | str]) -> str:
    return ", ".join(f"{name} {value if isinstance(value, str) else number(value)}" for name, value in values.items())


def _kind(described: Mapping[str, Any]) -> str:
    choices = described.get("enum")
    return (
        " | ".join(map(_json_of_transcript, choices))
        if isinstance(choices, list)
        else str(described.get("type") or "any")
    )


def table(value: Any) -> Mapping[str, Any]:
    """Empty if it is no table: plugins may send anything."""
    return value if isinstance(value, dict) else {}


def _json_of_transcript(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
