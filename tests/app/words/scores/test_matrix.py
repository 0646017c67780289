"""Win-rates between versions: pairs of the store as tables."""

from __future__ import annotations

import math
import statistics

from hypothesis import given, strategies as st

from marlaas.app.words.scores import CELL, Meeting, cell_text, matrices, shown
from marlaas.engine.store.queries.learning import Matchup
from marlaas.engine.store.rows import PolicyRow

POLICIES = (
    PolicyRow("player", ("first",)),
    PolicyRow("rivals", ("second",), pool="player"),
    PolicyRow("old", ("third",), frozen="player@0"),
    PolicyRow("base_line", ("fourth",), frozen="base"),
)


def pair(version: int, against: str, against_version: int, *rewards: float) -> Matchup:
    squares = math.fsum(reward * reward for reward in rewards)
    return Matchup("player", version, against, against_version, len(rewards), math.fsum(rewards), squares)


def test_pools_and_beginnings_count_as_what_they_are() -> None:
    pairs = [
        pair(5, "player@0", 0, 1, 0),
        pair(5, "rivals", 0, 1, 1),
        pair(5, "old", 0, 1, 1),
        pair(6, "rivals", 5, 0.5),
        pair(6, "rivals", 6, 0.5),
        pair(6, "base_line", 0, 1.0),
        Matchup("rivals", 5, "player", 6, 1, 0.5, 0.25),
        Matchup("judge", 1, "player", 6, 1, 0.5, 0.25),
    ]
    itself, base = matrices(pairs, POLICIES, "player")
    assert (itself.against, itself.rows, itself.columns) == ("player", (6, 5), (0, 5, 6))
    assert itself.cells[5, 0].games == 6 and itself.cells[5, 0].mean == 5 / 6
    assert itself.cells[6, 5].games == 1 and (6, 6) not in itself.cells, "against itself nothing is learned"
    assert itself.cells[5, 6] == Meeting(1, 0.5, 0.0), "the pool's side is the player's, too"
    assert (base.against, base.cells) == ("base", {(6, 0): Meeting(1, 1.0, 0.0)})
    assert matrices(pairs, POLICIES, "nobody") == [] and itself.title == "player against player"


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=40))
def test_means_have_the_standard_error_of_the_sample(rewards: list[float]) -> None:
    (matrix,) = matrices([pair(3, "judge", 1, *rewards)], POLICIES, "player")
    cell = matrix.cells[3, 1]
    assert cell.games == len(rewards) and math.isclose(cell.mean, statistics.fmean(rewards), abs_tol=1e-9)
    assert math.isclose(cell.stderr, statistics.stdev(rewards) / math.sqrt(len(rewards)), abs_tol=1e-6)


@given(st.lists(st.integers(0, 1000), unique=True).map(sorted), st.integers(1, 20))
def test_where_there_is_no_room_some_versions_stand_for_all(versions: list[int], room: int) -> None:
    some = shown(versions, room)
    assert len(some) == min(room, len(versions)) == len(set(some)) and set(some) <= set(versions)
    if versions:
        assert some[-1] == versions[-1] and (room == 1 or some[0] == versions[0])


def test_cells() -> None:
    assert cell_text(None) == "·" and cell_text(Meeting(64, 0.71875, 0.0566)) == "0.72±0.06 n64"
    assert all(len(cell_text(Meeting(games, -0.123, 0.456))) < CELL for games in (9999, 123456)), (
        "what tables leave for one"
    )


def test_columns_that_many_have_met_come_before_others() -> None:
    """Evaluations are against version 0, the pool brings in one now and then."""
    pairs = [pair(step, "player@0", 0, 1.0) for step in range(1, 9)] + [pair(8, "rivals", n, 1.0) for n in (2, 4, 6)]
    (matrix,) = matrices(pairs, POLICIES, "player")
    assert matrix.columns_for(1) == (0,) and matrix.columns_for(2) == (0, 6) and matrix.columns_for(99) == (0, 2, 4, 6)
