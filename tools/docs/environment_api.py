"""The page about what an environment file imports: from the docstrings of ``marlaas.plugins``."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from marlaas import plugins
from marlaas.engine.spec import docstrings
from marlaas.plugins import adapters
from marlaas.plugins.programs import ProgramRun

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
_WIDTH = 90
_HEAD = """# Environment API

This is the plugin API of marlaas {version}: everything that `marlaas.plugins` and `marlaas.plugins.adapters` export. It
is standard library only.

**Stability.** Until 1.0, names and parameters on this page stay as they are in all releases {version}.x. A release that
changes one raises the second number and says so in the changelog. Everything else in marlaas may change at any time.
"""


def page(version: str) -> str:
    """The Markdown of the page."""
    parts = [_HEAD.format(version=version)]
    for name in ORDER:
        parts += _entry(name, getattr(plugins, name))
    parts += _entry("ProgramRun", ProgramRun)
    parts += ["## Environments of other libraries", _prose(adapters.__doc__)]
    for name in adapters.__all__:
        function = getattr(adapters, name)
        if function.__annotations__["return"] == "Environment":  # the others are for the engine
            parts += [f"### {name}", *_called(name, function)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _entry(name: str, thing: Any) -> list[str]:
    if not inspect.isclass(thing):
        lines = [f"## {name}", *_called(name, thing)]
        for member in (one for one, value in vars(type(thing)).items() if isinstance(value, staticmethod)):
            lines += [f"### {name}.{member}", *_called(f"{name}.{member}", getattr(thing, member))]
        return lines
    lines = [f"## {name}", _prose(thing.__doc__), *_fields(thing)]
    for member, value in _members(thing):
        called = f"{name}.{member}"
        if callable(value):
            lines += [f"### {called}", *_called(called, value)]
        else:
            lines += [f"### {called}", _prose(value.__doc__)]
    return lines


def _fields(cls: type[Any]) -> list[str]:
    """What the fields of a dataclass mean, as far as their docstrings say it."""
    if not hasattr(cls, "__dataclass_fields__"):
        return []
    said = docstrings(cls)
    rows = [
        f"- `{name}: {field.type}`{f': {said[name]}' if said.get(name) else ''}"
        for name, field in cls.__dataclass_fields__.items()
    ]
    return ["\n".join(rows)]


def _members(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, value in vars(cls).items():
        documented = getattr(value, "__doc__", None)
        is_one = inspect.isfunction(value) or isinstance(value, property) or hasattr(value, "attrname")
        if not name.startswith("_") and is_one and documented:
            yield name, value


def _called(name: str, function: Any) -> list[str]:
    word = "await " if inspect.iscoroutinefunction(function) else ""
    return [f"```python\n{word}{name}{signature_of(function)}\n```", _prose(function.__doc__)]


class _Words:
    """An annotation, printed as its author wrote it."""

    def __init__(self, text: object) -> None:
        self.text = text

    def __repr__(self) -> str:
        return str(self.text)


def signature_of(function: Any) -> str:
    """Without ``self``, and on several lines where it is long."""
    found = inspect.signature(function)
    given = [_readable(one) for one in found.parameters.values() if one.name != "self"]
    returned = found.return_annotation
    text = str(found.replace(parameters=given, return_annotation=_Words(returned)))
    if len(text) <= _WIDTH:
        return text
    lines = "".join(f"    {line},\n" for line in _split(given))
    return f"(\n{lines}) -> {returned}"


def _readable(one: inspect.Parameter) -> inspect.Parameter:
    """A parameter with its annotation as written, and a function as its default by name."""
    if one.annotation is not one.empty:
        one = one.replace(annotation=_Words(one.annotation))
    return (
        one.replace(default=_Words(one.default.__name__))
        if callable(one.default) and one.default is not one.empty
        else one
    )


def _split(given: list[inspect.Parameter]) -> Iterator[str]:
    """Each parameter, and the marks ``/`` and ``*`` between kinds of them."""
    for before, one in zip([None, *given], given, strict=False):
        kind = before and before.kind
        if kind == one.POSITIONAL_ONLY != one.kind:
            yield "/"
        if one.kind == one.KEYWORD_ONLY and kind not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL):
            yield "*"
        yield str(one)


def _prose(text: str | None) -> str:
    """A docstring as Markdown: its indented examples become blocks of code."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        if block.startswith("    "):
            body = textwrap.dedent(block)
            if out and out[-1].endswith("```"):
                out[-1] = f"{out[-1].removesuffix('```')}\n{body}\n```"
            else:
                out.append(f"```python\n{body}\n```")
        else:
            out.append(block)
    return "\n\n".join(out)
