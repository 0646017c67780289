"""Why an engine has no workers, in words."""

from __future__ import annotations

from marlaas.engine.fleet import TAKEN_BACK, state
from marlaas.engine.store import HOURS, IDLE, YIELDED, EngineRow, Rest

IDLENESS = "Nothing runs: cards and memory were given back; the next task starts the workers."


def rest_of(engine: EngineRow | None) -> Rest | None:
    """Why an engine has no workers, as a value; None while it has some, or is not alive."""
    return Rest(engine.rest, engine.rest_until) if engine is not None and engine.rest else None


def rest_text(rest: Rest, now: float) -> str:
    """Why the engine has no workers, in a sentence."""
    if rest.kind == YIELDED:
        yields = f"The engine has {state(rest, now).replace('yielded', 'yielded the machine')}"
        return f"{yields}: its workers have ended, cards and memory are free, and tasks wait; {TAKEN_BACK}."
    if rest.kind == HOURS:
        return f"The engine is {state(rest, now)}: it is outside of its active hours, and tasks wait."
    return IDLENESS


def rest_effect(rest: Rest) -> str:
    """The same in few words, for a screen that already shows until when."""
    if rest.kind == IDLE:
        return IDLENESS
    ends = "B takes it back" if rest.kind == YIELDED else "it is outside of the active hours"
    return f"The machine is free of workers and tasks wait; {ends}."
