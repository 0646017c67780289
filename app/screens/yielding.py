"""Yields the machine from the screen: says what that costs, asks for how long, and tells the engine.

Which key or entry of the palette asked is not known here.
"""

from __future__ import annotations

from marlaas.engine.errors import ConfigError
from marlaas.engine.fleet import reason as waits_for, state
from marlaas.engine.store import HOURS, YIELDED, Yielding

from ..context.application import Application
from ..questions.views import EngineAnswer
from ..widgets.engine_panes import yield_question
from ..words.tasks import liveness
from ..words.yielding import yielding_of

USUAL = "2h"
OPEN = "open"
"""The word to type for a yield without an end."""


def ask_yield(app: Application) -> None:
    """Ask for how long, and yield; leaving the dialog changes nothing."""

    from ..words.durations import seconds
    from .dialogs.questions import Ask

    def act(answer: str | None) -> None:
        if not answer:
            return
        now = app.snapshot.now
        try:
            until = None if answer == OPEN else now + seconds(answer)
        except ConfigError as error:
            app.say(f"{error} “{OPEN}” is until it is taken back.", bad=True)
            return
        done = f"The engine has {state(Yielding(YIELDED, until), now).replace('yielded', 'yielded the machine')}."
        app.command("yield", done=done, until=until)

    snapshot = app.snapshot
    if reason := app.may_act() or why_not(app):
        app.say(reason, bad=True)
        return
    running = sum(task.state == "running" for task in snapshot.tasks)
    now = snapshot.answer.now if isinstance(snapshot.answer, EngineAnswer) else {}
    app.push_screen(Ask(yield_question(running, now), USUAL, "yield"), act)


def take_back(app: Application) -> None:
    """End the yield."""
    if reason := app.may_act() or why_not(app) or why_no_end(app):
        app.say(reason, bad=True)
    else:
        app.command("resume_engine", done="The engine has the machine again.")


def why_not(app: Application) -> str:
    """Why no engine can be told; empty where one can."""
    serves = liveness(app.snapshot.engine, app.snapshot.now).serves
    return "" if serves else "No engine runs, so none holds the machine."


def why_no_end(app: Application) -> str:
    """Why there is no yield to end; empty where there is one."""
    yielding = yielding_of(app.snapshot.engine)
    if yielding is not None and yielding.kind == HOURS:
        return f"Nothing was yielded: {waits_for(yielding, app.snapshot.now)}."
    return "" if yielding is not None and yielding.kind == YIELDED else "The engine has not yielded the machine."
