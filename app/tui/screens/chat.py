"""The chat pane: a person talks with one or two versions.

A thread does the work (``app/tui/chat/talking.py``) and ends with the pane.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from marlaas.engine.errors import MarlaasError
from marlaas.engine.rollout.talk import Speech
from marlaas.engine.store.rows import TrajectoryRow

from ...operations.results import task_prompt
from ...reading import opened
from ...text.format import excerpt, line
from ..chat import talking as chat_thread
from ..chat.talking import ROOMY, ChatThread, Event, PartialReply, SamplerNotice, Side, TurnOver, manner_of
from ..widgets.conversation import NewestRollout
from .dialogs import Settings, chat_settings
from .view import View

LONGEST = 20_000
"""Most characters of a message: a paste may be a megabyte."""
CHARACTERS, LINES = 20_000, 400
"""Most drawn characters and lines of an answer; more is only counted."""
_ENDS = {"length": "cut at the limit of tokens", "full": "The conversation is full: ctrl+n begins another one."}
_UNDER_WAY = "An answer is under way: esc ends it."
_PLACES = count(1)
"""Seeds the noise of each conversation."""


class ChatColumn(VerticalScroll, can_focus=True):
    """One side's questions, thoughts (dimmed) and answers, scrolled to the newest.

    Cleans and cuts model text.
    """

    ALLOW_MAXIMIZE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "down", show=False, id="chat.down"),
        Binding("k", "scroll_up", "up", show=False, id="chat.up"),
        Binding("g", "scroll_home", "top", show=False, id="chat.top"),
        Binding("G", "scroll_end", "bottom", show=False, id="chat.bottom"),
    ]
    DEFAULT_CSS = """
    ChatColumn { width: 1fr; height: 1fr; padding: 0 1; border-top: solid $panel-lighten-2; }
    ChatColumn:focus { border-top: solid $primary; }
    ChatColumn Static { margin-bottom: 1; }
    ChatColumn NewestRollout { height: 100%; padding: 0; border-left: none; }
    """

    def __init__(self, side: Side) -> None:
        super().__init__()
        self._title = f"{side.label} · {side.title}"
        self.border_title = Content(self._title)  # a plain text would be read as markup
        self._answer: Static | None = None
        self._text = ""
        self._lines: list[str] = []

    @property
    def transcript(self) -> str:
        return "\n".join([f"# {self._title}", *self._lines, *([self._text] if self._text else [])])

    def begin(self, example: TrajectoryRow) -> None:
        """Show the task's last prompt and the version's reply until the first message."""
        shown = NewestRollout()
        shown.row = example
        self.mount(shown)

    def ask(self, words: str) -> None:
        self.query(NewestRollout).remove()
        self._lines += [*([self._text] if self._text else []), f"you> {words}"]
        self._text = ""
        question = Static(Content.styled(f"you> {excerpt(words, CHARACTERS, LINES)}", "bold"), markup=False)
        self._answer = Static(Content.styled("…", "$text-muted"), markup=False)
        self.mount_all([question, self._answer])
        self.call_after_refresh(self.scroll_end, animate=False)

    def show_reply(self, speech: Speech, problem: str = "") -> None:
        if self._answer is None:
            return
        follows = self.scroll_offset.y >= self.max_scroll_y - 1
        self._text = speech.text
        self._answer.update(_shown(speech, problem))
        if follows:
            self.call_after_refresh(self.scroll_end, animate=False)

    def withdraw(self) -> None:
        if self._answer is not None:
            self._answer.update(Content.styled("(not sent: it was cancelled, or failed)", "$text-muted"))
            self._lines[-1:] = []
        self._answer, self._text = None, ""

    def clear(self) -> None:
        self._answer, self._text, self._lines = None, "", []
        self.remove_children()


def _shown(speech: Speech, problem: str) -> Content:
    space = " " if speech.text else ""
    end = ("", "")
    if problem:
        end = (f"{space}{excerpt(problem, 1000, 5)}", "$text-error")
    elif speech.ended in _ENDS:
        end = (f"{space}[{_ENDS[speech.ended]}]", "$text-warning")
    elif not speech.ended:
        end = ("▌", "$text-muted")
    elif not speech.text.strip():
        end = ("(an empty answer)", "$text-muted")
    thought = f"{excerpt(speech.thinking, CHARACTERS, LINES)}\n" if speech.thinking else ""
    return Content.assemble((thought, "$text-muted italic"), excerpt(speech.text, CHARACTERS, LINES), end)


class ChatScreen(View):
    """One column per side, and an input line."""

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

    def __init__(self, sides: Sequence[Side]) -> None:
        super().__init__()
        self._sides = list(sides)
        self._settings = Settings(ROOMY)
        self._thread: ChatThread | None = None
        self._busy = False
        self._unsent = ""
        """The message to put back into the line if it was never said."""
        self._progress: Callable[[], None] = lambda: None
        """Ends the notice on what the thread does."""
        self._example: TrajectoryRow | None = None
        """What the version's task did last."""

    def content(self) -> ComposeResult:
        yield Horizontal(*map(ChatColumn, self._sides), id="columns")
        yield Static(id="told", markup=False)
        with Horizontal(id="line"):
            yield Static("you> ", classes="prompt", markup=False)
            yield Input(
                placeholder="Say something; enter sends it",
                id="say",
                max_length=LONGEST,
                select_on_focus=False,
                compact=True,
            )

    @property
    def _columns(self) -> list[ChatColumn]:
        return list(self.query(ChatColumn))

    def on_mount(self) -> None:
        """Read the task's sampling and the version's last prompt and reply: a small base knows little else."""
        super().on_mount()
        version = self._sides[0].version
        with contextlib.suppress(MarlaasError), opened(self.marlaas.home) as reader:
            if version is not None:
                self._example = reader.newest_rollout(version.task, version.policy)
                if asked := line(task_prompt(reader, version), 28):
                    self.query_one("#say", Input).placeholder = f"Say something, such as “{asked}”; enter sends it"
            self._settings = Settings(manner_of(reader, self._sides[0]))
        self._start()

    def on_unmount(self) -> None:
        self._progress()
        if self._thread is not None:
            self._thread.close()

    def _start(self) -> None:
        if self._thread is not None:
            self._thread.close()
        if self._example is not None:
            self._columns[0].begin(self._example)

        def tell(event: Event) -> None:
            self.call_later(self._happened, thread, event)

        thread = ChatThread(self.marlaas.home, self._sides, f"chat/{next(_PLACES)}", tell, chat_thread.IDLE)
        self._thread, self._busy = thread, False
        # No Textual worker: quitting would wait for it. The kernel ends the sampler with this process.
        threading.Thread(target=thread.run, name="chat", daemon=True).start()

    def _happened(self, thread: ChatThread, event: Event) -> None:
        """Ignore it if the conversation was left."""
        if thread is not self._thread or not self.is_mounted:
            return
        match event:
            case SamplerNotice(text, bad, under_way):
                self._progress()
                if under_way:
                    self._progress = self.marlaas.under_way(text)
                    return
                told = self.query_one("#told", Static)
                told.update(Content.styled(line(text, 400), "$text-error" if bad else "") if text else self._manner)
                told.set_class(bad, "-bad")
            case PartialReply(side, speech, problem):
                self._columns[side].show_reply(speech, problem)
            case TurnOver(said):
                self._busy = False
                if not said:
                    self._withdraw()

    def _withdraw(self) -> None:
        for column in self._columns:
            column.withdraw()
        field = self.query_one("#say", Input)
        field.value = field.value or self._unsent

    @property
    def _manner(self) -> str:
        manner, cut = self._settings.manner, self._settings.manner.truncation
        words = (
            f"temperature {manner.temperature:g}",
            f"top-p {cut.top_p:g}" if cut.top_p < 1 else "",
            f"top-k {cut.top_k}" if cut.top_k else "",
            f"min-p {cut.min_p:g}" if cut.min_p else "",
            f"at most {manner.max_tokens} tokens",
            f"system: {line(self._settings.system, 40)}" if self._settings.system else "",
        )
        return " · ".join(filter(None, words))

    def why_not(self, action: str) -> str:
        if action in ("anew", "base", "manner") and self._busy:
            return _UNDER_WAY
        if action == "base" and len(self._sides) > 1 and self._sides[1].version is not None:
            return f"{self._sides[1].label} is beside it already."
        return ""

    def on_input_submitted(self, event: Input.Submitted) -> None:
        words = event.value.strip()
        if self._busy:
            self.marlaas.say(_UNDER_WAY, bad=True)
        elif words and self._thread is not None:
            self._busy, self._unsent = True, words
            event.input.value = ""
            for column in self._columns:
                column.ask(words)
            self._thread.say(chat_thread.Message(words, self._settings.manner, self._settings.system))

    def action_back(self) -> None:
        if self.maximized is None and self._busy and self._thread is not None:
            self._thread.cancel()
        else:
            super().action_back()

    def action_anew(self) -> None:
        for column in self._columns:
            column.clear()
        self._start()

    async def action_base(self) -> None:
        self._sides = self._sides[:1] if len(self._sides) > 1 else [self._sides[0], Side()]
        columns = self.query_one("#columns", Horizontal)
        await columns.remove_children()
        await columns.mount_all(map(ChatColumn, self._sides))
        self._start()

    def action_manner(self) -> None:

        def take(settings: Settings | None) -> None:
            if settings is None or settings == self._settings:
                return
            system, self._settings = self._settings.system, settings
            self.query_one("#told", Static).update(self._manner)
            if settings.system != system:
                self.action_anew()

        self.app.push_screen(chat_settings(self._settings), take)

    def action_copy_all(self) -> None:
        self.marlaas.copy("\n\n".join(column.transcript for column in self._columns), "The conversation")

    def action_scroll(self, pages: int) -> None:
        """Scroll all columns together, to compare answers line by line."""
        for column in self._columns:
            column.scroll_relative(y=pages * max(1, column.size.height - 1), animate=False)
