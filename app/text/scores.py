"""Held-out scores in words: errors, comparisons, tables, matrices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .format import line, score
from .tasks import LONGEST, measured_on, newest_series
from .terms import with_new_names

if TYPE_CHECKING:
    from marlaas.engine.store.queries.learning import Matchup
    from marlaas.engine.store.rows import EvalRow, PolicyRow, ScoreBasis


def with_error(value: float | None, basis: ScoreBasis | None) -> str:
    """``0.58 ± 0.03``, ``no score``, or ``-`` without a measurement."""
    if basis is None:
        return score(value)
    return "no score" if value is None else f"{score(value)} ± {score(basis.stderr)}"


def rests_on(basis: ScoreBasis) -> str:
    """Prompts and episodes of a score, failures, and several samples of a prompt."""
    words = (
        f"{basis.prompts} prompt{'s' * (basis.prompts != 1)}",
        f"{basis.samples} samples of each" if basis.samples > 1 else "",
        "" if basis.pass_at is None else f"pass@{basis.samples} {score(basis.pass_at)}",
        "" if basis.best_of is None else f"best@{basis.samples} {score(basis.best_of)}",
        failed(basis) if basis.failures else "",
    )
    return ", ".join(filter(None, words))


def failed(basis: ScoreBasis) -> str:
    """How many of the episodes failed."""
    return f"{basis.failures} of {basis.n + basis.failures} episodes failed"


def scored_at(value: float | None, basis: ScoreBasis, step: int, unit: str = "") -> str:
    """``0.58 ± 0.03 at step 20 (2 of 64 episodes failed)``; ``unit`` is ``step`` here."""
    lost = f" ({failed(basis)})" if basis.failures else ""
    return f"{with_error(value, basis)} at {f'{unit} ' if unit else ''}{step:,}{lost}"


def held_out(value: float | None, basis: ScoreBasis | None) -> str:
    """A score with all its facts, or why there is none."""
    if basis is None:
        return score(value)
    if value is None:
        return f"no score: {failed(basis)}"
    return f"{with_error(value, basis)} ({rests_on(basis)})"


MOST_SCORES = 6
"""Of a line that has them all."""
HEADERS = ("VERSION", "SCORE", "± 1 SE", "EPISODES", "FAILED", "PROMPTS", "BASELINE")
SAMPLED = ("PASS@K", "BEST@K")


def measured_table(
    rows: Mapping[str, Sequence[EvalRow]],
) -> tuple[tuple[str, ...], list[tuple[str, ...]], tuple[str, ...]]:
    """Headers, rows, and right-aligned headers for ``output.result_table``.

    ``rows``: evaluations by version; the newest counts.
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
    """The newest evaluation by version; None: none yet."""
    return {words: with_new_names(asdict(own[-1])) if own else None for words, own in rows.items()}


def score_text(row: EvalRow | None) -> str:
    """With its error, or why there is none."""
    if row is None:
        return "not yet"
    return f"{score(row.score)} ± {score(row.stderr)}" if row.score is not None else f"{row.failures} failed"


def scores_by_step(rows: Sequence[EvalRow], on: str = "") -> str:
    """Scores of the newest series, the only comparable ones: all, or first, best and last of many.

    ``on``: as in ``measured_on``.
    """
    series = newest_series(rows, on)
    earlier = sum(measured_on(row) == on for row in rows) - len(series)
    picked, best, left_out = series, None, ""
    if len(series) > MOST_SCORES:
        best = max(series, key=lambda row: -math.inf if row.score is None else row.score)
        picked, left_out = [row for row in series if row in (series[0], best, series[-1])], f"; {len(series)} in all"
    scores = ", ".join(
        f"{'best ' if row is best else ''}{scored_at(row.score, row, row.step, 'step')}" for row in picked
    )
    return f"{scores}{left_out}" + (f"; {earlier} of earlier series" if earlier else "")


def held_out_lines(rows: Sequence[EvalRow]) -> list[tuple[str, str]]:
    """Scores on suites and on the split test, by step."""
    return [(line(on, 24), scores_by_step(rows, on)) for on in sorted({measured_on(row) for row in rows} - {""})]


def shares_of(config: Mapping[str, Any]) -> dict[str, float]:
    """By a mixture's component, summing to 1; empty without a mixture."""
    shares = {part["name"] or part["environment"]: float(part["share"]) for part in config.get("mixture", ())}
    return {name: share / sum(shares.values()) for name, share in shares.items()}


def component_lines(shares: Mapping[str, float], rows: Sequence[EvalRow]) -> list[str]:
    """Each component's share and newest score."""
    lines = []
    for name, share in shares.items():
        own = [row for row in rows if row.suite == name]
        newest = [row for on in sorted({measured_on(row) for row in own}) for row in newest_series(own, on)[-1:]]
        scores = [
            f"{'held-out' if row.split == 'eval' else line(row.split)} {score_text(row)} at step {row.step}"
            f" ({rests_on(row)})"
            for row in newest
        ]
        lines.append(", ".join([f"{line(name)} {share:.0%}", *scores]))
    return lines


# Win-rates between versions. If winning pays 1 and losing 0, a mean reward is the share of games won.

CELL = 17
"""Cells of a column, with its space."""


