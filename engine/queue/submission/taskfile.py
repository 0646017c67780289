"""TOML task files in, validated submissions out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ...errors import AdapterError, ConfigError, as_one
from ...models.find import ON_HUB, anchored, find_adapter
from ...spec.sweep import Member, members, one_of_each
from ...spec.task import (
    ComponentSpec,
    EvalSpec,
    SamplingSpec,
    SuiteSpec,
    TaskSpec,
    components_of,
    parse,
    rollouts_of,
    start_folder,
)
from ...spec.toml_text import Position, key_positions, read_toml
from ...spec.validation import STAND_IN, shaped
from ...store.submissions import Submission

T = TypeVar("T", TaskSpec, ComponentSpec, SuiteSpec)


def located(mistakes: Iterable[ConfigError], file: str, source: str) -> list[ConfigError]:
    """Mistakes with ``file:line:column``, in file order, each once. ``source``: the text."""
    known = key_positions(source)
    found: dict[tuple[int, int, str], ConfigError] = {}
    for mistake in mistakes:
        place = _place(mistake.path, known)
        found.setdefault((place.line, place.column, mistake.cause), mistake.at(f"{file}:{place.line}:{place.column}"))
    return [mistake for _, mistake in sorted(found.items(), key=lambda one: one[0][:2])]


def of_submission(error: ConfigError, submission: Submission) -> list[ConfigError]:
    """With places if it came from a file."""
    mistakes = list(error.mistakes)
    return located(mistakes, submission.file, submission.source) if submission.file else mistakes


def distinct(mistakes: Sequence[ConfigError]) -> list[ConfigError]:
    """Each once: a sweep's tasks share them."""
    return list({(mistake.message, mistake.hint): mistake for mistake in mistakes}.values())


def _place(path: str, known: Mapping[str, Position]) -> Position:
    """Else of its table."""
    while path:
        for name in (f"sweep.{path}", path):
            if name in known:
                return known[name]
        path = path[: path.rindex("[")] if path.endswith("]") else path.rpartition(".")[0]
    return Position()


LARGEST = 1_000_000
"""Bytes: hundreds of thousands of keys would take minutes to refuse."""


def load(path: Path) -> list[Submission]:
    """One task, or a sweep's. Relative paths start in its folder.

    Raises ``ConfigError`` with all mistakes, each with file, line and column.
    """
    source = source_of(path)
    return tasks_of(table_of(source, str(path)), str(path), path.parent, source, in_file=True)


def source_of(path: Path) -> str:
    """The file's text. Raises ``ConfigError``."""
    try:
        if (size := path.stat().st_size) > LARGEST:
            raise ConfigError(
                f"has {size / 1e6:.1f} MB, which no task file has.",
                "Keep rows in a file of their own, and name it below [data].",
                where=str(path),
            )
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("is no UTF-8 text.", "A task file is TOML.", where=str(path)) from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}.", where=str(path)) from error


def table_of(source: str, where: str) -> dict[str, Any]:
    """``where`` names it in errors. Raises ``ConfigError``."""
    try:
        return read_toml(source)
    except ValueError as error:
        what, place = _syntax(str(error), source)
        raise ConfigError(f"is not valid TOML: {what}.", where=f"{where}{place}") from error


def _syntax(sentence: str, source: str) -> tuple[str, str]:
    """Its place as ``:3:1``; empty: none."""
    what = sentence.removesuffix(" (at end of document)")
    if what != sentence:
        return what, f":{source.count(chr(10)) + 1}:{len(source) - source.rfind(chr(10))}"
    found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", sentence, re.DOTALL)
    return (found[1], f":{found[2]}:{found[3]}") if found else (sentence, "")


def tasks_of(
    table: dict[str, Any], where: str, folder: Path, source: str = "", in_file: bool = False
) -> list[Submission]:
    """One task, or a sweep's.

    ``folder``: base of relative paths; ``source``: stored with each task; ``in_file``: ``where`` is its file. Raises
    ``ConfigError`` with all mistakes, with ``where``, the key, and in a file its line and column.
    """
    mistakes: list[ConfigError] = []
    try:
        own = members(table, where)
    except ConfigError as error:
        mistakes += error.mistakes
        own = [Member(one_of_each(table))]
    found = []
    for member in own:
        try:
            spec = _anchored(parse(member.table, where), folder)
        except AdapterError as error:
            mistakes.append(ConfigError(error.cause, error.hint, where=where, path="policy.start"))
        except ConfigError as error:
            mistakes += error.mistakes
        else:
            made = submission(spec, source, member.family)
            found.append(replace(made, file=where if in_file else ""))
    if mistakes:
        raise as_one(located(mistakes, where, source) if in_file else distinct(mistakes))
    return found


