"""Shows conversations to read: one, or two side by side.

They are read and laid out in a thread. The one that was asked for last is shown, and can be copied.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from textual.app import ComposeResult
from textual.containers import Container
from textual.message import Message
from textual.worker import get_current_worker

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home

from ...rollouts.document import Block
from ...rollouts.loading import Loaded, Wish, load
from ...rollouts.shading import TURNS
from ...words.format import line
from .conversation_pane import EMPTY, ConversationPane, Page


class ConversationPanes(Container):
    """A pane that follows the lists, and at its left a pane for a marked conversation."""

    DEFAULT_CSS = """
    ConversationPanes { width: 1fr; height: 100%; layout: horizontal; }
    ConversationPanes > #other { display: none; border-right: solid $panel-lighten-2; }
    ConversationPanes.-comparing > #other { display: block; }
    """

    def __init__(self, home: Home, **options: Any) -> None:
        super().__init__(**options)
        self._home = home
        self.other = ConversationPane(id="other")
        self.pane = ConversationPane(id="pane")
        self.shade = TURNS
        self.loaded: Loaded | None = None
        """The conversation that is shown."""
        self._word = ""
        self._current: int | None = None
        self._marked: int | None = None

    def compose(self) -> ComposeResult:
        """Lay out both panes."""
        yield self.other
        yield self.pane

    @property
    def comparing(self) -> bool:
        """Whether two conversations are shown."""
        return self.has_class("-comparing")

    def choose(self, conversation: int | None) -> None:
        """Show another conversation; None: nothing."""
        if conversation == self._current and self.loaded is not None:
            return
        self._current = conversation
        if conversation is None:
            self.loaded = None
            self.pane.show(EMPTY)
        else:
            self._load(self.pane, conversation)

    def shade_by(self, name: str) -> None:
        """Show the same in other shades."""
        self.shade = name
        self._again()

    def look_for(self, word: str) -> None:
        """Mark a word in the text."""
        self._word = word
        self._again()

    def mark(self, current: int | None) -> str:
        """Mark the conversation, or show the marked one beside it, or end that; returns a sentence that says which."""
        self.choose(current)
        if self.comparing or self._current is None:
            self.compare(False)
            return "One conversation again."
        if self._marked is None or self._marked == self._current:
            self._marked = self._current
            return "Marked. Go to another conversation and press c again: they stand side by side."
        self.compare(True)
        return "What was marked is at the left; tab goes from one to the other, c or esc ends it."

    def compare(self, wanted: bool) -> None:
        """Show two conversations, or one."""
        self.set_class(wanted, "-comparing")
        if not wanted:
            self._marked = None
        elif self._marked is not None:
            self._load(self.other, self._marked)

    def _again(self) -> None:
        if self._current is not None:
            self._load(self.pane, self._current)
        if self.comparing and self._marked is not None:
            self._load(self.other, self._marked)

    # Reading.

    def _load(self, pane: ConversationPane, conversation: int) -> None:
        wish = Wish(conversation, self.shade, self._word)
        read = partial(self._read, pane, wish)
        self.run_worker(read, thread=True, group=f"read {pane.id}", exclusive=True, exit_on_error=False)

    def _read(self, pane: ConversationPane, wish: Wish) -> None:
        try:
            loaded = load(self._home, wish)
        except MarlaasError as error:
            loaded = _unreadable(wish, error.message)
        except Exception as error:  # of an invalid row; unreported, another conversation would stay here
            loaded = _unreadable(wish, f"{type(error).__name__}: {error}")
        if not get_current_worker().is_cancelled:
            self.post_message(_Ready(pane, loaded))

    def on__ready(self, message: _Ready) -> None:
        """Show what was read, unless something else is wanted by now."""
        pane, loaded = message.pane, message.loaded
        wanted = self._current if pane is self.pane else self._marked
        if loaded.wish != Wish(wanted or 0, self.shade, self._word):
            return
        if pane is self.pane:
            self.loaded = loaded if loaded.conversation else None
            self.screen.refresh_bindings()
        title = f"conversation {loaded.wish.conversation}"
        title += "" if self.shade == TURNS or loaded.shading.lacking else f", tokens by {self.shade}"
        pane.show(Page(loaded.wish.conversation, title, loaded.blocks, loaded.shading, loaded.first))


def _unreadable(wish: Wish, why: str) -> Loaded:
    return Loaded(wish, None, (Block(f"This conversation cannot be read: {line(why, 400)}", "$text-error"),))


class _Ready(Message, bubble=False):
    """A conversation from the thread."""

    def __init__(self, pane: ConversationPane, loaded: Loaded) -> None:
        super().__init__()
        self.pane, self.loaded = pane, loaded
