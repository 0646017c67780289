"""The help of ``?``: what this view is, then its keys, then those of all views and those that move the cursor.

Keys are shown as the person's key map has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import ActiveBinding, Binding, BindingType
from textual.content import Content

from ...words.format import cells, clip, pad
from .explain import Explain
from .reading import Reading

_KEY, _ENTRY = 13, 36
_MOVES = ("up", "down", "first", "last", "top", "bottom", "left", "right", "page up", "page down")
_PLAIN = {
    **{f"{what} {way}": way for what in ("cursor", "scroll") for way in ("up", "down", "left", "right")},
    "focus next": "next pane",
    "focus previous": "pane before",
}
"""Textual's words for what it does itself, in ours."""
_PAIRS = (
    ("up", "down"),
    ("left", "right"),
    ("page up", "page down"),
    ("first", "last"),
    ("top", "bottom"),
    ("home", "end"),
    ("page left", "page right"),
    ("next pane", "pane before"),
)
"""Ways to move that are told in one line."""
_SENTENCE_ENDED = re.compile(r"(?<=[.])\n")
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
        if not binding.description or binding.system or name.startswith("super+"):
            continue
        ours = bool(binding.id) or node.parent is None or "copy" in binding.action
        moves = not ours or binding.description in _MOVES
        everywhere = not binding.id or node.parent is None or binding.id in ("view.back", "view.zoom", "app.help")
        section = MOVING if moves else EVERYWHERE if everywhere else HERE
        view = binding.action.startswith("open_view")
        what = "the views" if view else binding.description if binding.id else binding.description.lower()
        what = _PLAIN.get(what, what) if moves else what
        known = lines.get((section, what))
        names = known.keys.split() if known else []
        names = [*names[:1], "-", name] if view and names else [*names, *([name] if name not in names else [])]
        lines[section, what] = KeyLine(section, " ".join(names), what, enabled)
    for one, other in _PAIRS:
        if (first := lines.get((MOVING, one))) and (MOVING, other) in lines:
            second = lines.pop((MOVING, other))
            lines[MOVING, one] = KeyLine(MOVING, f"{first.keys} {second.keys}", f"{one}, {other}", first.enabled)
    return list(lines.values())


class KeysHelp(Reading):
    """A page to read."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "words", "what words and metrics mean", id="help.words"),
        Binding("question_mark", "dismiss", "close", show=False, id="help.close"),
    ]
    DEFAULT_CSS = """
    KeysHelp > Vertical { width: 80; max-width: 100%; }
    KeysHelp.-wide > Vertical { width: 118; }
    """
    TALL = False

    def __init__(self, title: str, text: str, lines: list[KeyLine]) -> None:
        super().__init__()
        self._title, self._text, self._lines = title, text, lines

    def heading(self) -> str:
        """Whose keys they are."""
        return self._title

    def text(self, width: int) -> Content:
        """What the view is, then keys in as many columns as there is room for."""
        paragraphs = ["\n".join(sentences(each)) for each in self._text.split("\n\n") if each]
        parts = [part for each in paragraphs for part in (Content(each), Content(""))]
        columns = max(1, width // _ENTRY)
        for section in (HERE, EVERYWHERE, MOVING):
            lines = [line for line in self._lines if line.section == section]
            if not lines:
                continue
            parts.append(Content.styled(section, "$text-accent"))
            rows, key = -(-len(lines) // columns), min(_KEY, max(cells(line.keys) for line in lines))
            room = width // columns - 1 - key - 1
            parts += [Content(" ").join(_entry(line, key, room) for line in lines[row::rows]) for row in range(rows)]
        return Content("\n").join(parts)

    def action_words(self) -> None:
        """Go on to what words and metrics mean."""
        self.app.switch_screen(Explain())


def sentences(paragraph: str) -> list[str]:
    """The lines of a paragraph: one that does not end a sentence goes on in the next."""
    return [" ".join(each.split()) for each in _SENTENCE_ENDED.split(paragraph)]


def _entry(line: KeyLine, key: int, room: int) -> Content:
    """A key in ``key`` cells, and what it does in ``room``."""
    what = pad(clip(line.what, room), room)
    style = "" if line.enabled else "$text-muted"
    return Content.assemble((pad(clip(line.keys, key), key, right=True), "bold"), " ", (what, style))
