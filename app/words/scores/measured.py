"""What an evaluation has measured, as a table and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from marlaas.engine.store import EvalRow

from ..format import line, score
from ..tasks import measured_on, newest_series
from ..terms import with_new_names
from .held_out import rests_on

HEADERS = ("VERSION", "SCORE", "± 1 SE", "EPISODES", "FAILED", "PROMPTS", "BASELINE")
SAMPLED = ("PASS@K", "BEST@K")


def measured_table(
    rows: Mapping[str, Sequence[EvalRow]],
) -> tuple[tuple[str, ...], list[tuple[str, ...]], tuple[str, ...]]:
    """Headers, lines and the headers of what stands on the right, for ``output.result_table``.

    ``rows``: the evaluations of each version, by its words; the newest counts.
    """
    newest = {words: own[-1] if own else None for words, own in rows.items()}
    sampled = any(row is not None and row.samples > 1 for row in newest.values())
    headers = (*HEADERS, *(SAMPLED if sampled else ()))
    return headers, [_cells(words, row, sampled) for words, row in newest.items()], headers[1:]


def _cells(words: str, row: EvalRow | None, sampled: bool) -> tuple[str, ...]:
    if row is None:
        return (line(words, 40), *("-" for _ in range(len(HEADERS) - 1 + 2 * sampled)))
    return (
        line(words, 40),
        score(row.score),
        score(row.stderr) if row.score is not None else "-",
        str(row.n),
        str(row.failures),
        str(row.prompts),
        score(row.floor),
        *((score(row.pass_at), score(row.best_of)) if sampled else ()),
    )


def measured_json(rows: Mapping[str, Sequence[EvalRow]]) -> dict[str, Any]:
    """The newest evaluation of each version by its words; None where it has none yet."""
    return {words: with_new_names(asdict(own[-1])) if own else None for words, own in rows.items()}


def score_text(row: EvalRow | None) -> str:
    """A score with its standard error; why there is none, where there is none."""
    if row is None:
        return "not yet"
    return f"{score(row.score)} ± {score(row.stderr)}" if row.score is not None else f"{row.failures} failed"


def held_out_lines(rows: Sequence[EvalRow]) -> list[tuple[str, str]]:
    """A training task's newest scores on suites and on the split test: what it is of, and the scores by step."""
    lines = []
    for on in sorted({measured_on(row) for row in rows} - {""}):
        shown = ", ".join(f"{score_text(row)} at step {row.step}" for row in newest_series(rows, on))
        lines.append((line(on, 24), shown))
    return lines


def shares_of(config: Mapping[str, Any]) -> dict[str, float]:
    """The share of each component of a task's mixture, by its name: they sum to 1; nothing where it has none."""
    shares = {part["name"] or part["environment"]: float(part["share"]) for part in config.get("mixture", ())}
    return {name: share / sum(shares.values()) for name, share in shares.items()}


def component_lines(shares: Mapping[str, float], rows: Sequence[EvalRow]) -> list[str]:
    """Each component of a mixture with its share, and its newest scores with what they rest on."""
    lines = []
    for name, share in shares.items():
        own = [row for row in rows if row.suite == name]
        newest = [row for on in sorted({measured_on(row) for row in own}) for row in newest_series(own, on)[-1:]]
        scores = [f"{measured_as(row)} {score_text(row)} at step {row.step} ({rests_on(row.basis)})" for row in newest]
        lines.append(", ".join([f"{line(name)} {share:.0%}", *scores]))
    return lines


def measured_as(row: EvalRow) -> str:
    """What a score on a split is called."""
    return "held-out" if row.split == "eval" else line(row.split)
