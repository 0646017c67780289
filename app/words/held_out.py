"""A held-out score in words, with its error and what it rests on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .format import score

if TYPE_CHECKING:
    from marlaas.engine.store import ScoreBasis


def with_error(value: float | None, basis: ScoreBasis | None) -> str:
    """A score with its standard error, in a few cells: ``0.58 ± 0.03``, ``no score``, or ``-`` where nothing was
    measured."""
    if basis is None:
        return score(value)
    return "no score" if value is None else f"{score(value)} ± {score(basis.stderr)}"


def rests_on(basis: ScoreBasis) -> str:
    """On how many prompts and episodes a score rests, what failed, and what several samples of a prompt say."""
    words = [f"{basis.prompts} prompt{'s' * (basis.prompts != 1)}"]
    if basis.samples > 1:
        words.append(f"{basis.samples} samples of each")
    if basis.pass_at is not None:
        words.append(f"pass@{basis.samples} {score(basis.pass_at)}")
    if basis.best_of is not None:
        words.append(f"best@{basis.samples} {score(basis.best_of)}")
    if basis.failures:
        words.append(failed(basis))
    return ", ".join(words)


def failed(basis: ScoreBasis) -> str:
    """How many of the episodes failed."""
    return f"{basis.failures} of {basis.n + basis.failures} episodes failed"


def scored_at(value: float | None, basis: ScoreBasis, step: int, unit: str = "") -> str:
    """A score in a list by step: ``0.58 ± 0.03 at step 20 (2 of 64 episodes failed)``; ``unit`` is ``step`` there."""
    lost = f" ({failed(basis)})" if basis.failures else ""
    return f"{with_error(value, basis)} at {f'{unit} ' if unit else ''}{step:,}{lost}"


def held_out(value: float | None, basis: ScoreBasis | None) -> str:
    """All that there is to say of a score in one place; why there is none, where there is none."""
    if basis is None:
        return score(value)
    if value is None:
        return f"no score: {failed(basis)}"
    return f"{with_error(value, basis)} ({rests_on(basis)})"
