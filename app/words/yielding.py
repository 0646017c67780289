"""Why an engine has no workers, in words for people."""

from __future__ import annotations

from marlaas.engine.fleet import TAKEN_BACK, clock, state
from marlaas.engine.store import HOURS, IDLE, YIELDED, EngineRow, Yielding

IDLENESS = "Nothing runs: cards and memory were given back; the next task starts the workers."


def yielding_of(engine: EngineRow | None) -> Yielding | None:
    """Why an engine yields; None while it has workers, or does not live."""
    return Yielding(engine.rest, engine.rest_until) if engine is not None and engine.rest else None


def yielding_text(yielding: Yielding, now: float) -> str:
    """Why it yields and what that means, in a sentence."""
    if yielding.kind == YIELDED:
        yields = f"The engine has {state(yielding, now).replace('yielded', 'yielded the machine')}"
        return f"{yields}: its workers have ended, cards and memory are free, and tasks wait; {TAKEN_BACK}."
    if yielding.kind == HOURS:
        return f"The engine is {state(yielding, now)}, and tasks wait."
    return IDLENESS


def yielding_hint(yielding: Yielding | None, now: float) -> str:
    """Why tasks wait while the engine has no workers, and how to take the machine again, for screens; empty: no more
    than that nothing runs."""
    if yielding is None or not yielding.holds:
        return ""
    until = "" if yielding.until is None else f" until {clock(yielding.until, now)}"
    if yielding.kind == YIELDED:
        return f"The machine is yielded{until}; tasks wait. 6, then B takes it back."
    return f"It is outside of the active hours{until}, and tasks wait."


def yielding_effect(yielding: Yielding) -> str:
    """The same in few words, for a screen that says already until when."""
    if yielding.kind == IDLE:
        return IDLENESS
    ends = "B takes it back" if yielding.kind == YIELDED else "it is outside of the active hours"
    return f"The machine is free of workers and tasks wait; {ends}."
