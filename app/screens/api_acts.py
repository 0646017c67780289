"""Opens and closes the API, makes keys and revokes them: for the view of the API, and for the palette.

Keys are written by this program, not by the engine, which need not run for that. Which key asked is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from textual.app import App

from marlaas.engine.errors import MarlaasError

from ..context.application import Application
from ..words.tasks import liveness

if TYPE_CHECKING:
    from .dialogs.questions import KeyWish

_CLOSE = "Close the API? {what} Keys stay, and tasks go on."


def why_no_switch(app: Application) -> str:
    """Why the API can be neither opened nor closed; empty where it can."""
    serves = liveness(app.snapshot.engine, app.snapshot.now).serves
    return "" if serves else "No engine runs, and the API is a part of it: S starts one."


def open_api(app: Application) -> None:
    """Have the engine open it."""
    if reason := app.may_act() or why_no_switch(app):
        app.say(reason, bad=True)
    else:
        app.command("api_start", done="The engine opens the API.")


def close_api(app: Application, used: bool = True) -> None:
    """Ask, and have the engine close it. ``used``: whether any program has used a key that holds."""
    from .dialogs.questions import Confirm

    def act(yes: bool | None) -> None:
        if yes:
            app.command("api_stop", done="The API is closed.")

    if reason := app.may_act() or why_no_switch(app):
        app.say(reason, bad=True)
    else:
        what = "Requests under way end, and programs that ask get no answer." if used else "No program uses it yet."
        app.push_screen(Confirm(_CLOSE.format(what=what)), act)


def ask_key(app: Application, tenant: str = "") -> None:
    """Ask for tenant (this one is proposed) and name, make the key, and show it once."""
    from .dialogs.questions import NewKey

    def act(wish: KeyWish | None) -> None:
        if wish is not None:
            _written(app, partial(_mint, app, wish))

    if reason := app.may_act():
        app.say(reason, bad=True)
        return
    tasks = app.snapshot.ordered
    chosen = app.snapshot.task(app.selected) or (tasks[0] if tasks else None)
    app.push_screen(NewKey(tenant or (chosen.tenant if chosen else "")), act)


def ask_revoke(app: Application, beginning: str, named: str, tenant: str) -> None:
    """Ask, and revoke the key that begins so; ``named`` is how people know it."""
    from .dialogs.questions import Confirm

    def act(yes: bool | None) -> None:
        if yes:
            _written(app, partial(_revoke, app, beginning))

    question = f"Revoke the key {named} of {tenant}? Programs that show it are refused from now on, for good."
    app.push_screen(Confirm(question), act)


def _written(app: Application, write: Callable[[], Callable[[], None]]) -> None:
    """Write in a thread, as another program may hold the lock; then do what that returned, or say what went wrong."""
    screen = cast("App[Any]", app)

    def run() -> None:
        try:
            then = write()
        except MarlaasError as error:
            then = partial(app.say, str(error), bad=True)
        screen.call_from_thread(then)
        screen.call_from_thread(app.poll)

    screen.run_worker(run, thread=True, exit_on_error=False)


def _mint(app: Application, wish: KeyWish) -> Callable[[], None]:
    from ..home.api.keys import make_key

    made = make_key(app.home, wish.tenant, wish.name)
    return partial(_show, app, made.key, made.tenant)


def _show(app: Application, key: str, tenant: str) -> None:
    from .dialogs.questions import ShownKey

    app.push_screen(ShownKey(key, tenant))


def _revoke(app: Application, beginning: str) -> Callable[[], None]:
    from marlaas.engine.store import revoke_key

    prefix, tenant = revoke_key(app.home.database, beginning)
    return partial(app.say, f"The key {prefix}… of {tenant} is revoked.")
