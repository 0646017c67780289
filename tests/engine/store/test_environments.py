"""Findings by version: kept once, shown beside the version that serves, forgotten with old versions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from marlaas.engine.environments.conformance.finding import LONGEST, MOST, Finding
from marlaas.engine.environments.health import Standstill
from marlaas.engine.environments.protocol import Crew, EnvironmentInfo
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.telemetry import CHECKS_KEPT, FAILING_KEPT
from marlaas.engine.trajectories import Failure

BASELINE = Finding("baseline", "error", "The answer '0' scores 0.94.")
NOTE = Finding("latency", "note", "It is quick: \x1b[2J")


def test_findings_belong_to_the_version_that_serves(store: Store, database: Path) -> None:
    serving = [EnvironmentInfo("a/b", "v1", "ready"), EnvironmentInfo("c", "", "broken")]
    store.telemetry.environments(serving)
    with Reader(database) as reader:
        assert [(row.checked, row.findings) for row in reader.environments()] == [(None, ()), (None, ())]
        store.environments.add_findings("a/b", "v0", "base", [NOTE])
        assert reader.environments()[0].checked is None
        store.environments.add_findings("a/b", "v1", "base", [BASELINE, NOTE])
        checked = reader.environments()[0]
        assert checked.findings == (BASELINE, NOTE) and checked.checked is not None
        store.environments.add_findings("a/b", "v1", "base", [])
        assert reader.environments()[0].findings == ()


def test_processes_are_told_while_they_come_and_go(store: Store, database: Path) -> None:
    quiet, busy = EnvironmentInfo("a/b", "v1", "ready"), Crew(playing=2, scoring=1, live=40, waiting=3)
    with Reader(database) as reader:

        def seen() -> list[tuple[int, int, int, int]]:
            return [(row.playing, row.scoring, row.live, row.waiting) for row in reader.environments()]

        store.telemetry.environments([quiet, EnvironmentInfo("c/d", "v2", "ready", crew=Crew(1))])
        assert seen() == [(0, 0, 0, 0), (1, 0, 0, 0)]
        infos = [replace(quiet, crew=busy), EnvironmentInfo("c/d", "v2", "ready", crew=Crew(1))]
        store.telemetry.environments(infos)
        assert seen() == [(2, 1, 40, 3), (1, 0, 0, 0)]
        store.telemetry.environments([quiet])
        assert seen() == [(0, 0, 0, 0)]
        store.telemetry.environments([])
        assert seen() == []


def test_a_beat_writes_only_crews_that_changed(store: Store, database: Path) -> None:
    infos = [EnvironmentInfo(f"a/{number}", "v1", "ready", description="as it was") for number in range(3)]

    store.telemetry.environments(infos)
    with closing(sqlite3.connect(database, isolation_level=None)) as other:

        def changes() -> int:
            return int(other.execute("PRAGMA data_version").fetchone()[0])

        other.execute("UPDATE environments SET description = 'from elsewhere'")
        before = changes()
        store.telemetry.environments(list(infos))
        assert changes() == before
        infos[1] = replace(infos[1], crew=Crew(playing=2))
        store.telemetry.environments(infos)
        rows = "SELECT playing, description FROM environments ORDER BY name"
        assert other.execute(rows).fetchall() == [(playing, "from elsewhere") for playing in (0, 2, 0)]
        infos[2] = replace(infos[2], state="stale")
        store.telemetry.environments(infos)
        assert other.execute(rows).fetchall() == [(playing, "as it was") for playing in (0, 2, 0)]


def test_rows_of_an_earlier_engine_go(store: Store, database: Path) -> None:
    store.telemetry.environments([EnvironmentInfo("a/b", "v1", "ready")])
    store.close()
    with closing(Store(database, "tiny")) as later, Reader(database) as reader:
        later.telemetry.environments(())
        assert reader.environments() == []


def test_a_version_is_known_for_a_base(store: Store) -> None:
    assert not store.environments.is_checked("a/b", "v1", "base")
    store.environments.add_findings("a/b", "v1", "base", [])
    assert store.environments.is_checked("a/b", "v1", "base")
    assert not store.environments.is_checked("a/b", "v1", "another") and not store.environments.is_checked(
        "a/c", "v1", "base"
    )


def test_old_versions_are_forgotten(store: Store) -> None:
    store.environments.add_findings("other/one", "v0", "base", [])
    for number in range(CHECKS_KEPT + 2):
        store.environments.add_findings("a/b", f"v{number}", "base", [])
    known = [number for number in range(CHECKS_KEPT + 2) if store.environments.is_checked("a/b", f"v{number}", "base")]
    assert known == list(range(2, CHECKS_KEPT + 2)) and store.environments.is_checked("other/one", "v0", "base")


def test_what_is_kept_is_bounded_and_says_so(store: Store, database: Path) -> None:
    store.telemetry.environments([EnvironmentInfo("a/b", "v1", "ready")])
    store.environments.add_findings("a/b", "v1", "base", [Finding("junk", "error", "x" * 5_000_000)] * 1000)
    with Reader(database) as reader:
        findings = reader.environments()[0].findings
    assert findings[-1] == Finding("check", "note", "900 more findings are left out.")
    assert len(findings) == MOST + 1
    assert findings[0].message == "x" * LONGEST + "… (4,998,000 more characters)"


def test_what_only_fails_is_kept_by_version(store: Store) -> None:
    one = Standstill(("sums", '{"digits": 2}'), Failure("ZeroDivisionError", "sums.py", 7), 120.0)
    two = Standstill(("pig", "{}"), Failure("x" * 5000), 60.0)
    store.environments.replace_failing("games", "v1", [one, two], now=1e9)
    store.environments.replace_failing("games", "v2", [two], now=1e9)
    kept = store.environments.failing()
    assert kept["games", "v1"] == [one, replace(two, failure=Failure("x" * 1000))]
    store.environments.replace_failing("games", "v1", [one], now=1e9)
    assert store.environments.failing()["games", "v1"] == [one]
    store.environments.replace_failing("games", "v1", [], now=1e9 + FAILING_KEPT + 1)
    assert store.environments.failing() == {}, "the other version was served a month ago"
