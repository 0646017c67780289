"""The pages of ``docs/reference``, which git ignores, written from the code that they describe."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from marlaas import plugins
from marlaas.app.cli.main import build_parser
from marlaas.app.keymap import Key, known_keys
from marlaas.app.text.terms import KINDS, TERMS, Kind, Term, by_kind
from marlaas.engine.home.settings import DOCUMENTED, Settings
from marlaas.engine.spec.fields import (
    REQUIRED,
    SpecField,
    docstrings,
    spec_fields,
)
from marlaas.engine.spec.sweep import MOST_MEMBERS
from marlaas.engine.spec.task import (
    ComponentSpec,
    DataSpec,
    EvalSpec,
    KeepSpec,
    NamedPolicySpec,
    QueueSpec,
    SamplingSpec,
    SuiteSpec,
    TaskSpec,
    TrackSpec,
    TrainSpec,
    WatchSpec,
)
from marlaas.plugins import adapters
from marlaas.plugins.programs import ProgramRun

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"


def pages() -> dict[str, str]:
    """The text of each page, by the name of its file."""
    return {
        "task-file.md": task_file_page(),
        "settings.md": settings_page(),
        "verbs.md": verbs_page(),
        "environment-api.md": environment_api_page(api_version()),
        "keys.md": keys_page(),
        "metrics.md": metrics_page(),
        "words.md": words_page(),
    }


def write_reference(folder: Path = FOLDER) -> list[Path]:
    """Write every page; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = pages()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def api_version() -> str:
    """The release whose API this is, by its first two numbers: 0.1."""
    return ".".join(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"].split(".")[:2])


def joined(parts: Iterable[str | None]) -> str:
    """Blocks of a page, each after an empty line."""
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; characters that would end a cell are escaped."""
    lines = [[" ".join(text.split()).replace("|", "\\|") for text in line] for line in (head, *rows)]
    lines.insert(1, ["---"] * len(head))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(text: str) -> str:
    """A text marked as code; empty stays empty."""
    return f"`{text}`" if text else ""


def value(given: Any) -> str:
    """A value as a TOML file has it."""
    return code(json.dumps(given, ensure_ascii=False))


def allowed(low: float | None, high: float | None, choices: Sequence[str]) -> str:
    """What a key may hold, besides its type."""
    if choices or low is None or high is None:
        return ", ".join(value(choice) for choice in dict.fromkeys(choices))
    return " to ".join(f"{int(n):,}" if float(n).is_integer() else f"{n:g}" for n in (low, high))


def sentence(text: str) -> str:
    """With a capital, unless it begins with the program's name, and a full stop."""
    text = text.strip()
    first = text[:1] if text.startswith("marlaas") else text[:1].upper()
    return text and first + text[1:] + ("" if text[-1] in ".!?:" else ".")


# Task files


TABLES = {
    "": "",
    "policy": "The adapter that is trained.",
    "train": TrainSpec.__doc__,
    "sampling": SamplingSpec.__doc__,
    "queue": QueueSpec.__doc__,
    "eval": EvalSpec.__doc__,
    "keep": KeepSpec.__doc__,
    "watch": WatchSpec.__doc__,
    "track": TrackSpec.__doc__,
    "data": DataSpec.__doc__,
}
OF_SUITES = ("eval.suite.name", "eval.suite.environment")
"""Keys that every suite has."""
TASK_FILE = """# Task file

A task file is TOML. `tenant`, `name` and `environment` are required; every other key has a default. A key that does not
exist, a value outside its range and keys that contradict each other are refused when the task is submitted.

A list in a key marked ¹ makes a sweep: one task for each value. See [Sweeps](../guides/queue.md#sweeps).
"""
FREE_TABLES = """
## `[environment_config]`

The environment's own parameters. `marlaas env show NAME` lists them. A list is a value of the environment; to sweep
such a key, name it under `[sweep]`.

## `[sweep]`

Keys by their dotted names, each with a list of values. All lists together make a grid of at most {most:,} tasks.

```toml
[sweep]
"environment_config.digits" = [2, 3]
```

## `[agents]`

{agents} Only together with `[policies.NAME]`.
"""
SUITES = """## `[[eval.suite]]`

Further environments that the policy is measured on, one in each table. `config` is a table of the environment's own\
 parameters. See [Evaluation](../guides/evaluation.md)."""
POLICIES = """## `[policies.NAME]`

Several policies by name, in place of `[policy]`. See [Several policies](../guides/policies.md)."""
MIXTURE = """## `[[mixture]]`

Several environments, in place of `environment` and `[environment_config]`. See\
 [Task files](../guides/tasks.md#several-environments)."""


def task_file_page() -> str:
    """Task files: every key with its default, from the dataclasses that read them."""
    evaluation, suites, data, component = map(docstrings, (EvalSpec, SuiteSpec, DataSpec, ComponentSpec))
    behind = {
        "": [
            MIXTURE,
            _fields(spec_fields(ComponentSpec, "mixture."), "mixture"),
            f"`config` is a table: {component['config']} `data` is a table: {component['data']}",
        ],
        "policy": [POLICIES, _fields(spec_fields(NamedPolicySpec, "policies.NAME."))],
        "eval": [
            f"`agents` is a table: {evaluation['agents']}",
            SUITES,
            _fields(spec_fields(SuiteSpec, "eval.suite."), "eval.suite"),
            f"`data` is a table: {suites['data']}",
        ],
        "data": [f"`columns` is a table: {data['columns']}", f"`split` is a table: {data['split']}"],
    }
    parts = [TASK_FILE]
    for name, about in TABLES.items():
        parts.append(f"## {code(f'[{name}]') if name else 'Top level'}\n\n{about or ''}")
        parts += [_fields(spec_fields(), name), *behind.get(name, [])]
    return joined([*parts, FREE_TABLES.format(most=MOST_MEMBERS, agents=docstrings(TaskSpec)["agents"])])


def _fields(fields: Iterable[SpecField], name: str | None = None) -> str:
    rows = []
    for field in fields:
        if name is None or field.table == name:
            default = "absent" if field.default is None else value(field.default)
            rows.append(
                (
                    code(field.name) + (" ¹" if field.swept else ""),
                    field.kind,
                    "required" if field.key in (*REQUIRED, *OF_SUITES) else default,
                    allowed(field.low, field.high, field.choices) + (", or auto" if field.auto else ""),
                    sentence(field.about),
                )
            )
    return table(("Key", "Type", "Default", "Allowed", "Meaning"), rows)


# Settings


SETTINGS = """# Settings

`marlaas.toml` in the home holds the settings. A new home gets a file with every key and its default, commented out. The
engine reads it when it starts. `MARLAAS_BASE` overrides `base`; `--home` and `MARLAAS_HOME` choose the home itself.
"""


def settings_page() -> str:
    """``marlaas.toml``: from the documented file that every new home starts with."""
    parts, keys = [SETTINGS], documented()
    for name in dict.fromkeys(of_table for of_table, _ in keys):
        parts.append(f"## {code(f'[{name}]') if name else 'Top level'}")
        rows = (_setting(*key, *found) for key, found in keys.items() if key[0] == name)
        parts.append(table(("Key", "Default", "Allowed", "Meaning"), rows))
    return joined(parts)


def documented() -> dict[tuple[str, str], tuple[Any, str]]:
    """The default of each key of the file, and the words above it, by table and name; keys that stand together share
    theirs."""
    keys: dict[tuple[str, str], tuple[Any, str]] = {}
    name, about = "", ""
    words: list[str] = []
    for line in DOCUMENTED.splitlines()[1:]:
        if line.startswith("["):
            name, words, about = line.strip("[]"), [], ""
        elif key := re.fullmatch(r"# (\w+) = .+", line):
            about, words = " ".join(words) or about, []
            keys[name, key[1]] = tomllib.loads(line.removeprefix("# "))[key[1]], about
        elif line:
            words.append(line.removeprefix("# "))
    return keys


def _setting(of_table: str, name: str, default: Any, about: str) -> tuple[str, ...]:
    cls: Any = type(getattr(Settings(), of_table)) if of_table else Settings
    metadata = cls.__dataclass_fields__[name].metadata
    low, high = metadata.get("range", (None, None))
    return code(name), value(default), allowed(low, high, metadata.get("choices", ())), about


# Verbs


VERBS = """# Verbs

`marlaas VERB --help` says the same on the terminal. Every verb takes `--home FOLDER`, before or after it. Verbs that
read take `--json`. Results go to standard output, messages to standard error.
"""


def verbs_page() -> str:
    """The command line: from the parser itself."""
    parser = build_parser()
    verbs = list(_leaves(parser))
    rows = ((f"[`{verb.prog}`](#{verb.prog.replace(' ', '-')})", verb.description or "") for verb in verbs)
    parts = [VERBS, sentence(parser.epilog or ""), table(("Verb", "What it does"), rows)]
    parts += ["## marlaas", sentence(parser.description or ""), _arguments(parser)]
    for verb in verbs:
        usage = " ".join(verb.format_usage().removeprefix("usage: ").split())
        usage = re.sub(r" \[(-h|--home FOLDER|--json)\]", "", usage)
        parts += [f"## {verb.prog}", verb.description or "", f"```text\n{usage}\n```", _arguments(verb)]
        parts.append(verb.epilog or "")
    return joined(parts)


def _leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                is_family = any(isinstance(inner, argparse._SubParsersAction) for inner in verb._actions)
                if not is_family or _options(verb):
                    yield verb
                yield from _leaves(verb)


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    hidden = (argparse._SubParsersAction, argparse._HelpAction)
    return [
        action
        for action in parser._actions
        if not isinstance(action, hidden) and action.help != argparse.SUPPRESS and action.dest != "home"
    ]


def _arguments(parser: argparse.ArgumentParser) -> str:
    rows = []
    for action in _options(parser):
        if action.dest == "json":
            continue
        shown = action.metavar or action.dest.upper()
        name = " ".join(shown) if isinstance(shown, tuple) else shown
        if action.choices:
            name = "\u2009|\u2009".join(map(str, action.choices))
        if action.option_strings:
            name = f"{', '.join(action.option_strings)} {'' if action.nargs == 0 else name}".strip()
        given = {key: getattr(action, key) for key in ("default", "metavar", "dest", "const")}
        rows.append((code(name), sentence((action.help or "") % given)))
    return table(("Argument", "Meaning"), rows) if rows else ""


# The environment API


ORDER = (
    "env",
    "Environment",
    "Episode",
    "Agent",
    "Reply",
    "Message",
    "ToolCall",
    "Range",
    "Score",
    "Invalid",
    "Skip",
    "Ran",
    "Transcript",
    "Member",
    "BlockingEpisode",
    "BlockingAgent",
    "Endpoint",
)
"""The order in which an author meets them."""
ENVIRONMENT_API = """# Environment API

This is the plugin API of marlaas {version}: everything that `marlaas.plugins` and `marlaas.plugins.adapters` export. It
is standard library only.

**Stability.** Until 1.0, names and parameters on this page stay as they are in all releases {version}.x. A release that
changes one raises the second number and says so in the changelog. Everything else in marlaas may change at any time.
"""


def environment_api_page(version: str) -> str:
    """What an environment file imports: from the docstrings of ``marlaas.plugins``."""
    parts = [ENVIRONMENT_API.format(version=version)]
    for name in ORDER:
        parts += _entry(name, getattr(plugins, name))
    parts += _entry("ProgramRun", ProgramRun)
    parts += ["## Environments of other libraries", _prose(adapters.__doc__)]
    for name in adapters.__all__:
        function = getattr(adapters, name)
        if function.__annotations__["return"] == "Environment":  # the others are for the engine
            parts += [f"### {name}", *_called(name, function)]
    return joined(parts)


def _entry(name: str, thing: Any) -> list[str]:
    if not inspect.isclass(thing):
        lines = [f"## {name}", *_called(name, thing)]
        for member in (key for key, found in vars(type(thing)).items() if isinstance(found, staticmethod)):
            lines += [f"### {name}.{member}", *_called(f"{name}.{member}", getattr(thing, member))]
        return lines
    lines = [f"## {name}", _prose(thing.__doc__)]
    if dataclasses.is_dataclass(thing):
        about = docstrings(thing)
        fields = ((key, field.type, about.get(key)) for key, field in thing.__dataclass_fields__.items())
        lines.append("\n".join(f"- `{key}: {kind}`{f': {words}' if words else ''}" for key, kind, words in fields))
    for member, found in vars(thing).items():
        is_member = inspect.isfunction(found) or isinstance(found, property) or hasattr(found, "attrname")
        if is_member and not member.startswith("_") and found.__doc__:
            called = f"{name}.{member}"
            lines += [f"### {called}", *(_called(called, found) if callable(found) else [_prose(found.__doc__)])]
    return lines


def _called(name: str, function: Any) -> list[str]:
    word = "await " if inspect.iscoroutinefunction(function) else ""
    return [f"```python\n{word}{name}{signature_of(function)}\n```", _prose(function.__doc__)]


def signature_of(function: Any) -> str:
    """The lines of its ``def``, as its author wrote them, without ``self``."""
    plain = inspect.unwrap(function if inspect.isroutine(function) else type(function).__call__)
    source = textwrap.dedent(inspect.getsource(plain))
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    text = "\n".join(source.splitlines()[node.lineno - 1 : node.body[0].lineno - 1]).strip().removesuffix(":")
    text = re.sub(r"(?<== )[A-Z_]{2,}\b", lambda constant: repr(plain.__globals__[constant[0]]), text)
    return re.sub(r"(\(\s*)self(?:,\s*|(?=\)))", r"\1", text[text.index("(") :], count=1)


def _prose(text: str | None) -> str:
    """A docstring as Markdown: its indented examples become blocks of code."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        body = textwrap.dedent(block)
        if not block.startswith("    "):
            out.append(block)
        elif out and out[-1].endswith("```"):
            out[-1] = f"{out[-1].removesuffix('```')}\n{body}\n```"
        else:
            out.append(f"```python\n{body}\n```")
    return "\n\n".join(out)


# Keys


PLACES = {
    "Everywhere": ("app", "view"),
    "Lists and tables": ("list", "table", "filter"),
    "Queue": ("queue",),
    "Task": ("task", "metrics", "chart"),
    "Rollouts": ("rollouts", "pane"),
    "Environments": ("environments", "detail"),
    "Adapters": ("adapters",),
    "Chat": ("chat",),
    "Engine": ("engine",),
    "Logs": ("logs",),
    "API": ("api",),
    "Add a task": ("submit",),
    "The guide of an empty home": ("guide",),
    "Dialogs": ("reading", "ask", "confirm", "explain", "help"),
}
"""Titles of the page, each with the first words of its keys' names."""
SPELLED = {
    "asterisk": "*",
    "colon": ":",
    "equals_sign": "=",
    "escape": "esc",
    "left_square_bracket": "[",
    "minus": "-",
    "plus": "+",
    "question_mark": "?",
    "right_square_bracket": "]",
    "slash": "/",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "shift+left": "shift+←",
    "shift+right": "shift+→",
}
"""Keys as keyboards and these documents have them, by Textual's names."""

KEYS = """# Keys

Written from the program; `?` in the application shows those of the view that you are in. Arrows and the keys of a
terminal, such as `home` and `end`, move wherever there is something to move in. `ctrl+p` opens the palette, like `:`.
To change a key, name it in [app.toml](../guides/application.md#looks).
"""


def keys_page() -> str:
    """All keys of the application, by the place in which they act."""
    parts = [KEYS]
    for title, scopes in PLACES.items():
        rows = [(" ".join(map(code, spelled(key))), key.what, code(key.name)) for key in keys_of(scopes) if key.what]
        parts.append(f"## {title}\n\n{table(('Key', 'Does', 'Name'), rows)}")
    return "\n".join(parts)


def keys_of(scopes: tuple[str, ...]) -> list[Key]:
    """All keys whose names begin with one of the words."""
    known = known_keys()
    return [key for scope in scopes for key in known if key.name.partition(".")[0] == scope]


def spelled(key: Key) -> list[str]:
    """The keys as a person would write them."""
    return [SPELLED.get(name, name) for name in key.keys.split(",")]


# Metrics and words


METRICS = """# Metrics

`marlaas explain NAME` says the same on the terminal, and `enter` on a metric in the task view. Names in bold say first
how a task is doing; the others help to find out why. JSON, CSV and TensorBoard have the names under *In JSON*. An older
name in brackets is deprecated: JSON and CSV still have it, beside the new one.
"""
_PARTS: tuple[tuple[Kind, str, str], ...] = (
    (
        "metric",
        "Of a step",
        "`marlaas show ID` prints the newest, `marlaas metrics ID` all of them, and the task view charts them. Those of"
        " a mixture's component have its name before theirs. `staleness_0`, `staleness_1` and so on count the groups of"
        " a step by their age in versions.",
    ),
    ("score", "Of an evaluation", "[What a score says](../guides/scores.md) has the rules."),
    ("machine", "Of the machine", "`marlaas stats` prints them, and the engine view shows them."),
)


WORDS = """# Words

`marlaas explain WORD` says the same on the terminal, and `?` and then `w` in the application.
[Metrics](metrics.md) have a page of their own.
"""


def metrics_page() -> str:
    """What each metric means and what to do about it, from the catalogue that the application uses."""
    parts = [METRICS]
    for kind, title, about in _PARTS:
        rows = (_metric(term) for term in TERMS if term.kind == kind)
        parts.append(f"## {title}\n\n{about}\n")
        parts.append(table(("Name", "In JSON", "Meaning", "What is healthy", "Otherwise"), rows))
    formulas = ((t.name, t.formula, t.source) for t in TERMS if t.kind != "word" and (t.formula or t.source))
    return "\n".join([*parts, "## How they are computed\n", table(("Name", "Formula", "Source"), formulas)])


def _metric(term: Term) -> tuple[str, ...]:
    name = f"**{term.name}**" if term.important else term.name
    older = f" ({', '.join(map(code, term.old))})" if term.old else ""
    return name, code(term.key) + older, *map(sentence, (term.line, term.healthy, term.otherwise))


def words_page() -> str:
    """The words that people meet, from the same catalogue."""
    rows = []
    for term in by_kind()[KINDS["word"]]:
        further = (("Healthy: ", term.healthy), ("Otherwise: ", term.otherwise), ("See ", term.source))
        texts = [term.line, *(head + text for head, text in further if text)]
        rows.append((term.name, " ".join(map(sentence, texts)), ", ".join(term.names)))
    return f"{WORDS}\n{table(('Word', 'Means', 'Also called'), rows)}"
