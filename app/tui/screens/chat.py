"""The chat pane: a person talks with one version, or with two side by side, each message said to both.

Answers are drawn as they come. A thread does the work (``app/tui/chat/talking.py``) and ends with the pane.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from marlaas.engine.errors import MarlaasError
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import TrajectoryRow

from ...operations.results import task_prompt
from ...reading import opened
from ...text.format import line
from ..chat import talking as chat_thread
from ..chat.talking import ROOMY, ChatThread, Event, PartialReply, SamplerNotice, Side, TurnOver, manner_of
from ..context.snapshot import Snapshot
from ..widgets.bars import Elapsed
from .adapters import ChatColumn
from .dialogs.questions import MannerDialog, Settings
from .view import View

LONGEST = 20_000
"""Most characters of a message: somebody may paste a megabyte."""
_PROPOSED = 28
"""Cells of a prompt that is proposed."""
_PLACES = count(1)
"""Seeds the noise of each conversation again."""


class ChatScreen(View):
    """One column for each side, and a line to type into."""

    HELP = """Chat with a version of an adapter, and with another version or the base beside it: both get the same
message and the same random numbers. A sampler of its own answers; it starts with the first message and ends with this
pane.

Esc stops an answer (its message then counts as never sent), and leaves.
ctrl+o: system message, temperature, length, top-p, top-k, min-p."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+n", "anew", "new", id="chat.anew"),
        Binding("ctrl+o", "manner", "settings", id="chat.manner"),
        Binding("ctrl+b", "base", "base beside", id="chat.base"),
        Binding("escape", "back", "leave", key_display="esc", id="chat.back"),
        Binding("ctrl+y", "copy_all", "copy", show=False, id="chat.copy"),
        Binding("pageup", "scroll(-1)", "up", show=False, id="chat.page_up"),
        Binding("pagedown", "scroll(1)", "down", show=False, id="chat.page_down"),
    ]
    DEFAULT_CSS = """
    ChatScreen #told { height: 1; padding: 0 1; color: $text-muted; }
    ChatScreen.-narrow #told { height: 2; }
    ChatScreen #told.-bad { height: auto; max-height: 5; }
    ChatScreen #columns { height: 1fr; layout: horizontal; }
    ChatScreen.-narrow #columns { layout: vertical; }
    ChatScreen #line { height: 1; padding: 0 1; background: $surface; }
    ChatScreen .prompt { width: 5; color: $text-accent; }
    ChatScreen #say { width: 1fr; background: $surface; }
    """
    AUTO_FOCUS = "#say"

    class Happened(Message):
        """Something came from the conversation's thread ``thread``."""

        def __init__(self, thread: ChatThread, event: Event) -> None:
            super().__init__()
            self.thread, self.event = thread, event

    def __init__(self, sides: Sequence[Side]) -> None:
        super().__init__()
        self._sides = list(sides)
        self._settings = Settings(ROOMY)
        self._thread: ChatThread | None = None
        self._busy = False
        self._unsent = ""
        """The message to put back into the line if it was never said."""
        self._example: TrajectoryRow | None = None
        """What the version's task played last."""

    def content(self) -> ComposeResult:
        """Columns, the sampler's state, and a line to type into."""
        yield Horizontal(*map(_column, self._sides), id="columns")
        yield Elapsed(id="told")
        with Horizontal(id="line"):
            yield Static("you> ", classes="prompt", markup=False)
            yield Input(
                placeholder="Say something; enter sends it",
                id="say",
                max_length=LONGEST,
                select_on_focus=False,
                compact=True,
            )

    def show_content(self, snapshot: Snapshot, answer: object) -> None:
        """Do nothing: nothing here comes from the store."""

    def on_mount(self) -> None:
        """Look up how the task samples, and what a sampler takes."""
        super().on_mount()
        with contextlib.suppress(MarlaasError), opened(self.marlaas.home) as reader:
            self._propose(reader)
            self._settings = Settings(manner_of(reader, self._sides[0]))
        self._start()

    def _propose(self, reader: Reader) -> None:
        """Say what the version's task asked it, and what it answered: a small base knows little else."""
        version = self._sides[0].version
        if version is None:
            return
        if asked := line(task_prompt(reader, version), _PROPOSED):
            self.query_one("#say", Input).placeholder = f"Say something, such as “{asked}”; enter sends it"
        self._example = reader.newest_rollout(version.task, version.policy)
        self._begin()

    def _begin(self) -> None:
        """Fill the version's column while nothing was said in it."""
        if self._example is not None:
            self.query(ChatColumn).first().begin(self._example)

    def on_unmount(self) -> None:
        """End the sampler."""
        self._stop()

    # The thread.

    def _start(self) -> None:
        self._stop()

        def tell(event: Event) -> None:
            self.post_message(self.Happened(thread, event))

        thread = ChatThread(self.marlaas.home, self._sides, f"chat/{next(_PLACES)}", tell, chat_thread.IDLE)
        self._thread, self._busy = thread, False
        # Not a worker of Textual's: quitting would wait for it. The kernel ends the sampler with this process.
        threading.Thread(target=thread.run, name="chat", daemon=True).start()

    def _stop(self) -> None:
        if self._thread is not None:
            self._thread.close()

    def on_chat_screen_happened(self, message: Happened) -> None:
        """Show it, unless its conversation has been left."""
        if message.thread is not self._thread or not self.is_mounted:
            return
        columns = list(self.query(ChatColumn))
        match message.event:
            case SamplerNotice(text, bad, under_way):
                said = Content.styled(line(text, 400), "$text-error" if bad else "") if text else self._manner
                told = self.query_one("#told", Elapsed)
                told.show(said, under_way)
                told.set_class(bad, "-bad")
            case PartialReply(side, speech, problem):
                columns[side].show_reply(speech, problem)
            case TurnOver(said):
                self._busy = False
                if not said:
                    self._withdraw(columns)

    def _withdraw(self, columns: Sequence[ChatColumn]) -> None:
        for column in columns:
            column.withdraw()
        field = self.query_one("#say", Input)
        if not field.value:
            field.value = self._unsent

    @property
    def _manner(self) -> str:
        manner = self._settings.manner
        system = f" · system: {line(self._settings.system, 40)}" if self._settings.system else ""
        cut = manner.truncation
        said = (
            f" · top-p {cut.top_p:g}" if cut.top_p < 1 else "",
            f" · top-k {cut.top_k}" if cut.top_k else "",
            f" · min-p {cut.min_p:g}" if cut.min_p else "",
        )
        return f"temperature {manner.temperature:g}{''.join(said)} · at most {manner.max_tokens} tokens{system}"

    # What the person does.

    def why_not(self, action: str) -> str:
        """Why nothing more can be said: one turn at a time."""
        if action in ("anew", "base", "manner") and self._busy:
            return "An answer is under way: esc ends it."
        if action == "base" and len(self._sides) > 1 and self._sides[1].version is not None:
            return f"{self._sides[1].label} is beside it already."
        return ""

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Say the message to all sides."""
        words = event.value.strip()
        if self._busy:
            self.marlaas.say("An answer is under way: esc ends it.", bad=True)
        elif words and self._thread is not None:
            self._busy, self._unsent = True, words
            event.input.value = ""
            for column in self.query(ChatColumn):
                column.ask(words)
            self._thread.say(chat_thread.Message(words, self._settings.manner, self._settings.system))

    def action_back(self) -> None:
        """End the answers in progress, or leave."""
        if self.maximized is None and self._busy and self._thread is not None:
            self._thread.cancel()
        else:
            super().action_back()

    def action_anew(self) -> None:
        """Begin another conversation, with other noise."""
        for column in self.query(ChatColumn):
            column.clear()
        self._begin()
        self._start()

    async def action_base(self) -> None:
        """Show the base next to the version, or remove it."""
        self._sides = self._sides[:1] if len(self._sides) > 1 else [self._sides[0], Side()]
        columns = self.query_one("#columns", Horizontal)
        await columns.remove_children()
        await columns.mount_all(map(_column, self._sides))
        self._begin()
        self._start()

    def action_manner(self) -> None:
        """Ask for the sampling parameters."""

        def take(settings: Settings | None) -> None:
            if settings is None or settings == self._settings:
                return
            anew = settings.system != self._settings.system
            self._settings = replace(settings)
            self.query_one("#told", Elapsed).show(self._manner)
            if anew:
                self.action_anew()

        self.app.push_screen(MannerDialog(self._settings), take)

    def action_copy_all(self) -> None:
        """Copy what was said, of all sides."""
        self.marlaas.copy("\n\n".join(column.transcript for column in self.query(ChatColumn)), "The conversation")

    def action_scroll(self, pages: int) -> None:
        """Scroll all columns together, so that answers can be compared line by line."""
        for column in self.query(ChatColumn):
            column.scroll_relative(y=pages * max(1, column.size.height - 1), animate=False)


def _column(side: Side) -> ChatColumn:
    return ChatColumn(f"{side.label} · {side.title}")
