"""Panes of the engine view: cards, timeline, nodes, shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.app.operations.this_machine import Disk, Memory
from marlaas.app.tui.screens.engine import (
    LABEL,
    SHARE,
    Line,
    axis,
    behind,
    busy_shares,
    cards,
    cores_text,
    disk,
    flow,
    nodes,
    processes,
    rate,
    shade,
    shares,
    starts,
    timeline,
)
from marlaas.app.tui.widgets.bars import worker_texts
from marlaas.engine.devices.machine import Holder
from marlaas.engine.home.disk import HomeSize
from marlaas.engine.store.queries.machine import DeviceRow, NodeRow, StageSample, StandingRow, TenantUse
from marlaas.engine.store.rows import EngineRow, WorkerRow

# Cards in the view of the engine, whatever their names and holders say.

GB = 1_000_000_000
OURS = DeviceRow("GPU-0", "gpu 0", "An H100", 80 * GB, 50 * GB, 0.37, "", (Holder(5, "me", 30 * GB, ours=True),), 1.0)
WHY = "gpu 1 is left alone: account anna holds 12.3 GB of it."
ANNAS = DeviceRow("GPU-1", "gpu 1", "An H100", 80 * GB, 67 * GB, None, WHY, (Holder(6, "anna", 12 * GB),), 1.0)


def texts(lines: Sequence[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def test_a_line_a_card_and_one_for_what_is_left_alone() -> None:
    assert cards([], "me", 80) == []
    headers, ours, annas, why = texts(cards([OURS, ANNAS], "me", 80))
    assert headers.split() == ["card", "name", "free", "busy", "held", "by"]
    assert "50.0 GB of 80.0 GB   37 %  this engine 30.0 GB" in ours
    assert "anna 12.0 GB" in annas and why == f"  {WHY}"


def test_nothing_is_obeyed() -> None:
    bad = "\x1b[2J\n[red]"
    row = DeviceRow("GPU-0", bad, bad, 1, 1, 0.5, bad, (Holder(6, bad, 12),), 1.0)
    for text in texts(cards([row], "me", 60)):
        assert "\x1b" not in text and "\n" not in text


def test_memory_of_cards_stands_beside_that_of_the_machine() -> None:
    workers = [
        WorkerRow("rollout", 5, "running", GB, 0.5, 1.0, 1.0),
        WorkerRow("engine", 4, "running", GB, 0.1, 1.0, 1.0),
    ]
    headers, engine, rollout = texts(processes(workers, {}, None, 2, 9.0, 100, {5: 30 * GB, 6: GB}))
    assert "memory  of cards" in headers and "1.0 GB   30.0 GB   50 %" in rollout and "30.0" not in engine
    assert "of cards" not in texts(processes(workers, {}, None, 2, 9.0, 100))[0]


@pytest.mark.parametrize("held", [None, {4: GB}])
def test_a_worker_without_a_process_shows_its_state(held: dict[int, int] | None) -> None:
    again = WorkerRow("rollout", None, "starting", 0, 0.0, 0.0, 1.0)
    line = texts(processes([again], {}, None, 2, 9.0, 100, held))[1]
    assert line.split() == ["rollout", "starting"]
    assert worker_texts([again]) == ["rollout starting"]


# The timeline: spans spread over cells by the clock, whatever the length of either.


def span(
    begun: float, wall: float = 1.0, busy: float = 0.5, stage: str = "rollout", device: str = "core 0"
) -> StageSample:
    return StageSample(stage, device, begun, wall, busy, 0.0, 0.0, 0, 0)


def shown(spans: list[StageSample], until: float, grain: int, count: int) -> list[tuple[str, str, str]]:
    """Label, cells and newest share of each line but the axis."""
    lines = timeline(spans, until, grain, count, 0.0)
    return [(line[0][0].strip(), line[1][0], line[2][0].strip()) for line in lines if len(line) == 3]


def test_samples_that_are_not_quite_a_second_leave_no_gap() -> None:
    spans = [span(100.2 + 1.1 * n, 1.1, 1.1) for n in range(8)]
    assert shown(spans, until=109.0, grain=1, count=9) == [("rollout core 0", "█" * 9, "100 %")]


def test_what_stands_for_a_minute_fills_its_cells() -> None:
    assert shown([span(60.0, 60.0, 15.0)], until=120.0, grain=15, count=6) == [("rollout core 0", "  ▒▒▒▒", "25 %")]


def test_a_worker_that_reports_late_was_busy_before() -> None:
    busy = (0.2, 0.0, 0.0, 2.5)
    late = [span(float(n), busy=share, stage=s) for s in ("rollout", "environment") for n, share in enumerate(busy)]
    rollout, environment = busy_shares(late, 4.0, 1, 5).values()
    assert rollout == [None, 0.2, 0.5, 1.0, 1.0]
    assert environment == [None, *busy], "several processes"
    assert [now for _, _, now in shown(late, 4.0, 1, 5)] == ["100 %", "250 %"]


def test_stages_come_in_the_order_of_an_episodes_way() -> None:
    spans = [span(0.0, stage=s, device=d) for s in ("engine", "training", "rollout") for d in "ba"]
    assert [label for label, _, _ in shown(spans, 1.0, 1, 3)] == [
        f"{stage} {device}" for stage in ("rollout", "training", "engine") for device in "ab"
    ]
    workers = [span(0.0, busy=n / 10, stage=f"env e{n}") for n in range(6)]
    spans = [span(0.0, stage=stage) for stage in ("training", "environment")] + workers
    labels = ["environment core…", "e2", "e3", "e4", "e5", "training core 0"]
    assert [label for label, _, _ in shown(spans, 1.0, 1, 3)] == labels
    assert shown([span(0.0)], until=500.0, grain=1, count=10) == []  # long ago


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
    shares = [share for _, _, share in samples]
    for cells in busy_shares(spans, until, grain, count).values():
        known = [cell for cell in cells if cell is not None]
        assert len(cells) == count and known
        assert all(min(shares) - 1e-6 <= cell <= max(shares) + 1e-6 for cell in known)


def test_shades_and_axis() -> None:
    assert "".join(map(shade, (None, 0.0, 0.004, 0.1, 0.3, 0.6, 0.8, 1.0, 1.7))) == " ··░▒▓███"
    assert axis(40, 15, 0.0) == " " * LABEL + "-10m00" + " " * 14 + "-5m00" + " " * 12 + "now"
    assert axis(40, 15, 200.0).endswith("3m20 ago") and axis(4, 1, 0.0) == " " * LABEL + "now"


def test_a_line_is_label_cells_and_share() -> None:
    (line, below) = timeline([span(0.0, 3.0, 1.5, device="\x1b[31m" * 9 + "d" * 40)], 3.0, 1, 3, 0.0)
    assert [len(text) for text, _ in line] == [LABEL, 3, SHARE] and line[1][0] == "▓▓▓" and line[2][0] == "  50 %"
    assert timeline([], 0.0, 1, 3, 0.0)[0][0][0].startswith("Nothing was measured") and len(below) == 1


# The pane of nodes: a line for each, what is to be said below it, and nothing of a name that a terminal would obey.

ADA = NodeRow(
    *("a1", "ada", "10.0.0.5", True, True, False, "", 16, 10**10),
    *(("gpu 0 H1",), ("gpu 1 is left alone: bob holds it.",), 0.25, "Python 3.12.3", ("rollout", "training"), 5.0),
)
BOB = NodeRow("b2", "bob\x1b[2J", "10.0.0.6", True, False, refused="torch is older there.\x1b]0;x\x07")


def test_without_a_cluster_there_is_no_pane() -> None:
    assert nodes((), 80) == []


def test_each_node_has_a_line_and_what_is_wrong_another() -> None:
    text = ["".join(part for part, _ in line) for line in nodes((ADA, BOB, replace(ADA, alive=False)), 140)]
    assert text[0].startswith("node") and text[1].startswith("ada (here)") and "1 of 2" in text[1]
    assert text[2] == "  ada: gpu 1 is left alone: bob holds it."
    assert "refused" in text[3] and "is not used: torch is older there." in text[4] and "gone" in text[5]


def test_names_and_reasons_of_others_are_text() -> None:
    for width in (20, 60, 140):
        shown = "".join(part for line in nodes((BOB,), width) for part, _ in line)
        assert shown.isprintable()


# Fair shares of the day, and who is behind.


def used(bio: float, lab: float) -> list[TenantUse]:
    return [TenantUse("bio", 1.0, bio, 0.0), TenantUse("lab", 2.0, lab, 1.0)]


def texts_of(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_shares_are_of_each_device_and_the_greatest_comes_first() -> None:
    standings = [StandingRow("rollout", "bio", 4, 15_000.0), StandingRow("training", "bio", 1, 2e6)]
    (_, first, second) = texts_of(shares(used(1, 3), standings, 100))
    assert first.split() == ["lab", "2", "75", "%", "100", "%", "idle"]
    assert second.split() == ["bio", "1", "25", "%", "0", "%", "5", "15.0k", "tokens,", "2", "s"]
    assert texts_of(shares([], [], 80)) == ["No tenant has used anything today."]
    assert behind(StandingRow("rollout", "bio", 1, 0.0), None) == "nothing"


def test_rates_are_over_the_seconds_in_which_an_engine_ran() -> None:
    turns = StageSample("rollout", "core 0", 0.0, 30.0, 1.0, 2.0, 7.0, 60, 9000)
    engine = StageSample("engine", "cpu", 0.0, 30.0, 1.0, 0.0, 0.0, 0, 0)
    lines = texts_of(flow({"rollout": turns}, {"rollout": turns, "engine": engine}, 10, 100))
    assert lines[1].split() == ["rollout", "2", "7", "2", "turns/s,", "300", "tokens", "sampled/s"]
    assert lines[4].endswith("20 a minute") and rate(5, StageSample("x", "", 0, 0, 0, 0, 0, 0, 0)) == "0"


def test_the_machine_in_words() -> None:
    assert [cores_text(frozenset(cores)) for cores in ((), (3,), (0, 1, 2), (0, 2))] == ["", "3", "0-2", "0,2"]
    (nobody, memory) = texts_of(processes([], {}, Memory(10_000_000_000, 4_000_000_000), 1, 0.0, 80))
    assert nobody.startswith("No engine runs") and memory.endswith("4.0 GB of 10.0 GB free · 1 core")
    short = disk(Disk(100, HomeSize(1, 2, 3, 4), reserve=1000.0, limit=5.0))
    assert "error" in short[1][0][1] and "or when the home takes more than 5 B" in short[1][0][0]
    assert texts_of(disk(None)) == ["The disk of this home cannot be looked at."]


def test_an_engine_that_never_said_stopped_ended_without_a_word() -> None:
    def one(number: int, state: str) -> EngineRow:
        return EngineRow(number, 1, state, 100.0, 160.0, "tiny", "", sampler="torch")

    engines = [one(3, "running"), one(2, "running"), one(1, "stopped")]
    alive, dead = (
        texts_of(starts(engines, 200.0, True, 100)),
        texts_of(starts(engines, 200.0, False, 100)),
    )
    assert "running" in alive[1] and "ended unexpectedly" in alive[2] and "stopped" in alive[3]
    assert "ended unexpectedly" in dead[1]


def test_stages_of_which_nothing_is_known_are_one_sentence() -> None:
    assert texts_of(flow({}, {}, 0, 80)) == ["Nothing was measured in the last minute."]
