"""The view of the API: state, keys, opening and closing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll

from marlaas.engine.store.queries.learning import GivenName
from marlaas.engine.store.rows import ApiKeyRow, ApiRow, TaskRow

from ...lists.lines import Cell, Column, Row, table_cells
from ...operations.api import Request, make_key
from ...questions import ApiAnswer, Question, api
from ...rollouts.answers import wrapped
from ...text.format import ago, cells, clip_start, count, duration, line, pad, short_duration
from ...text.machine import (
    CLOSED,
    GLYPHS,
    OPEN,
    api_state,
    key_name,
    last_use,
    may_text,
    requests_text,
    state_text,
    used_text,
    variables,
)
from ..context.feed import Snapshot
from ..widgets.bars import Nothing
from ..widgets.tables import KeyedTable
from .engine import Line, Pane, labelled, table
from .view import View

if TYPE_CHECKING:
    from ...app import MarlaasApp


_STYLES = {OPEN: "bold $text-success", CLOSED: "bold $text-muted"}
_HINTS = {OPEN: "", CLOSED: " o opens it."}
_LABEL = 10


def head(row: ApiRow, keys: Sequence[ApiKeyRow], alive: bool, now: float, width: int) -> list[Line]:
    """The API in one or more lines: state, what to do, use of its keys."""
    state = api_state(row, alive)
    hint = _HINTS.get(state, " o tries again.") if alive else " S starts one."
    text = f"{GLYPHS[state]} The API is {state_text(row, alive, now)}{hint}"
    return [
        *_wrapped(text, _STYLES.get(state, "bold $text-error"), width),
        *([((used_text(keys), ""),)] if keys else []),
    ]


def _wrapped(text: str, style: str, width: int) -> list[Line]:
    return [((text[start:stop], style),) for start, stop in wrapped(text, max(1, width))]


def key_lines(key: ApiKeyRow | None, url: str, now: float, width: int) -> list[Line]:
    """All facts of a key, and its use in programs; empty without one."""
    if key is None:
        return []
    tokens = f"{count(key.tokens_in)} tokens read, {count(key.tokens_out)} sampled"
    facts = [
        ("key", f"{line(key.prefix, 80)}…  The rest was shown once, when it was made."),
        ("name", line(key.name, 100) or "-"),
        ("tenant", line(key.tenant, 100)),
        ("may", may_text(key.scopes)),
        ("made", ago(key.created, now)),
        ("last use", last_use(key, now)),
        ("answered", f"{requests_text(key.requests)}: {tokens}"),
    ]
    if key.revoked is not None:
        facts.append(("revoked", f"{ago(key.revoked, now)}: programs that show it are refused"))
    elif url:
        facts += zip(("use", "", "", ""), variables(line(url, 200)), strict=True)
    return [each for label, text in facts for each in labelled(label, text, "", _LABEL, width)]


def name_lines(
    names: Sequence[GivenName], tasks: Mapping[int, TaskRow], key: ApiKeyRow | None, width: int
) -> list[Line]:
    """Version names open to the key's tenant, and how to make more."""
    if key is None:
        return []
    widest = min(30, max((cells(line(each.name)) for each in names), default=0))
    lines: list[Line] = []
    for each in names:
        task = tasks.get(each.task)
        policy = f"/{line(each.policy, 30)}" if task and task.policies else ""
        version = f"  {each.task}{policy}@{each.number}  {line(task.name, 60) if task else ''}"
        gone = "" if each.kept else "  its file is gone"
        lines.append(((pad(line(each.name, 30), widest), "bold"), (version, ""), (gone, "$text-error")))
    more = "`marlaas adapters name` gives a version a name of its own; without one it is 17@best, 17/player@12, base."
    return [*lines, *_wrapped(more, "$text-muted", width)]


def request_lines(requests: Sequence[Request], now: float, width: int) -> list[Line]:
    """A key's latest requests in columns, newest first."""
    if not requests:
        return []
    rows = [
        (
            short_duration(now - each.when),
            line(each.route.removeprefix("/v1/").partition("/")[0], 20),
            line(each.model, 30) or "-",
            "answered" if each.status == 200 else f"{each.status} {line(each.error, 30)}",
            duration(each.seconds),
            f"{count(each.tokens[0])} → {count(each.tokens[1])}",
        )
        for each in requests[:20]
    ]
    return table(("ago", "interface", "model", "outcome", "took", "tokens"), rows, (-4, 11, 14, 21, -7, 20), width)


