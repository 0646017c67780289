"""Rows of the queue and of the machine: tasks, commands, tenants, clients, environments, nodes, samples and events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.environments.conformance.finding import LONGEST, MOST, Finding
from marlaas.engine.environments.health import Standstill
from marlaas.engine.environments.protocol import Crew, EnvironmentInfo
from marlaas.engine.errors import ConfigError, StoreError
from marlaas.engine.fairness.line import ENVIRONMENT, ROLLOUT, TRAINING, Usage
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import QueueSpec, TaskSpec
from marlaas.engine.store import tasks as tenants
from marlaas.engine.store.database import open_database
from marlaas.engine.store.queries import machine as events
from marlaas.engine.store.queries.learning import GivenName, given_names
from marlaas.engine.store.queries.machine import EventFilter, StageSample
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import ACTIVE, NO_REASON, ApiRow, Reason, ReasonCode, Tenant
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import add_key, command, revoke_key, submit
from marlaas.engine.store.tasks import Needed, today
from marlaas.engine.store.telemetry import DAY, FAILING_KEPT, HOUR, KEPT
from marlaas.engine.store.versions import NewVersion
from marlaas.engine.trajectories import Failure

from ..by_hand import rows


def test_the_queue_runs_by_priority_then_by_age(store: Store, database: Path) -> None:
    urgent = TaskSpec("lab", "urgent", "guess", queue=QueueSpec(priority=5))
    assert submit(database, [submission(urgent), submission(TaskSpec("b", "c", "d"))]) == [2, 3]
    assert [task.id for task in store.tasks.unfinished()] == [2, 1, 3]


def test_a_stop_that_nobody_heard_is_not_for_the_next_engine(store: Store, database: Path) -> None:
    command(database, "stop")
    command(database, "drain")
    store.tasks.forget_stops(before=0.0)
    assert [waiting.kind for waiting in store.tasks.new_commands()] == ["stop", "drain"]
    command(database, "pause", 1)
    store.tasks.forget_stops(before=float("inf"))
    assert [waiting.kind for waiting in store.tasks.new_commands()] == ["pause"]


def test_readers_cannot_write(store: Store, database: Path) -> None:
    with Reader(database) as reader, pytest.raises(StoreError, match="readonly"):
        reader.all("DELETE FROM tasks")


def test_what_is_no_database_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "marlaas.db"
    with pytest.raises(StoreError, match="no database"):
        Reader(path)
    path.write_text("this is no database" * 100)
    with pytest.raises(StoreError, match=r"Move marlaas\.db"):
        open_database(path)


def test_what_a_task_needs_is_read_until_it_is_done(store: Store, database: Path) -> None:
    second = replace(submission(TaskSpec("lab", "next", "guess")), needs=(1,))
    assert submit(database, [second, replace(second, spec=replace(second.spec, name="last"), after=(0,))]) == [2, 3]
    tasks = {task.id: task for task in store.tasks.unfinished()}
    assert tasks[2].needs == (Needed(1, "sums", "submitted", 0, 60),)
    assert [needed.id for needed in tasks[3].needs] == [1, 2]
    store.tasks.set_state(1, "done")
    tasks = {task.id: task for task in store.tasks.unfinished()}
    assert tasks[2].needs == () and [needed.id for needed in tasks[3].needs] == [2]


BLOCKED = Reason(ReasonCode.BLOCKED, "sums.py:12: NameError: name 'x' is not defined.")


def state(database: Path, task: int = 1) -> str:
    with Reader(database) as reader:
        row = reader.task(task)
    assert row is not None
    return row.state


def test_a_task_is_blocked_for_as_long_as_its_reason_says_so(store: Store, database: Path) -> None:
    store.tasks.explain({1: BLOCKED})
    assert state(database) == "blocked" and "blocked" in ACTIVE
    assert store.tasks.state(1) == "queued" and [one.state for one in store.tasks.unfinished()] == ["queued"]
    store.tasks.explain({1: Reason(ReasonCode.SLOTS, "8 of 8 slots are busy")})
    assert state(database) == "queued"
    for other in ("paused", "running", "failed"):
        store.tasks.set_state(1, other, BLOCKED)
        assert state(database) == other, "only a task in the queue is blocked"
    store.tasks.set_state(1, "queued", NO_REASON)
    assert state(database) == "queued"


def test_every_reader_of_a_state_knows_of_it(store: Store, database: Path) -> None:
    spec = TaskSpec("lab", "next", "guess")
    submit(database, [replace(submission(spec), needs=(1,)), submission(spec)])
    store.tasks.explain({1: BLOCKED, 3: Reason(ReasonCode.SLOTS, "the only slot is busy")})
    with Reader(database) as reader:
        (needed,) = reader.needs(2)
        assert needed.state == "blocked"
        counts = {row.name: (row.waiting, row.blocked) for row in reader.tenants("")}
        assert sum(waiting for waiting, _ in counts.values()) == 2 and sum(b for _, b in counts.values()) == 1
        assert [task.state for task in reader.bound_tasks()] == ["blocked", "submitted", "queued"]
    (waiting,) = [one for one in store.tasks.unfinished() if one.needs]
    assert isinstance(waiting.needs[0], Needed) and waiting.needs[0].state == "blocked"


def test_changes_add_up_and_outlive_the_engine(store: Store, database: Path) -> None:
    assert store.tenants.set("bio", weight=2.5) == Tenant(2.5)
    assert store.tenants.set("bio", tasks=3, tokens_per_day=10**12) == Tenant(2.5, 3, 10**12)
    assert store.tenants.get("bio") == Tenant(2.5, 3, 10**12)
    again = Store(database, "tiny")
    assert again.tenants.get("bio") == Tenant(2.5, 3, 10**12)
    again.close()


def test_rows_add_up_within_a_day_and_a_day_begins_at_nothing(
    store: Store, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (other,) = submit(database, [submission(TaskSpec("club", "sums", "arithmetic"))])
    monkeypatch.setattr(tenants, "today", lambda: "2026-11-20")
    store.tenants.add_use([Usage(1, ROLLOUT, 10, 0.5), Usage(1, TRAINING, 5, 0.25), Usage(other, ENVIRONMENT, 0, 2.0)])
    store.tenants.add_use([Usage(1, ROLLOUT, 1, 0.5)])
    assert store.tenants.tokens_today() == {"lab": 16}
    monkeypatch.setattr(tenants, "today", lambda: "2026-11-21")
    assert store.tenants.tokens_today() == {}
    store.tenants.add_use([Usage(other, ROLLOUT, 7, 0.0)])
    assert store.tenants.tokens_today() == {"club": 7}
    found = rows(database, "SELECT day, task, stage, tokens, seconds FROM usage ORDER BY day, task, stage")
    assert [tuple(row.values()) for row in found] == [
        ("2026-11-20", 1, ROLLOUT, 11, 1.0),
        ("2026-11-20", 1, TRAINING, 5, 0.25),
        ("2026-11-20", other, ENVIRONMENT, 0, 2.0),
        ("2026-11-21", other, ROLLOUT, 7, 0.0),
    ]


def test_a_key_is_revoked_by_how_it_begins(store: Store, database: Path) -> None:
    for number, prefix in enumerate(("tml-ada-abc", "tml-ada-abd", "tml-bob-x%_")):
        add_key(database, prefix[4:7], "", bytes([number]) * 32, prefix, ("chat",))
    for wrong, sentence in (
        ("tml-ada-ab", "2 keys begin"),
        ("tml-eve", "No key begins"),
        ("", "No key begins"),
        ("%", "No"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            revoke_key(database, wrong)
    assert revoke_key(database, "tml-ada-abc and all the rest") == ("tml-ada-abc", "ada")
    row = store.api.key(bytes([0]) * 32)
    assert row is not None and row.revoked is not None
    with pytest.raises(ConfigError, match="was revoked before"):
        revoke_key(database, "tml-ada-abc")
    assert revoke_key(database, "tml-ada-ab") == ("tml-ada-abd", "ada"), "the one that holds"
    assert revoke_key(database, "tml-bob-x%_") == ("tml-bob-x%_", "bob") and not store.api.any_key()


def test_the_state_outlives_the_engine(store: Store, database: Path) -> None:
    assert store.api.state() == ApiRow()
    with Reader(database) as reader:
        assert reader.api_state() is None
    store.api.tell(False, note="why")
    store.api.switch(True, 99)
    store.api.tell(True, "http://127.0.0.1:99")
    with Reader(database) as reader:
        state = reader.api_state()
    assert state is not None and state.since is not None
    assert (state.switched, state.port, state.open, state.url, state.note) == (
        True,
        99,
        True,
        "http://127.0.0.1:99",
        "",
    )
    store.api.switch(False)
    assert (store.api.state().switched, store.api.state().port, store.api.state().open) == (False, None, True)


@pytest.fixture
def versions(store: Store, database: Path, policy: int) -> dict[str, int]:
    """Ids of versions by their names: two of *lab*'s task 1, and one of *club*'s task 2."""
    submit(database, [submission(TaskSpec("club", "sums", "arithmetic"))])
    theirs = store.versions.policy(2, "policy", {})

    def new(number: int, name: str) -> NewVersion:
        return NewVersion(number, name, f"sum-{name}", str(database.parent / "adapters" / name), 9)

    made = [
        store.versions.commit_first(policy, new(0, "a0")),
        store.versions.commit_step(policy, new(1, "a1"), [], 0.1, {}),
        store.versions.commit_first(theirs, new(0, "b0")),
    ]
    return {version.name: version.id for version in made}


def test_names_are_given_moved_and_taken(store: Store, versions: dict[str, int], database: Path, policy: int) -> None:
    served_ = store.served
    served_.give("lab", "prod", versions["a0"])
    served_.give("club", "prod", versions["b0"])
    assert served_.names("lab") == {"prod": versions["a0"]} and served_.numbers(policy) == {0: "prod"}
    served_.give("lab", "prod", versions["a1"])
    version, given = served_.named("lab", "prod")
    assert given and version is not None and version.number == 1 and served_.numbers(policy) == {1: "prod"}
    assert served_.named("lab", "test") == (None, False)
    with Reader(database) as reader:
        assert given_names(reader) == [
            GivenName("club", "prod", 2, "policy", 0, "b0", True),
            GivenName("lab", "prod", 1, "policy", 1, "a1", True),
        ]
    store.versions.prune(versions["a1"])
    assert served_.named("lab", "prod") == (None, True) and served_.numbers(policy) == {}
    assert served_.take("lab", "prod") and not served_.take("lab", "prod") and served_.names("club")


def test_what_clients_use_counts_for_their_tenant(store: Store, database: Path) -> None:
    lab, club = store.tenants.clients("lab"), store.tenants.clients("club")
    assert (lab, club, store.tenants.clients("lab")) == (-1, -2, -1)
    store.tenants.add_use([Usage(lab, ROLLOUT, 10, 0.5), Usage(club, ROLLOUT, 7, 0.25), Usage(1, TRAINING, 5, 0.25)])
    store.tenants.add_use([Usage(club, ROLLOUT, 1, 0.25)])
    assert store.tenants.tokens_today() == {"lab": 15, "club": 8}
    with Reader(database) as reader:
        assert {row.name: row.tokens_today for row in reader.tenants(today())} == {"lab": 15, "club": 8}


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
    quiet, crew = EnvironmentInfo("a/b", "v1", "ready"), Crew(playing=2, scoring=1, live=40, waiting=3)
    with Reader(database) as reader:
        store.telemetry.environments([quiet, replace(quiet, name="c/d", crew=crew)])
        (first, second), written = reader.environments(), reader.changed()
        assert (first.live, second.playing, second.scoring, second.live, second.waiting) == (0, 2, 1, 40, 3)
        store.telemetry.environments([quiet, replace(quiet, name="c/d", crew=crew)])
        assert reader.changed() == written
        store.telemetry.environments([quiet, replace(quiet, name="c/d", crew=replace(crew, live=41))])
        same, later = reader.environments()
        assert same == first and later.live == 41, "only what changed is written"
        store.telemetry.environments([quiet])
        assert [row.name for row in reader.environments()] == ["a/b"]


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


NOW = 1_000.0 * DAY
SAMPLE = StageSample("rollout", "core 0", NOW, 1.0, 0.5, 3.0, 8.0, 10)


def kept(database: Path) -> list[StageSample]:
    columns = "stage, device, begun, wall, busy, waiting, active, ended"
    return [StageSample(**row) for row in rows(database, f"SELECT {columns} FROM stages ORDER BY begun")]


@pytest.mark.parametrize(("age", "span"), [(HOUR, 60), (DAY, 3600)])
def test_what_is_older_is_put_together_and_sums_stay(store: Store, database: Path, age: int, span: int) -> None:
    begun = NOW - age - span
    seconds = [replace(SAMPLE, begun=begun + n, wall=1.0, busy=n / 100, waiting=float(n), ended=n) for n in range(60)]
    store.telemetry.add_stages(1, seconds)
    for _ in range(2):
        store.telemetry.thin_stages(NOW)
        (row,) = kept(database)
        assert (row.begun, row.wall, row.ended) == (begun, 60.0, sum(range(60)))
        assert row.busy == pytest.approx(sum(range(60)) / 100) and row.waiting == pytest.approx(29.5)


def test_a_month_is_kept_in_few_rows(store: Store, database: Path) -> None:
    ages = range(0, 2 * KEPT, 600)
    store.telemetry.add_stages(1, [replace(SAMPLE, begun=NOW - age, wall=600.0) for age in ages])
    store.telemetry.thin_stages(NOW)
    left = kept(database)
    assert min(row.begun for row in left) >= NOW - KEPT
    assert sum(row.wall for row in left) == KEPT + 600
    assert len(left) < KEPT / HOUR + 24 * 60


@pytest.fixture
def log(store: Store, database: Path) -> Iterator[Reader]:
    for message, task, level, kind in (
        ("The engine serves.", None, "info", "engine"),
        ("Task 100% done_", 1, "info", "task"),
        ("It stumbled.", 1, "warning", "task"),
        ("A worker DIED.", None, "error", "worker"),
        ("Task of nobody.", 99, "error", "task"),
    ):
        store.telemetry.event(kind, message, task, level)
    with Reader(database) as reader:
        yield reader


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (EventFilter(), [1, 2, 3, 4, 5]),
        (EventFilter(task=1), [2, 3]),
        (EventFilter(tenant="la"), [2, 3]),  # the task's tenant is lab
        (EventFilter(tenant="%"), []),
        (EventFilter(level="warning"), [3, 4, 5]),
        (EventFilter(("died",)), [4]),
        (EventFilter(("task", "nobody")), [5]),
        (EventFilter(("0%",)), [2]),
        (EventFilter(("_",)), [2]),
        (EventFilter(kind="WORK"), [4]),
        (EventFilter(("task",), "error", 99, "", "task"), [5]),
    ],
)
def test_filters(log: Reader, wanted: EventFilter, found: list[int]) -> None:
    assert list(events.event_ids(log, wanted)) == found
    assert [row.id for row in events.newest_events(log, wanted)] == found
    assert list(events.event_ids(log, wanted, after=3)) == [number for number in found if number > 3]
