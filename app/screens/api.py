"""The view of the API: whether programs from outside may ask, at which address, and with which keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.events import Resize

from marlaas.engine.store import ApiKeyRow, ApiRow

from ..context.snapshot import Snapshot
from ..questions.views import ApiAnswer, ApiQuestion
from ..widgets.api_keys import KeysTable, head, key_lines, name_lines, request_lines
from ..widgets.engine_panes import Pane
from ..widgets.keyed_table import KeyedTable
from ..widgets.nothing import Nothing
from ..words.api import CLOSED, OPEN, api_state, key_name, variables
from ..words.format import line
from ..words.tasks import liveness
from .api_acts import ask_key, ask_revoke, close_api, open_api, why_no_switch
from .view import View

_CLOSED = """The API is closed: press {keys} to open it, or from a shell

    marlaas api start

Then any program that speaks OpenAI's or Anthropic's interface can ask the base and your adapters, at an address of \
this machine. Each shows a key, which says whose adapters it may use: N makes one, and so does

    marlaas api key new TENANT"""
_OPEN = """Nobody has a key yet: press N to make one, or from a shell

    marlaas api key new TENANT

Give it to a program as OPENAI_API_KEY or ANTHROPIC_API_KEY; y copies the variables that name the address."""


class ApiScreen(View):
    """Two lines on the API, the table of keys, and below it what is known of the one under the cursor, and asked with
    it."""

    HELP = """Programs from outside: any that speaks OpenAI's or Anthropic's interface asks the base and your adapters.

o opens the API on this machine, and closes it; tasks do not mind.
N makes a key for a tenant and shows it once: it may use what is that tenant's, and nothing else; x revokes one.
y copies the environment variables by which a program finds the API.
Where an environment runs a program, that has an address and a key of its own, which are not listed.

