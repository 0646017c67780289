"""Which metrics count groups by staleness."""

from __future__ import annotations

import pytest

from marlaas.engine.store.rows import stale, stale_age


def test_a_name_and_its_age() -> None:
    assert [stale_age(stale(age)) for age in (0, 7, 64)] == [0, 7, 64]


@pytest.mark.parametrize(
    "name", ["staleness", "staleness_max", "staleness_", "staleness_-1", "reward", "staleness_٣", ""]
)
def test_other_names(name: str) -> None:
    assert stale_age(name) is None
