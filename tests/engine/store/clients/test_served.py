"""What clients are served: a tenant's own versions, and its names for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.fairness.line import ROLLOUT, TRAINING, Usage
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store import tasks as served
from marlaas.engine.store.queries.learning import GivenName, given_names
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.store.tasks import today
from marlaas.engine.store.versions import NewVersion


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


def test_a_tenant_sees_what_is_on_the_disk_of_its_own(store: Store, versions: dict[str, int], database: Path) -> None:
    rows = store.served.versions("lab")
    assert [(row.id, row.task, row.policy, row.number, row.tenant) for row in rows] == [
        (versions["a1"], 1, "policy", 1, "lab"),
        (versions["a0"], 1, "policy", 0, "lab"),
    ]
    assert rows[0].path == str(database.parent / "adapters" / "a1")
    assert store.served.versions("lab", 2) == store.served.versions("nobody") == []
    store.versions.prune(versions["a0"])
    assert [row.number for row in store.served.versions("lab", 1)] == [1]


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


def test_another_tenants_version_has_no_name_here(store: Store, versions: dict[str, int]) -> None:
    store.served.give("lab", "theirs", versions["b0"])  # whoever wrote that: it is not served
    assert store.served.named("lab", "theirs") == (None, True)


def test_names_have_a_bound(store: Store, versions: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "MOST_NAMES", 1)
    store.served.give("lab", "one", versions["a0"])
    store.served.give("lab", "one", versions["a1"])
    with pytest.raises(ConfigError, match="has 1 names already"):
        store.served.give("lab", "two", versions["a0"])


def test_files_are_held_by_whoever_uses_them(store: Store) -> None:
    with store.served.hold(4):
        with store.served.hold(4):
            assert store.served.holds(4) and not store.served.holds(5)
        assert store.served.holds(4)
    assert not store.served.holds(4)


def test_what_clients_use_counts_for_their_tenant(store: Store, database: Path) -> None:
    lab, club = store.tenants.clients("lab"), store.tenants.clients("club")
    assert (lab, club, store.tenants.clients("lab")) == (-1, -2, -1)
    store.tenants.add_use([Usage(lab, ROLLOUT, 10, 0.5), Usage(club, ROLLOUT, 7, 0.25), Usage(1, TRAINING, 5, 0.25)])
    store.tenants.add_use([Usage(club, ROLLOUT, 1, 0.25)])
    assert store.tenants.tokens_today() == {"lab": 15, "club": 8}
    with Reader(database) as reader:
        assert {row.name: row.tokens_today for row in reader.tenants(today())} == {"lab": 15, "club": 8}