Below are the latest requests of the key under the cursor. All are in api.log: 7, then ]."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "switch", "open or close", id="api.switch"),
        Binding("N", "new", "new key", id="api.new"),
        Binding("x", "revoke", "revoke", id="api.revoke"),
        Binding("y", "copy", "copy variables", id="api.copy"),
    ]
    DEFAULT_CSS = """
    ApiScreen {
        #api { height: 1fr; }
        #api-head { border-top: none; }
        KeysTable { height: auto; max-height: 50%; }
        #about { height: 1fr; }
        #about Container { height: auto; layout: grid; grid-size: 1; grid-rows: auto; }
        &.-wide #about Container { grid-size: 2; grid-gutter: 0 1; }
        &.-wide #requests { column-span: 2; }
        &.-short KeysTable { max-height: 4; }
    }
    """
    AUTO_FOCUS = "KeysTable"

    def __init__(self) -> None:
        super().__init__()
        self._answer: ApiAnswer | None = None
        self._hint = ""

    @property
    def current(self) -> ApiKeyRow | None:
        """The key under the cursor."""
        under = self.query_one(KeysTable).key
        return self._answer.key(int(under)) if self._answer and under else None

    @property
    def _alive(self) -> bool:
        snapshot = self.marlaas.snapshot
        return liveness(snapshot.engine, snapshot.now).serves

    @property
    def _state(self) -> ApiRow:
        return self._answer.state if self._answer else ApiRow()

    @property
    def _url(self) -> str:
        """The address; empty while the API is closed."""
        return self._state.url if api_state(self._state, self._alive) == OPEN else ""

    def question(self) -> ApiQuestion:
        """A question about all of it."""
        return ApiQuestion(self.marlaas.home)

    def content(self) -> ComposeResult:
        """Head, table and details; or a hint where there are no keys."""
        yield Pane("", id="api-head", can_focus=False)
        with Container(id="api"):
            yield KeysTable()
            with VerticalScroll(id="about", can_focus=False), Container():
                yield Pane("key", id="key")
                yield Pane("adapters by name", id="names")
                yield Pane("latest requests", id="requests")
        yield Nothing("")

    def show_content(self, snapshot: Snapshot, answer: object) -> None:
        """Show all of it; before the first answer nothing but that an empty home has no keys."""
        if isinstance(answer, ApiAnswer):
            self._answer = answer
        known = self._answer
        keys = known.keys if known else ()
        self.query_one("#api").display = bool(keys)
        told = known is not None and (bool(keys) or api_state(known.state, self._alive) != CLOSED)
        lines = head(self._state, keys, self._alive, snapshot.now, self._width) if told else []
        self.query_one("#api-head", Pane).show(lines)
        nothing = self.query_one(Nothing)
        nothing.display = not keys and (known is not None or snapshot.engine is None)
        hint = _OPEN if self._url else _CLOSED.format(keys="o" if self._alive else "S to start an engine, then o")
        if hint != self._hint:
            self._hint = hint
            nothing.update(hint)
        table = self.query_one(KeysTable)
        table.show(keys, snapshot.now)
        if keys and self.focused is None:
            table.focus()  # it was hidden when the view came into sight
        self._show_current()

    @property
    def _width(self) -> int:
        return max(20, self.app.size.width - 4)

    def _show_current(self) -> None:
        key, now, width = self.current, self.marlaas.snapshot.now, self._width
        room = (width - 5) // 2 if self.has_class("-wide") else width - 2  # beside the scroll bar
        self.query_one("#key", Pane).show(key_lines(key, self._url, now, room))
        tasks = {task.id: task for task in self.marlaas.snapshot.tasks}
        names = self._answer.names_of(key.tenant) if self._answer and key else ()
        self.query_one("#names", Pane).show(name_lines(names, tasks, key, room))
        asked = self._answer.requests_of(key) if self._answer and key else ()
        self.query_one("#requests", Pane).show(request_lines(asked, now, width - 2))

    def on_resize(self, event: Resize) -> None:
        """Break the lines at the new width."""
        self.call_after_refresh(self.show_again)

    def on_keyed_table_moved(self, message: KeyedTable.Moved) -> None:
        """Show the key under the cursor, and which keys of the keyboard can act on it."""
        self._show_current()
        self.renew_keys()

    def on_keyed_table_opened(self, message: KeyedTable.Opened) -> None:
        """Focus the details."""
        self.query_one("#key", Pane).focus()

    # Keys.

    @property
    def first_keys(self) -> tuple[str, ...]:
        """Making a key, where there is none and the API is open."""
        return ("new",) if self._url and not (self._answer and self._answer.holding) else ()

    @property
    def key_words(self) -> Mapping[str, str]:
        """Which of the two ``o`` does now, and that enter opens no API."""
        return {"switch": "close the API" if self._url else "open the API", "select_cursor": "details"}

    def why_not(self, action: str) -> str:
        """Why an action is refused."""
        if action == "copy":
            return "" if self._url else "The API is closed, so it has no address: o opens it."
        if action not in ("switch", "new", "revoke"):
            return super().why_not(action)
        if reason := self.marlaas.may_act():
            return reason
        if action == "switch":
            return why_no_switch(self.marlaas)
        key = self.current
        if action == "new" or (key is not None and key.revoked is None):
            return ""
        return "There is no key under the cursor." if key is None else "This key was revoked before."

    def action_switch(self) -> None:
        """Open the API, or close it once the person says yes."""
        if self._url:
            holding = self._answer.holding if self._answer else ()
            close_api(self.marlaas, used=any(key.last_use is not None for key in holding))
        else:
            open_api(self.marlaas)

    def action_new(self) -> None:
        """Ask whose key it is to be, make it, and show it once."""
        key = self.current
        ask_key(self.marlaas, key.tenant if key else "")

    def action_revoke(self) -> None:
        """Ask, then revoke the key under the cursor."""
        if key := self.current:
            ask_revoke(self.marlaas, key.prefix, key_name(key), line(key.tenant, 40))

    def action_copy(self) -> None:
        """Copy the variables that point a program at the API."""
        self.marlaas.copy("\n".join(variables(self._url)) + "\n", "What points a program here")
