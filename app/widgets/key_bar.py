"""The last line of every view and dialog: the keys that act here, dim where they cannot, and the palette at the right.

A view may name keys that come first, because of what it shows at the moment (``first_keys``), and other words for keys
(``key_words``).

Where there is no room for all, whole keys are left out, the last first. How to get help and how to leave stays.

Textual's own footer makes a widget for each key, and makes all of them anew whenever one changes. With a cursor that
moves over tasks in different states, that would be the most expensive part of a key press. This one is a single line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual.binding import ActiveBinding, Binding
from textual.content import Content
from textual.events import Click
from textual.reactive import reactive
from textual.screen import Screen
from textual.widget import Widget

from ..words.format import cells

_EDGE = "▏"
_KEPT = ("help", "all panes", "close", "leave")
"""Descriptions of the keys that are left out last: where one is, and how one gets away."""


@dataclass(frozen=True)
class ShownKey:
    """A key in the line."""

    key: str
    """The key as one presses it."""
    display: str
    description: str
    enabled: bool

    @property
    def text(self) -> str:
        """What the key shows in the line."""
        return f" {self.display} {self.description} "


def fitting(keys: Sequence[ShownKey], room: int) -> tuple[ShownKey, ...]:
    """The keys that fit into so many cells, in their order: those that are kept to the last, then the first ones."""
    shown: list[ShownKey] = []
    room += 1  # the space behind the last one may be cut
    for key in sorted(keys, key=lambda each: each.description not in _KEPT):
        if cells(key.text) <= room:
            shown.append(key)
            room -= cells(key.text)
    return tuple(key for key in keys if key in shown)


class KeyBar(Widget):
    """Shows the bindings of its screen; a click on a key presses it."""

    DEFAULT_CSS = """
    KeyBar { dock: bottom; height: 1; background: $footer-background; color: $footer-foreground; }
    """
    ALLOW_SELECT = False

    keys: reactive[tuple[ShownKey, ...]] = reactive(())
    palette: reactive[ShownKey | None] = reactive(None)

    def __init__(self, enter: str = "") -> None:
        """``enter`` is what that key does in the line of text that has the focus, where no binding says it."""
        super().__init__()
        self._enter = enter
        self._will_look = False

    def on_mount(self) -> None:
        """Listen to changes of the bindings."""
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        if screen is self.screen and screen.app.app_focus and not self._will_look:
            self._will_look = True  # a change of the focus says so several times
            self.call_after_refresh(self.look)

    def look(self) -> None:
        """Read which keys there are, and which of them can act."""
        self._will_look = False
        if not self.is_attached:  # its screen may have been left meanwhile
            return
        active = self.screen.active_bindings
        first: Sequence[str] = getattr(self.screen, "first_keys", ())
        words: Mapping[str, str] = getattr(self.screen, "key_words", {})
        shown: dict[str, ShownKey] = {}
        if self._enter:
            display = self.app.get_key_display(Binding("enter", ""))
            shown["enter"] = ShownKey("enter", display, self._enter, True)
        zoom = next((each.binding for each in active.values() if each.binding.action == "zoom"), None)
        if zoom is not None and self.screen.maximized is not None:
            shown["zoom"] = ShownKey(zoom.key, f"esc {self.app.get_key_display(zoom)}", "all panes", True)
        for binding, enabled in self._in_order(active):
            if (binding.show or binding.action in first) and binding.action not in shown:
                display = self.app.get_key_display(binding)
                description = words.get(binding.action, binding.description)
                shown[binding.action] = ShownKey(binding.key, display, description, enabled)
        ordered = sorted(shown, key=lambda action: (shown[action].description == "close", action not in first))
        self.keys = tuple(shown[action] for action in ordered)  # how to close comes last
        palette = active.get(self.app.COMMAND_PALETTE_BINDING)
        if palette is not None:
            display = self.app.get_key_display(palette.binding)
            self.palette = ShownKey(palette.binding.key, display, palette.binding.description, palette.enabled)

    def _in_order(self, active: Mapping[str, ActiveBinding]) -> list[tuple[Binding, bool]]:
        """The bindings from the focus outwards, those of a widget as it declares them.

        Textual has one that takes a key from a widget below it at the place of what it takes.
        """
        chain = list((self.screen.focused or self.screen).ancestors_with_self)
        depths = {key: chain.index(one.node) if one.node in chain else len(chain) for key, one in active.items()}
        nearest, early = len(chain), set()
        for key in reversed(depths):
            nearest = min(nearest, depths[key])
            if depths[key] > nearest:  # before one of a nearer widget
                early.add(depths[key])

        def place(key: str) -> tuple[int, int]:
            one = active[key]
            declared = [each.id for each in type(one.node).BINDINGS if isinstance(each, Binding)]
            known = depths[key] in early and one.binding.id in declared
            return depths[key], declared.index(one.binding.id) if known else len(declared)

        return [(active[key].binding, active[key].enabled) for key in sorted(active, key=place)]

    @property
    def _room(self) -> int:
        """Cells beside the palette's key, which is there where the keys that are kept leave room for it."""
        kept = sum(cells(key.text) for key in self.keys if key.description in _KEPT)
        beside = self.size.width - (cells(self.palette.text) if self.palette else 0)
        return beside if beside + 1 >= kept else self.size.width

    def render(self) -> Content:
        """As many keys as fit beside the palette's key."""
        room = self._room
        left = Content("").join([_drawn(key) for key in fitting(self.keys, room)]).truncate(max(0, room), pad=True)
        if not self.palette or room == self.size.width:
            return left
        return Content("").join([left, Content.styled(_EDGE, "$foreground 20%"), _drawn(self.palette)[1:]])

    def on_click(self, event: Click) -> None:
        """Press the key under the mouse."""
        place, room = 0, self._room
        if self.palette and event.x >= room:
            self._press(self.palette)
            return
        for key in fitting(self.keys, room):
            place += cells(key.text)
            if event.x < place:
                self._press(key)
                return

    def _press(self, key: ShownKey) -> None:
        self.app.simulate_key(key.key)


def _drawn(key: ShownKey) -> Content:
    dim = "" if key.enabled else " dim"
    return Content.assemble(
        (f" {key.display} ", f"bold $footer-key-foreground{dim}"),
        (f"{key.description} ", dim.strip()),
    )
