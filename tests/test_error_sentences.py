"""Errors have one form everywhere: where → cause → what to do, with the cause in the first 60 characters.

Looks at every place of the source that makes an error of the family, by its syntax tree.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from marlaas.engine import errors
from marlaas.engine.errors import ConfigError, MarlaasError, as_one, short_place

ROOT = Path(__file__).resolve().parent.parent
CAUSE_WITHIN = 60
PATHS = re.compile(r"path|file|folder|root|database|home(?!\.lock)|\blog\b|out_dir|plugins")
"""Names in the code of what is filled in and may be of any length."""
CAUSES = re.compile(
    r"\b(no|not|none|nothing|cannot|could not|is|are|was|were|has|have|holds|must|needs?|takes?|lies|ends?|exists?"
    r"|several|without|different|belongs?|says?|names?|knows?|refused?|reads?|died|failed|stopped|there|lists|serves|can|refuses|leads)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Made:
    """An error as the source makes it."""

    place: str
    cause: list[str | None]
    """Its parts: texts, and None for what is filled in; a path is the text "\\0"."""
    hint: str | None
    where: bool


def kinds() -> set[str]:
    """The names of the family."""
    return {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, MarlaasError)}


def parts(node: ast.expr) -> list[str | None] | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        found: list[str | None] = []
        for value in node.values:
            if isinstance(value, ast.Constant):
                found.append(str(value.value))
            elif isinstance(value, ast.FormattedValue):
                found.append("\0" if PATHS.search(ast.unparse(value.value)) and value.conversion == -1 else None)
        return found
    return None


def made() -> Iterator[Made]:
    family = kinds()
    for path in sorted(each for folder in ("app", "engine") for each in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in family or not node.args:
                continue
            cause = parts(node.args[0])
            hint = parts(node.args[1]) if len(node.args) > 1 else None
            if cause is not None:
                said = "".join(part or "…" for part in hint) if hint is not None else None
                where = any(keyword.arg == "where" for keyword in node.keywords)
                yield Made(f"{path.relative_to(ROOT)}:{node.lineno}", cause, said, where)


@pytest.fixture(scope="module")
def errors_made() -> list[Made]:
    """All of them. Read where a test asks: every process that collects tests loads this file."""
    return list(made())


def before_path(one: Made) -> str | None:
    """The text before the first path that begins in the first 60 characters; names and numbers are short.

    None: there is no such path.
    """
    text = "".join(part or "NAME" for part in one.cause)[:CAUSE_WITHIN]
    return text.partition("\0")[0] if "\0" in text else None


def test_the_family_is_found(errors_made: list[Made]) -> None:
    assert len(errors_made) > 200 and {"ConfigError", "StoreError", "AdapterError"} <= kinds()


def test_the_cause_stands_in_the_first_60_characters(errors_made: list[Made]) -> None:
    begun = [(one.place, before_path(one)) for one in errors_made]
    late = [f"{place}: {text!r}" for place, text in begun if text is not None and not CAUSES.search(text)]
    assert not late, "name a long path as `where`, or say the cause before it:\n" + "\n".join(late)


def test_causes_and_hints_are_whole_sentences(errors_made: list[Made]) -> None:
    open_ended = [
        one.place
        for one in errors_made
        if (one.cause[-1] not in (None, "\0") and not str(one.cause[-1]).rstrip().endswith((".", "?", "!")))
        or (one.hint and not one.hint.rstrip().endswith((".", "?", "…")))
    ]
    assert not open_ended, "end with a full stop:\n" + "\n".join(open_ended)


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("", "it is wrong."),
        ("t.toml:3:1", "t.toml:3:1: it is wrong."),
        ("/home/somebody/a-project/tasks/reverse.toml:12:1", "…/a-project/tasks/reverse.toml:12:1: it is wrong."),
        ("x" * 100, f"…{'x' * 39}: it is wrong."),
    ],
)
def test_a_place_stands_before_the_cause_and_is_short(where: str, shown: str) -> None:
    error = ConfigError("it is wrong.", "Mend it.", where=where, path="a.b")
    assert (error.message, str(error), len(short_place(where)) <= 40) == (shown, f"{shown} Mend it.", True)
    moved = error.at("elsewhere:1:1")
    assert (moved.message, moved.hint, moved.path, error.message) == (
        "elsewhere:1:1: it is wrong.",
        "Mend it.",
        "a.b",
        shown,
    )


def test_several_mistakes_are_one_error() -> None:
    whole = as_one([ConfigError("one.", path="a"), ConfigError("two.", "Mend it.", path="b")])
    assert [(mistake.path, str(mistake)) for mistake in whole.mistakes] == [("a", "one."), ("b", "two. Mend it.")]
    assert str(whole) == "one.\ntwo. Mend it." and whole.path == "a" and whole.exit_code == 2
    assert as_one(whole.mistakes).mistakes[1].mistakes == (whole.mistakes[1],)