def _anchored(spec: TaskSpec, folder: Path) -> TaskSpec:
    def place(words: str) -> str:
        if words.startswith(ON_HUB):
            return str(find_adapter(words))
        start = start_folder(words)
        return words if start is None else str((folder / start).absolute())

    def rows(part: T) -> T:
        data = part.data
        if data.path and rollouts_of(data.path) is None:
            data = replace(data, path=str((folder / Path(data.path).expanduser()).absolute()))
        return replace(part, data=data)

    policies = {
        name: replace(policy, start=place(policy.start), frozen=place(policy.frozen))
        for name, policy in spec.policies.items()
    }
    agents = {agent: place(words) for agent, words in spec.eval.agents.items()}
    return replace(
        rows(spec),
        base=anchored(spec.base, folder),
        mixture=tuple(map(rows, spec.mixture)),
        policy=replace(spec.policy, start=place(spec.policy.start)),
        policies=policies,
        eval=replace(spec.eval, agents=agents, suite=tuple(map(rows, spec.eval.suite))),
        versions=tuple(map(place, spec.versions)),
        train=replace(spec.train, kl_reference=place(spec.train.kl_reference)),
    )


@dataclass(frozen=True)
class ToPlay:
    """An environment of a task."""

    name: str
    config: dict[str, Any]
    data: dict[str, Any] | None
    """As ``plugins.data.Source.record``; None: its own rows."""


def environments_of(submission: Submission) -> list[ToPlay]:
    """One, or those of a mixture."""
    parts = components_of(submission.spec).values()
    return [ToPlay(part.environment, part.environment_config, part.data.record) for part in parts]


def submission(spec: TaskSpec, source: str = "", family: str = "") -> Submission:
    """Names in ``depends_on`` are not resolved yet."""
    needs = tuple(needed for needed in spec.queue.depends_on if isinstance(needed, int))
    return Submission(spec, source=source, family=family, needs=needs)


def sketch(path: Path) -> list[Submission]:
    """A wrong task file, for ``check_environments``; none unless it names all environments."""
    try:
        source = source_of(path)
        spec = shaped(TaskSpec, one_of_each(table_of(source, str(path))), [])
    except ConfigError:
        return []  # the file's own mistake is reported
    names = [part.environment for part in components_of(spec).values()]
    names += [suite.environment for suite in spec.eval.suite]
    missing = any(name == STAND_IN or not name.strip() for name in names)
    return [] if missing else [Submission(spec, source=source, file=str(path))]


TASKS = (
    TaskSpec("physics-lab", "two-digit sums", "arithmetic", sampling=SamplingSpec(max_tokens=8)),
    TaskSpec("game-theory", "find it in four", "guess", sampling=SamplingSpec(max_tokens=8)),
    TaskSpec("economics", "word problems", "calculator", sampling=SamplingSpec(max_tokens=96)),
)
REAL_BASE = "smollm2"
_MEASURED = EvalSpec(every=5, prompts=20, temperature=1.0)
"""As the model samples: its likeliest replies are often right before training."""
REAL = (
    TaskSpec("geography", "capitals", "instruct/capitals", 15, sampling=SamplingSpec(max_tokens=16), eval=_MEASURED),
    TaskSpec(
        "physics-lab", "sums in numbers", "instruct/sums", 15, sampling=SamplingSpec(max_tokens=16), eval=_MEASURED
    ),
    TaskSpec("registry", "people as JSON", "instruct/people", 15, sampling=SamplingSpec(max_tokens=40), eval=_MEASURED),
)
"""For an instruct model of 135 M parameters: a step of all three takes a minute on two cores."""


def demo_tasks(real: bool = False) -> list[Submission]:
    """Three; ``real``: for ``REAL_BASE``."""
    return [submission(spec) for spec in (REAL if real else TASKS)]