USED = (
    Column("last use", 8, right=True),
    Column("requests", 8, right=True),
    Column("read", 6, right=True),
    Column("sampled", 7, right=True),
)
NARROW = (Column("state", 9), Column("key", 11), Column("tenant", 9), Column("name", 8), *USED)
NORMAL = (Column("state", 9), Column("key", 24), Column("tenant", 14), Column("name", 16), Column("scopes", 10), *USED)
WIDE = (Column("state", 9), Column("key", 36), Column("tenant", 30), Column("name", 36), Column("scopes", 16), *USED)


def _row(columns: Sequence[Column], key: ApiKeyRow, now: float) -> Row:
    revoked = key.revoked is not None
    widths = {column.name: column.width for column in columns}
    texts = {
        "state": "⊘ revoked" if revoked else "● valid",
        "key": clip_start(line(key.prefix), widths["key"]),  # its end is what tells it from the tenant's others
        "tenant": line(key.tenant, 30),
        "name": line(key.name, 36),
        "scopes": line(" ".join(key.scopes), 16),
        "last use": "never" if key.last_use is None else short_duration(now - key.last_use),
        "requests": count(key.requests),
        "read": count(key.tokens_in),
        "sampled": count(key.tokens_out),
    }
    style = "$text-muted" if revoked else ""
    styles = {} if revoked else {"state": "$text-success"}
    return Row(str(key.id), tuple(Cell(texts[column.name], styles.get(column.name, style)) for column in columns))


# This program writes the keys; no engine is needed.


def open_api(app: MarlaasApp) -> None:
    """Have the engine open it."""
    if not app.refuses(app.why_no_engine):
        app.command("api_start", done="The engine opens the API.")


def close_api(app: MarlaasApp, used: bool = True) -> None:
    """Ask, and have the engine close it. ``used``: a program has used a valid key."""
    if not app.refuses(app.why_no_engine):
        what = "Requests under way end, and programs that ask get no answer." if used else "No program uses it yet."
        question = f"Close the API? {what} Keys stay, and tasks go on."
        app.confirm(question, partial(app.command, "api_stop", done="The API is closed."))


def ask_key(app: MarlaasApp, tenant: str = "") -> None:
    """Ask for tenant (proposed) and name, make the key, show it once."""
    from .dialogs import new_key, shown_key

    def act(wish: tuple[str, str] | None) -> None:
        def show(made: Any) -> None:
            app.push_screen(shown_key(app, made.key, made.tenant))
            app.poll()

        if wish is not None:
            app.work(partial(make_key, app.home, *wish), show)

    if not app.refuses():
        tasks = app.snapshot.ordered
        chosen = app.snapshot.task(app.selected) or (tasks[0] if tasks else None)
        app.push_screen(new_key(tenant or (chosen.tenant if chosen else "")), act)


_CLOSED = """The API is closed: press {keys} to open it, or from a shell

    marlaas api start

Then any program that speaks OpenAI's or Anthropic's interface can ask the base and your adapters, at an address of \
this machine. Each shows a key, which says whose adapters it may use: N makes one, and so does

    marlaas api key new TENANT"""
_OPEN = """Nobody has a key yet: press N to make one, or from a shell

    marlaas api key new TENANT

Give it to a program as OPENAI_API_KEY or ANTHROPIC_API_KEY; y copies the variables that name the address."""


