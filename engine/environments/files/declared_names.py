"""The environments that a plugin's files seem to declare, read without an import.

A guess: names made by code are missing, and a class may be no environment.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from marlaas.plugins.adapters.declaring import PINNED, usable
from marlaas.plugins.programs.words import name_about

from ...errors import ConfigError
from ...spec.toml_text import read_toml
from .source import Source

MOST_FILES = 64
LARGEST = 1 << 18
_ADAPTERS = {*PINNED, "tool_class"}
_PROGRAM = "program"
_DECORATORS = ("env", _PROGRAM)
_FOREIGN = ("Env", "Environment")


def declared_names(source: Source) -> tuple[str, ...]:
    """Without the plugin's own name, in the file's order."""
    if source.entry.endswith(".toml"):
        found = [*_of_toml(dict(source.files)[source.entry])]
    else:
        modules = [tree for file, content in source.files[:MOST_FILES] if (tree := _parsed(file, content)) is not None]
        found = [name for tree in modules for name in _native(tree)]
        found = found or [name for tree in modules for name in _foreign(tree, source.name)]
    return tuple(dict.fromkeys(found))


def _parsed(file: str, content: bytes) -> ast.Module | None:
    if not file.endswith(".py") or len(content) > LARGEST:
        return None
    try:
        return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _native(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                call = decorator if isinstance(decorator, ast.Call) else None
                if _last(call.func if call else decorator) in _DECORATORS:
                    yield (_said(call, "name") if call else "") or node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            yield from filter(None, (_adapted(node.value),))


def _adapted(call: ast.Call) -> str:
    if _last(call.func) not in _ADAPTERS:
        return ""
    first = call.args[0] if call.args else None
    about = str(first.value) if isinstance(first, ast.Constant) else _last(first)
    named = _said(call, "name")
    return usable(named) if named else name_about(_last(call.func), about) if about else ""


def _foreign(tree: ast.Module, plugin: str) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "load_environment":
            yield usable(plugin)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            bases = {_last(base) for base in node.bases}
            methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
            if "Taskset" in bases:
                yield usable(plugin)
            elif bases.intersection(_FOREIGN) or {"reset", "get_reward"} <= methods:
                yield usable(node.name)


def _of_toml(content: bytes) -> Iterator[str]:
    try:
        document = read_toml(content.decode("utf-8", "replace"))
    except (ValueError, ConfigError):
        return
    tables = document.get("environments", [document])
    for table in tables if isinstance(tables, list) else ():
        entries = table.items() if isinstance(table, dict) else ()
        about = {key: value for key, value in entries if isinstance(value, str) and key != "requires-python"}
        adapter = about.pop("adapter", "")
        what = about.get("command", "") if adapter == _PROGRAM else next(iter(about.values()), "")
        if adapter in PINNED and (name := about.get("name") or what):
            yield usable(name) if name == about.get("name") else name_about(adapter, what)


def _said(call: ast.Call, keyword: str) -> str:
    values = (given.value for given in call.keywords if given.arg == keyword)
    return next((v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)), "")


def _last(node: ast.AST | None) -> str:
    if isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
