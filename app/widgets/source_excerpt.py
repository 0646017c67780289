"""The lines of an environment around the one that is wrong: why a task is blocked."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from ..home.environments.source_lines import Excerpt
from ..words.format import clip, line, plain

_OPENS = "E opens it here"


class SourceExcerpt(Widget):
    """Read only: the editor has the file."""

    DEFAULT_CSS = """
    SourceExcerpt { padding: 0 1; }
    """

    excerpt: reactive[Excerpt | None] = reactive(None)

    def render(self) -> Content:
        """The file's name, then its lines."""
        if self.excerpt is None:
            return Content("")
        return Content("\n").join(excerpt_lines(self.excerpt, *self.content_size))


def excerpt_lines(excerpt: Excerpt, width: int, height: int) -> list[Content]:
    """At most ``height`` lines, the wrong one among them where there is one. All text is foreign."""
    if width < 1 or height < 1:
        return []
    name = line(
        f"{excerpt.file}, line {excerpt.line}" if excerpt.line else excerpt.file, max(1, width - len(_OPENS) - 2)
    )
    head = Content.assemble((name, "bold"), "  ", (clip(_OPENS, width), "$text-muted"))
    begin = max(0, min(excerpt.line - excerpt.first - (height - 1) // 2, len(excerpt.lines) - height + 1))
    digits = len(str(excerpt.first + len(excerpt.lines)))
    shown = []
    for number, text in enumerate(excerpt.lines[begin : begin + height - 1], excerpt.first + begin):
        wrong = number == excerpt.line
        code = clip(f"{'▸' if wrong else ' '} {number:>{digits}}  {plain(text)}", width)
        shown.append(Content.styled(code, "bold $text-error" if wrong else ""))
    return [head, *shown]
