"""The keys of a task file.

A key's text is the docstring under its field. Python does not keep these: the source is read, once.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from . import sweep
from .task import TaskSpec
from .validation import Auto

REQUIRED = ("tenant", "name", "environment")


@dataclass(frozen=True)
class SpecField:
    """One key of a task file."""

    key: str
    """Dotted: train.learning_rate."""
    kind: str
    """int, float, str, bool or list"""
    default: Any
    """None: absent by default, or required."""
    about: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    swept: bool = False
    """A list of values means a task for each."""
    auto: bool = False

    @property
    def table(self) -> str:
        """Empty at the top of the file."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]


@cache
def spec_fields(cls: type[Any] = TaskSpec, table: str = "") -> tuple[SpecField, ...]:
    """In order, without free tables and lists of tables.

    ``table``: a prefix, such as ``policies.NAME.``.
    """
    return tuple(_fields(cls, table))


def _fields(cls: type[Any], table: str) -> Iterator[SpecField]:
    hints, words = typing.get_type_hints(cls), docstrings(cls)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        auto = Auto in typing.get_args(kind)
        if typing.get_origin(kind) in (types.UnionType, typing.Union):
            kind = next(option for option in typing.get_args(kind) if option is not type(None))
        origin = typing.get_origin(kind)
        if dataclasses.is_dataclass(kind):
            yield from _fields(typing.cast(type[Any], kind), f"{table}{field.name}.")
        elif origin is not dict and not (origin is tuple and dataclasses.is_dataclass(typing.get_args(kind)[0])):
            low, high = field.metadata.get("range", (None, None))
            yield SpecField(
                table + field.name,
                "list" if origin is tuple else str(kind.__name__),
                None if field.default is dataclasses.MISSING else field.default,
                words[field.name],
                low,
                high,
                field.metadata.get("choices", ()),
                swept=table[:-1] in sweep.TABLES or field.name == "steps",
                auto=auto,
            )


def docstrings(cls: type[Any]) -> dict[str, str]:
    """By field; one line without backticks."""
    found = {}
    for owner in reversed([each for each in cls.__mro__ if dataclasses.is_dataclass(each)]):
        body = ast.parse(inspect.getsource(owner)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
                words = text.value.value if is_text else ""  # type: ignore[attr-defined]
                found[field.target.id] = " ".join(str(words).replace("``", "").split())
    return found
