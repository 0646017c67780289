"""The timeline: spans spread over cells by the clock, whatever the length of either."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.app.widgets.engine_panes import LABEL, SHARE, axis, lines, rows, shade
from marlaas.engine.store.queries.machine import StageSample


def span(
    begun: float, wall: float = 1.0, busy: float = 0.5, stage: str = "rollout", device: str = "core 0"
) -> StageSample:
    return StageSample(stage, device, begun, wall, busy, 0.0, 0.0, 0, 0)


def test_samples_that_are_not_quite_a_second_leave_no_gap() -> None:
    (row,) = rows([span(100.2 + 1.1 * n, 1.1, 1.1) for n in range(8)], until=109.0, grain=1, count=9)
    assert row.cells == pytest.approx([1.0] * 9)


def test_what_stands_for_a_minute_fills_its_cells() -> None:
    (row,) = rows([span(60.0, 60.0, 15.0)], until=120.0, grain=15, count=6)
    assert row.cells == (None, None, 0.25, 0.25, 0.25, 0.25) and row.newest == 0.25


def test_a_worker_that_tells_late_was_busy_before() -> None:
    busy = (0.2, 0.0, 0.0, 2.5)
    late = [span(float(n), busy=share, stage=s) for s in ("rollout", "environment") for n, share in enumerate(busy)]
    rollout, environment = rows(late, 4.0, 1, 5)
    assert rollout.cells == (None, 0.2, 0.5, 1.0, 1.0)
    assert environment.cells == (None, *busy)  # several processes


def test_stages_come_in_the_order_of_an_episodes_way() -> None:
    found = rows([span(0.0, stage=s, device=d) for s in ("engine", "training", "rollout") for d in "ba"], 1.0, 1, 3)
    assert [(row.stage, row.device) for row in found] == [
        (s, d) for s in ("rollout", "training", "engine") for d in "ab"
    ]
    workers = [span(0.0, busy=n / 10, stage=f"env e{n}") for n in range(6)]
    found = rows([span(0.0, stage=stage) for stage in ("training", "environment")] + workers, 1.0, 1, 3)
    assert [row.stage for row in found] == ["environment", "env e2", "env e3", "env e4", "env e5", "training"]
    assert [row.label for row in found[:2]] == ["environment core 0", "  e2"]
    assert rows([span(0.0)], until=500.0, grain=1, count=10) == []  # long ago


@given(
    st.lists(st.tuples(st.floats(0, 200), st.floats(0.1, 90), st.floats(0, 1)), max_size=20),
    st.sampled_from([1, 5, 15, 60]),
    st.integers(1, 50),
)
def test_shares_stay_within_what_was_measured(
    samples: list[tuple[float, float, float]], grain: int, count: int
) -> None:
    spans = [span(begun, wall, wall * share) for begun, wall, share in samples]
    until = max((one.begun + one.wall for one in spans), default=0.0)
    for row in rows(spans, until, grain, count):
        known = [cell for cell in row.cells if cell is not None]
        assert len(row.cells) == count and known
        assert all(
            min(s for _, _, s in samples) - 1e-6 <= cell <= max(s for _, _, s in samples) + 1e-6 for cell in known
        )


def test_shades_and_axis() -> None:
    assert "".join(map(shade, (None, 0.0, 0.004, 0.1, 0.3, 0.6, 0.8, 1.0, 1.7))) == " ··░▒▓███"
    assert axis(40, 15, 0.0) == " " * LABEL + "-10m00" + " " * 14 + "-5m00" + " " * 12 + "now"
    assert axis(40, 15, 200.0).endswith("3m20 ago") and axis(4, 1, 0.0) == " " * LABEL + "now"


def test_a_line_is_label_cells_and_share() -> None:
    (line, below) = lines(rows([span(0.0, 3.0, 1.5, device="\x1b[31m" * 9 + "d" * 40)], 3.0, 1, 3), 1, 0.0)
    assert [len(text) for text, _ in line] == [LABEL, 3, SHARE] and line[1][0] == "▓▓▓" and line[2][0] == "  50 %"
    assert lines([], 1, 0.0)[0][0][0].startswith("Nothing was measured") and len(below) == 1
