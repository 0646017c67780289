"""How to use an adapter that was exported: the lines of its ``USE.md``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, cast

from textual.binding import Binding, BindingType
from textual.content import Content

from ...context.application import Application
from ...rollouts.document import wrapped
from ...words.format import line, plain
from .reading import Reading

_INSET, _FURTHER = 2, 4
"""Cells that lines of code are set in, and how much further what goes on from them."""


class Exported(Reading):
    """Shows the lines; y copies them."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "copy", "copy", id="exported.copy")]

    def __init__(self, folder: Path, text: str) -> None:
        """``text`` is that of ``USE.md`` in the folder."""
        super().__init__()
        self._folder, self._text = folder, text

    def heading(self) -> str:
        """Which folder it is about."""
        return f"how to use {line(str(self._folder))}"

    def text(self, width: int) -> Content:
        """The lines."""
        return drawn(self._text, width)

    def action_copy(self) -> None:
        """Copy the lines."""
        cast("Application", self.app).copy(self._text, "How to use it")


def drawn(text: str, width: int) -> Content:
    """The Markdown of ``USE.md`` with its headings and its lines of code set apart."""
    parts, code = [], False
    for each in plain(text).splitlines():
        if each.startswith("```"):
            code = not code
        elif code:
            parts.append(Content.styled(_code(each, width), "$text-success"))
        elif each.startswith("#"):
            parts.append(Content.styled(each.lstrip("# "), "bold $text-primary"))
        else:
            parts.append(Content(each))
    return Content("\n").join(parts)


def _code(text: str, width: int) -> str:
    """A line of code, set in; what does not fit goes on below, further in, so that it looks like no line of its own."""
    body = text.lstrip(" ")
    first = " " * (_INSET + len(text) - len(body))
    if Content(first + body).cell_length <= width:
        return first + body
    rest = first + " " * _FURTHER
    return first + f"\n{rest}".join(body[start:stop] for start, stop in wrapped(body, width - len(rest)))