class ApiScreen(View):
    """Two lines on the API, the table of keys, details of the current key."""

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
        KeyedTable { height: auto; max-height: 50%; }
        #about { height: 1fr; }
        #about Container { height: auto; layout: grid; grid-size: 1; grid-rows: auto; }
        &.-wide #about Container { grid-size: 2; grid-gutter: 0 1; }
        &.-wide #requests { column-span: 2; }
        &.-short KeyedTable { max-height: 4; }
    }
    """
    AUTO_FOCUS = "KeyedTable"

    def __init__(self) -> None:
        super().__init__()
        self._answer: ApiAnswer | None = None
        self._hint = ""

    @property
    def current(self) -> ApiKeyRow | None:
        under = self.query_one(KeyedTable).key
        keys = self._answer.keys if self._answer else ()
        return next((key for key in keys if str(key.id) == under), None)

    @property
    def _state(self) -> ApiRow:
        return self._answer.state if self._answer else ApiRow()

    @property
    def _url(self) -> str:
        return self._state.url if api_state(self._state, self.serves) == OPEN else ""

    def question(self) -> Question:
        return Question(api, (self.marlaas.home,))

    def content(self) -> ComposeResult:
        yield Pane("", id="api-head", can_focus=False)
        with Container(id="api"):
            yield KeyedTable()
            with VerticalScroll(id="about", can_focus=False), Container():
                yield Pane("key", id="key")
                yield Pane("adapters by name", id="names")
                yield Pane("latest requests", id="requests")
        yield Nothing("")

    def show_content(self, snapshot: Snapshot, answer: Any) -> None:
        """Before the first answer shows only that an empty home has no keys."""
        self._answer = known = answer or self._answer
        keys = known.keys if known else ()
        self.query_one("#api").display = bool(keys)
        shown = known is not None and (bool(keys) or api_state(known.state, self.serves) != CLOSED)
        lines = head(self._state, keys, self.serves, snapshot.now, self._width) if shown else []
        self.query_one("#api-head", Pane).show(lines)
        nothing = self.query_one(Nothing)
        nothing.display = not keys and (known is not None or snapshot.engine is None)
        hint = _OPEN if self._url else _CLOSED.format(keys="o" if self.serves else "S to start an engine, then o")
        if hint != self._hint:
            self._hint = hint
            nothing.update(hint)
        table = self.query_one(KeyedTable)
        room = self.app.size.width - 4
        columns = next((each for each in (WIDE, NORMAL, NARROW) if table_cells(each) <= room), NARROW[:4])
        table.show_rows(columns, [_row(columns, key, snapshot.now) for key in keys])
        if keys and self.focused is None:
            table.focus()  # it was hidden when the view came into sight
        self._show_current()

    @property
    def _width(self) -> int:
        return max(20, self.app.size.width - 4)

    def _show_current(self) -> None:
        key, now, width, known = self.current, self.marlaas.snapshot.now, self._width, self._answer
        room = (width - 5) // 2 if self.has_class("-wide") else width - 2  # next to the scroll bar
        self.query_one("#key", Pane).show(key_lines(key, self._url, now, room))
        tasks = {task.id: task for task in self.marlaas.snapshot.tasks}
        names = [name for name in known.names if name.tenant == key.tenant] if known and key else ()
        self.query_one("#names", Pane).show(name_lines(names, tasks, key, room))
        asked = [each for each in known.requests if each.key == key.prefix] if known and key else ()
        self.query_one("#requests", Pane).show(request_lines(asked, now, width - 2))

    def on_virtual_list_moved(self) -> None:
        self._show_current()
        self.renew_keys()

    def on_virtual_list_opened(self) -> None:
        self.query_one("#key", Pane).focus()

    @property
    def first_keys(self) -> tuple[str, ...]:
        """Making a key, if there is none and the API is open."""
        return ("new",) if self._url and not (self._answer and self._answer.holding) else ()

    @property
    def key_words(self) -> Mapping[str, str]:
        """``o`` opens or closes; enter opens no API."""
        return {"switch": "close the API" if self._url else "open the API", "open": "details"}

    def why_not(self, action: str) -> str:
        match action:
            case "copy":
                return "" if self._url else "The API is closed, so it has no address: o opens it."
            case "switch" | "new" | "revoke" if reason := self.marlaas.may_act():
                return reason
            case "switch":
                return self.marlaas.why_no_engine
            case "revoke" if (key := self.current) is None or key.revoked is not None:
                return "There is no key under the cursor." if key is None else "This key was revoked before."
        return super().why_not(action)

    def action_switch(self) -> None:
        if self._url:
            holding = self._answer.holding if self._answer else ()
            close_api(self.marlaas, used=any(key.last_use is not None for key in holding))
        else:
            open_api(self.marlaas)

    def action_new(self) -> None:
        key = self.current
        ask_key(self.marlaas, key.tenant if key else "")

    def action_revoke(self) -> None:
        from marlaas.engine.store.submissions import revoke_key

        def revoked(found: tuple[str, str]) -> None:
            self.marlaas.say(f"The key {found[0]}… of {found[1]} is revoked.")
            self.marlaas.poll()

        if key := self.current:
            whose = f"{key_name(key)} of {line(key.tenant, 40)}"
            question = f"Revoke the key {whose}? Programs that show it are refused from now on, for good."
            revoke = partial(revoke_key, self.marlaas.home.database, key.prefix)
            self.marlaas.confirm(question, partial(self.marlaas.work, revoke, revoked))

    def action_copy(self) -> None:
        self.marlaas.copy("\n".join(variables(self._url)) + "\n", "What points a program here")
