"""Of many versions only those of policies that have changed are read again."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from marlaas.app.questions import AdaptersQuestion
from marlaas.app.reading import opened
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.learning import KeptVersion, kept_versions
from marlaas.engine.store.queries.reader import Reader

from ..filling import Filling

CHANGES = {
    "a size": "UPDATE versions SET size = 7 WHERE policy = 2 AND state = 'committed'",
    "a label": "UPDATE versions SET label = 'best, last' WHERE policy = 2 AND number = 3",
    "a score": "INSERT INTO evals (policy, step, version, environment_version, series, score, stderr, n, created)"
    " SELECT policy, number, id, 'e2', 'e2', 0.9, 0.01, 64, 0 FROM versions WHERE policy = 2 AND number = 3",
    "a state": "UPDATE tasks SET state = 'done' WHERE id = 2",
    "a version that is gone": "UPDATE versions SET state = 'pruned' WHERE policy = 2 AND number = 3",
    "a task without any": "UPDATE versions SET state = 'pruned' WHERE policy = 2",
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_read_again(filling: Filling, home: Home, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    for made in (2, 3, 0):
        filling.task(state="running", made=made)
    asked: list[set[int]] = []

    def reading(reader: Reader, policies: Iterable[int]) -> list[KeptVersion]:
        asked.append(set(policies))
        return kept_versions(reader, policies)

    monkeypatch.setattr(Reader, "kept_versions", reading)
    with opened(home) as reader:
        first = AdaptersQuestion().read(reader, None)
        assert [(kept.row.task, kept.row.number) for kept in first.versions] == [(3, 0), (2, 3), (2, 2), (1, 2), (1, 1)]
        assert AdaptersQuestion().read(reader, first) is first
        filling.execute(CHANGES[change])
        second = AdaptersQuestion().read(reader, first)
        assert second.versions == AdaptersQuestion().read(reader, None).versions != first.versions
    assert asked[:2] == [{1, 2, 3}, set() if change == "a task without any" else {2}]
