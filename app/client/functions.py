"""A function of a notebook or script as a plugin file: its source, and what it needs of the names around it."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import textwrap
import types
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home as Folder
from marlaas.plugins import Environment, env

WRITTEN = '"""Written from Python, which replaces it."""'
_PLAIN = (int, float, str, bytes, bool, type(None))


@dataclass(frozen=True)
class WrittenEnvironment:
    """A plugin that was made of a function; ``print(it.source)`` shows what runs."""

    name: str
    """As tasks call it."""
    path: Path
    source: str

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.name)} in {escape(str(self.path))}</p><pre>{escape(self.source)}</pre>"


def write_environment(home: Folder, function: object) -> WrittenEnvironment:
    """Raises ``ConfigError`` for what has no source, or uses what no file can hold."""
    declared, target = isinstance(function, Environment), function
    if isinstance(function, Environment):
        target = None if function.program else function.form or function.function
    if not isinstance(target, (types.FunctionType, type)):
        raise ConfigError(f"An environment is a function or a class, not {type(function).__name__}.")
    name = function.name if isinstance(function, Environment) else target.__name__
    if not target.__name__.isidentifier():
        raise ConfigError("A lambda has no name: write `def name(ep): …`.")
    module = target.__name__
    collected = _Collected({"env": "from marlaas.plugins import env"})
    collected.add(target, module, declared)
    path, source = home.plugins / f"{module}.py", collected.text
    before = path.read_text("utf-8") if path.exists() else ""
    if before and not before.startswith(WRITTEN):
        raise ConfigError(f"There is a plugin {module!r} that was not written from Python.", "Rename the function.")
    if before != source:
        home.create()
        draft = path.with_suffix(".draft")
        draft.write_text(source, encoding="utf-8")
        draft.rename(path)
    return WrittenEnvironment(f"{module}/{name}", path, source)


@dataclass
class _Collected:
    """Parts of a file by the names that they define; what uses others comes after them."""

    imports: dict[str, str]
    bodies: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        head = "\n".join((WRITTEN, "", *sorted(dict.fromkeys(self.imports.values()))))
        return "\n\n\n".join((head, *self.bodies.values())) + "\n"

    def add(self, target: Any, name: str, declared: bool = True) -> None:
        text, used = _source(target, name)
        self.bodies.setdefault(name, "")  # it may call itself
        names = _names(target)
        for other in sorted(used - self.imports.keys() - self.bodies.keys()):
            if other in names:
                self._add_value(names[other], other, name)
            elif not hasattr(builtins, other):
                raise ConfigError(f"{name} uses {other!r}, which is not defined.", "Define or import it first.")
        del self.bodies[name]
        self.bodies[name] = text if declared else f"@env\n{text}"

    def _add_value(self, value: Any, name: str, user: str) -> None:
        if isinstance(value, types.ModuleType):
            self.imports[name] = f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
        elif value is env:
            self.imports[name] = f"from marlaas.plugins import env as {name}"
        elif hasattr(value, "__qualname__") and getattr(value, "__module__", "__main__") not in ("__main__", None):
            own, module = value.__qualname__, value.__module__
            self.imports[name] = f"from {module} import {own}" + ("" if own == name else f" as {name}")
        elif isinstance(value, (types.FunctionType, type)):
            self.add(value, name)
        elif _plain(value):
            self.bodies[name] = f"{name} = {value!r}"
        else:
            raise ConfigError(
                f"{user} uses {name!r}, a {type(value).__name__} of this session, which no file can hold.",
                "Make it inside the function, or read it from a file there.",
            )


def _source(target: Any, name: str) -> tuple[str, set[str]]:
    """Its lines, and the names that they read without defining them."""
    try:
        text = _class_lines(target) if isinstance(target, type) else inspect.getsource(target)
        tree = ast.parse(text := textwrap.dedent(text).rstrip())
    except (OSError, TypeError, SyntaxError):
        raise ConfigError(f"{name} has no source that can be read.", "Define it in a cell or a file.") from None
    read, bound = set[str](), {name}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=word, ctx=ast.Load()):
                read.add(word)
            case ast.Name(id=word) | ast.arg(arg=word) | ast.ExceptHandler(name=str(word)):
                bound.add(word)
            case ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word) | ast.ClassDef(name=word):
                bound.add(word)
            case ast.alias(name=word, asname=other):
                bound.add(other or word.partition(".")[0])
            case ast.MatchAs(name=str(word)) | ast.MatchStar(name=str(word)):
                bound.add(word)
    return text, read - bound


def _class_lines(target: type) -> str:
    """The newest class of its name in the file or cell of one of its functions: notebooks have no modules.

    Raises ``OSError`` without one.
    """
    codes = [value.__code__ for value in vars(target).values() if isinstance(value, types.FunctionType)]
    lines = linecache.getlines(codes[0].co_filename) if codes else []
    for node in reversed(ast.parse("".join(lines)).body):
        if isinstance(node, ast.ClassDef) and node.name == target.__name__:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return "".join(lines[first - 1 : node.end_lineno])
    raise OSError


def _names(target: Any) -> dict[str, Any]:
    """What its names mean: of its module, and of the functions around it."""
    if isinstance(target, type):
        return dict(vars(sys.modules[target.__module__]))
    return dict(target.__globals__) | dict(inspect.getclosurevars(target).nonlocals)


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(_plain(key) and _plain(inner) for key, inner in value.items())
    return isinstance(value, _PLAIN)
