"""The keys of a task file, read from the dataclasses of ``task.py`` and ``policies.py``, for forms and for help.

What is said of a key is the docstring under its field. Python does not keep these, so the source is read, once.
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

from . import sweep, task as spec
from .task import ComponentSpec, NamedPolicySpec, SuiteSpec
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
    """None if it is absent by default, or must be given."""
    about: str
    """What it is, in a sentence."""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    swept: bool = False
    """Whether a list of values means a task for each."""
    auto: bool = False
    """Whether it may be ``auto``."""

    @property
    def table(self) -> str:
        """The table that the key belongs to; empty at the top of the file."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The key within its table."""
        return self.key.rpartition(".")[2]


@cache
def spec_fields() -> tuple[SpecField, ...]:
    """All keys in their order, except those of ``[environment_config]``, which the environment defines."""
    return tuple(_fields(spec.TaskSpec, ""))


@cache
def policy_fields() -> tuple[SpecField, ...]:
    """The keys of a table ``[policies.NAME]``."""
    return tuple(_fields(NamedPolicySpec, "policies.NAME."))


@cache
def suite_fields() -> tuple[SpecField, ...]:
    """The keys of a table ``[[eval.suite]]``."""
    return tuple(_fields(SuiteSpec, "eval.suite."))


@cache
def component_fields() -> tuple[SpecField, ...]:
    """The keys of a table ``[[mixture]]``."""
    return tuple(_fields(ComponentSpec, "mixture."))


def _fields(cls: type[Any], table: str) -> Iterator[SpecField]:
    hints, words = typing.get_type_hints(cls), docstrings(cls)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            yield from _fields(typing.cast(type[Any], kind), f"{table}{field.name}.")
        elif typing.get_origin(kind) is not dict and not _of_tables(kind):
            low, high = field.metadata.get("range", (None, None))
            default = None if field.default is dataclasses.MISSING else field.default
            swept = table[:-1] in sweep.TABLES or field.name == "steps"
            choices = field.metadata.get("choices", ())
            auto = Auto in typing.get_args(kind)
            yield SpecField(
                table + field.name, _kind(kind), default, words[field.name], low, high, choices, swept, auto
            )


def _of_tables(kind: Any) -> bool:
    """Whether a key holds a list of tables, such as [[eval.suite]] or [[mixture]]."""
    return typing.get_origin(kind) is tuple and dataclasses.is_dataclass(typing.get_args(kind)[0])


def _kind(kind: Any) -> str:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    return "list" if typing.get_origin(kind) is tuple else str(kind.__name__)


def docstrings(cls: type[Any]) -> dict[str, str]:
    """The docstring under each field of a class, as one line without backticks."""
    body = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            said = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            words = text.value.value if said else ""  # type: ignore[attr-defined]
            found[field.target.id] = " ".join(str(words).replace("``", "").split())
    return found
