"""Fair shares: of the day until a minute is known, and who is behind."""

from __future__ import annotations

from marlaas.app.home.this_machine import Disk, Memory
from marlaas.app.widgets.engine_panes import (
    Line,
    UsedLately,
    behind,
    cores_text,
    disk,
    flow,
    processes,
    rate,
    shares,
    starts,
)
from marlaas.engine.home.disk import HomeSize
from marlaas.engine.store.queries.machine import StageSample, StandingRow, TenantUse
from marlaas.engine.store.rows import EngineRow


def used(bio: float, lab: float) -> list[TenantUse]:
    return [TenantUse("bio", 1.0, bio, 0.0), TenantUse("lab", 2.0, lab, 1.0)]


def texts(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_the_day_counts_until_a_few_seconds_are_known() -> None:
    lately = UsedLately()
    assert lately.add(100.0, used(10, 0)) == (0.0, used(10, 0))
    assert lately.add(101.0, used(10, 1))[0] == 0.0
    back, since = lately.add(108.0, used(11, 3))
    assert back == 8.0 and [(one.rollout, one.training) for one in since] == [(1.0, 0.0), (3.0, 0.0)]
    for second in range(109, 300):
        back, since = lately.add(float(second), used(second / 10, 3))
    assert 60 <= back <= 65 and abs(since[0].rollout - back / 10) < 1e-9


def test_another_day_and_a_clock_that_goes_back_begin_anew() -> None:
    lately = UsedLately()
    lately.add(100.0, used(50, 50))
    assert lately.add(110.0, used(0, 1)) == (0.0, used(0, 1))
    assert lately.add(50.0, used(0, 1))[0] == 0.0


def test_shares_are_of_each_device_and_the_greatest_comes_first() -> None:
    standings = [StandingRow("rollout", "bio", 4, 15_000.0), StandingRow("training", "bio", 1, 2e6)]
    (_, first, second) = texts(shares(used(1, 3), standings, 100))
    assert first.split() == ["lab", "2", "75", "%", "100", "%", "idle"]
    assert second.split() == ["bio", "1", "25", "%", "0", "%", "5", "15.0k", "tokens,", "2", "s"]
    assert texts(shares([], [], 80)) == ["No tenant has used anything today."]
    assert behind(StandingRow("rollout", "bio", 1, 0.0), None) == "nothing"


def test_rates_are_over_the_seconds_in_which_an_engine_ran() -> None:
    turns = StageSample("rollout", "core 0", 0.0, 30.0, 1.0, 2.0, 7.0, 60, 9000)
    engine = StageSample("engine", "cpu", 0.0, 30.0, 1.0, 0.0, 0.0, 0, 0)
    lines = texts(flow({"rollout": turns}, {"rollout": turns, "engine": engine}, 10, 100))
    assert lines[1].split() == ["rollout", "2", "7", "2", "turns/s,", "300", "tokens", "sampled/s"]
    assert lines[4].endswith("20 a minute") and rate(5, StageSample("x", "", 0, 0, 0, 0, 0, 0, 0)) == "0"


def test_the_machine_in_words() -> None:
    assert [cores_text(frozenset(cores)) for cores in ((), (3,), (0, 1, 2), (0, 2))] == ["", "3", "0-2", "0,2"]
    (nobody, memory) = texts(processes([], {}, Memory(10_000_000_000, 4_000_000_000), 1, 0.0, 80))
    assert nobody.startswith("No engine runs") and memory.endswith("4.0 GB of 10.0 GB free · 1 core")
    short = disk(Disk(100, HomeSize(1, 2, 3, 4), reserve=1000.0, limit=5.0))
    assert "error" in short[1][0][1] and "or when the home takes more than 5 B" in short[1][0][0]
    assert texts(disk(None)) == ["The disk of this home cannot be looked at."]


def test_an_engine_that_never_said_stopped_ended_without_a_word() -> None:
    def one(number: int, state: str) -> EngineRow:
        return EngineRow(number, 1, state, 100.0, 160.0, "tiny", "", sampler="torch")

    engines = [one(3, "running"), one(2, "running"), one(1, "stopped")]
    alive, dead = texts(starts(engines, 200.0, True, 100)), texts(starts(engines, 200.0, False, 100))
    assert "running" in alive[1] and "ended unexpectedly" in alive[2] and "stopped" in alive[3]
    assert "ended unexpectedly" in dead[1]


def test_stages_of_which_nothing_is_known_are_one_sentence() -> None:
    assert texts(flow({}, {}, 0, 80)) == ["Nothing was measured in the last minute."]
