"""A store on a fresh database, with one task and its policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "marlaas.db"


@pytest.fixture
def store(database: Path) -> Iterator[Store]:
    store = Store(database, "tiny")
    submit(database, [submission(TaskSpec("lab", "sums", "arithmetic"))])
    yield store
    store.close()


@pytest.fixture
def policy(store: Store) -> int:
    return store.versions.policy(1, "policy", {})
