"""The help of ``?``: what this view is, then its keys, then those of all views and those that move the cursor.

Keys are shown as the person's key map has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Label, Static

from ...words.format import clip, pad
from .dialog import Dialog
from .explain import Explain

_KEY, _ENTRY = 11, 36
_AROUND = 3
"""Lines of the frame and of the keys at its bottom."""
_MOVES = ("up", "down", "first", "last", "top", "bottom", "left", "right", "page up", "page down")
HERE, EVERYWHERE, MOVING = "in this view", "in every view", "moving"


@dataclass(frozen=True)
class KeyLine:
    """Keys that do the same thing."""

    section: str
    keys: str
    what: str
    enabled: bool


def key_lines(active: Iterable[tuple[ActiveBinding, str]]) -> list[KeyLine]:
    """Active keys in their names on the keyboard, one line an action, by section; Textual's for scrolling last."""
    lines: dict[tuple[str, str], KeyLine] = {}
    for (node, binding, enabled, _), name in active:
        if not binding.description or binding.system:
            continue
        moves = not binding.id or binding.description in _MOVES
        everywhere = node.parent is None or binding.id in ("view.back", "view.zoom", "app.help")
        section = MOVING if moves else EVERYWHERE if everywhere else HERE
        view = binding.action.startswith("open_view")
        what = "the views" if view else binding.description if binding.id else binding.description.lower()
        known = lines.get((section, what))
        names = known.keys.split() if known else []
        names = [*names[:1], "-", name] if view and names else [*names, *([name] if name not in names else [])]
        lines[section, what] = KeyLine(section, " ".join(names), what, enabled)
    return list(lines.values())


class KeysHelp(Dialog[None]):
    """A page to read."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "words", "what words and metrics mean", id="help.words"),
        Binding("enter,escape,question_mark,q", "app.pop_screen", "close", key_display="⏎ esc", id="help.close"),
        Binding("j,down", "scroll(1)", show=False, id="help.down"),
        Binding("k,up", "scroll(-1)", show=False, id="help.up"),
    ]
    DEFAULT_CSS = """
    KeysHelp > Vertical { width: 78; max-width: 100%; }
    KeysHelp VerticalScroll { height: auto; }
    KeysHelp Label { width: 100%; margin-bottom: 1; }
    .-wide KeysHelp > Vertical { width: 116; }
    """

    def __init__(self, title: str, text: str, lines: list[KeyLine]) -> None:
        super().__init__()
        self._title, self._text, self._lines = title, text, lines

    def heading(self) -> str:
        """Whose keys they are."""
        return self._title

    def content(self) -> ComposeResult:
        """Lay out text and keys."""
        with VerticalScroll():
            if self._text:
                paragraphs = [" ".join(each.split()) for each in self._text.split("\n\n")]
                yield Label("\n\n".join(paragraphs), markup=False)
            yield Static(id="keys", markup=False)

    def on_resize(self, event: Resize) -> None:
        """Make as many columns as there is room for."""
        self.call_after_refresh(self._write)

    def _write(self) -> None:
        self.query_one(VerticalScroll).styles.max_height = max(1, self.size.height - _AROUND)
        keys = self.query_one("#keys", Static)
        columns = max(1, keys.size.width // _ENTRY)
        parts: list[Content] = []
        for section in (HERE, EVERYWHERE, MOVING):
            lines = [line for line in self._lines if line.section == section]
            if not lines:
                continue
            parts.append(Content.styled(section, "$text-accent"))
            rows = -(-len(lines) // columns)
            parts += [Content("").join(_entry(line) for line in lines[row::rows]) for row in range(rows)]
        keys.update(Content("\n").join(parts))

    def action_words(self) -> None:
        """Go on to what words and metrics mean."""
        self.app.switch_screen(Explain())

    def action_scroll(self, lines: int) -> None:
        """Scroll by some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


def _entry(line: KeyLine) -> Content:
    what = pad(clip(line.what, _ENTRY - _KEY - 3), _ENTRY - _KEY - 1)
    style = "" if line.enabled else "$text-muted"
    return Content.assemble((pad(clip(line.keys, _KEY), _KEY, right=True), "bold"), " ", (what, style))
