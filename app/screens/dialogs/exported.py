"""How to use an adapter that was exported: the lines of its ``USE.md``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, cast

from textual.binding import Binding, BindingType
from textual.content import Content

from ...context.application import Application
from ...words.format import line, plain
from .reading import Reading


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
        return drawn(self._text)

    def action_copy(self) -> None:
        """Copy the lines."""
        cast("Application", self.app).copy(self._text, "How to use it")


def drawn(text: str) -> Content:
    """The Markdown of ``USE.md`` with its headings and its lines of code set apart."""
    parts, code = [], False
    for each in plain(text).splitlines():
        if each.startswith("```"):
            code = not code
        elif code:
            parts.append(Content.styled(f"  {each}", "$text-success"))
        elif each.startswith("#"):
            parts.append(Content.styled(each.lstrip("# "), "bold $text-primary"))
        else:
            parts.append(Content(each))
    return Content("\n").join(parts)
