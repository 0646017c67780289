"""What tasks used: rows add up by day, and quotas ask for the tenant's sum."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.errors import StoreError
from marlaas.engine.fairness.line import ENVIRONMENT, ROLLOUT, TRAINING, Usage
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store import tasks as tenants
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit

from ..by_hand import rows


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


def test_rows_are_written_together_or_not_at_all(store: Store) -> None:
    with pytest.raises(StoreError):
        store.tenants.add_use([Usage(1, ROLLOUT, 10, 0.5), Usage(99, ROLLOUT, 10, 0.5)])  # there is no task 99
    assert store.tenants.tokens_today() == {}
    store.tenants.add_use([])