@dataclass(frozen=True)
class Meeting:
    """A cell of the table."""

    games: int
    mean: float
    stderr: float
    """Of the mean; 0 for a single game."""


@dataclass(frozen=True)
class Matrix:
    """One policy's versions against another's."""

    policy: str
    against: str
    """A policy, or a version in words."""
    cells: Mapping[tuple[int, int], Meeting] = field(default_factory=dict)
    """By (row, column); not every pair has met."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Newest first."""
        return tuple(sorted({row for row, _ in self.cells}, reverse=True))

    @property
    def columns(self) -> tuple[int, ...]:
        """Oldest first."""
        return tuple(sorted({column for _, column in self.cells}))

    def columns_for(self, room: int) -> tuple[int, ...]:
        """The columns that fit: those that most rows have met, else spread over all."""
        met, spread = Counter(column for _, column in self.cells), shown(self.columns, room)
        chosen = sorted(self.columns, key=lambda column: (-met[column], column not in spread))
        return tuple(sorted(chosen[: max(1, room)]))

    @property
    def title(self) -> str:
        return f"{line(self.policy, LONGEST)} against {line(self.against, LONGEST)}"


def matrices(pairs: Iterable[Matchup], policies: Sequence[PolicyRow], policy: str) -> list[Matrix]:
    """A table for each opponent, the policy itself first; empty if it met none.

    Versions of a pool, and ``NAME@0``, count as versions of their policy.
    """
    met: dict[str, dict[tuple[int, int], list[Matchup]]] = {}
    for pair in pairs:
        who, version = _who(pair.who, pair.version, policies)
        against, column = _who(pair.against, pair.against_version, policies)
        if who == policy and (who, version) != (against, column):
            met.setdefault(against, {}).setdefault((version, column), []).append(pair)
    others = sorted(met, key=lambda against: (against != policy, against))
    return [Matrix(policy, name, {place: _meeting(of) for place, of in met[name].items()}) for name in others]


def _meeting(pairs: Sequence[Matchup]) -> Meeting:
    games = sum(pair.games for pair in pairs)
    mean = sum(pair.total for pair in pairs) / games
    variance = max(0.0, sum(pair.squares for pair in pairs) / games - mean * mean)
    return Meeting(games, mean, math.sqrt(variance / (games - 1)) if games > 1 else 0.0)


def _who(said: str, version: int, policies: Sequence[PolicyRow]) -> tuple[str, int]:
    """The policy of a speaker's version, which may be a pool's or frozen."""
    names = {policy.name for policy in policies}
    for policy in policies:
        if policy.name == said and policy.pool:
            return policy.pool, version
        if policy.name == said and policy.frozen:
            said = policy.frozen
            break
    own, at, number = said.partition("@")
    return (own, 0) if at and number == "0" and own in names else (said, version)


def shown(versions: Sequence[int], room: int) -> tuple[int, ...]:
    """Versions that fit, evenly spread, with first and last."""
    if len(versions) <= max(1, room):
        return tuple(versions)
    if room < 2:
        return (versions[-1],)
    last = len(versions) - 1
    return tuple(versions[round(place * last / (room - 1))] for place in range(room))


def cell_text(meeting: Meeting | None) -> str:
    """Mean ± error (games); a point if they have not met."""
    if meeting is None:
        return "·"
    games = str(meeting.games) if meeting.games < 10_000 else f"{meeting.games // 1000}k"
    return f"{score(meeting.mean)}±{score(meeting.stderr)} n{games}"


# The difference between two versions on the same prompts, with its interval. Pure arithmetic.
#
# Versions that are measured on the same prompts find the same prompts hard, so the difference by prompt varies less
# than the two scores do: Miller, *Adding Error Bars to Evals* (arXiv 2411.00640), section 4, if the error of a
# paired difference comes from the differences by prompt. The interval is that of Student's t, which is wider than the
# normal one where prompts are few. A bootstrap would need no assumption about the mean's distribution, but with few
# prompts it gives intervals that are too narrow, and it would depend on a seed.

LEVEL = 0.95
"""Coverage of the interval."""


@dataclass(frozen=True)
class Difference:
    """Score of one version minus another's, on common prompts."""

    mean: float
    low: float
    high: float
    """Of the 95 % interval, by prompt."""
    prompts: int
    differing: int
    """Prompts with a difference."""


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """``first`` minus ``second``, by prompt; None for fewer than two common prompts."""
    common = sorted(first.keys() & second.keys())
    if len(common) < 2:
        return None
    differences = [first[prompt] - second[prompt] for prompt in common]
    n = len(differences)
    mean = math.fsum(differences) / n
    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in differences) / (n - 1))
    half = t_quantile(0.5 + LEVEL / 2, n - 1) * deviation / math.sqrt(n)
    return Difference(mean, mean - half, mean + half, n, sum(one != 0 for one in differences))


def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t; ``probability`` > 0.5, ``freedom`` ≥ 1."""
    low, high = 0.0, 1.0
    while _central(high, freedom) < 2 * probability - 1:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _central(middle, freedom) < 2 * probability - 1 else (low, middle)
    return high


def _central(t: float, freedom: int) -> float:
    """The probability between -t and t: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(1, (freedom + 1) // 2 if odd else freedom // 2 + 1):
        total += term
        term *= cosine**2 * (2 * k / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
