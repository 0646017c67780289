"""Both sides of the section on adapters sample the same, and each case is a row."""

from pathlib import Path

import pytest

from benchmarks.large_base.adapters import OTHER, Base, _rows
from benchmarks.large_base.adapters_sampling import Case, Side
from benchmarks.large_base.half_billion_sampling import write_adapter
from marlaas.engine.base.model import BaseModel
from tools.random_base.make import make_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return make_base(tmp_path_factory.mktemp("base"), rows=1500)


def test_each_case_is_a_row(base: BaseModel, tmp_path: Path) -> None:
    cases = Case(1, 2), Case(3, 1)
    rows = _rows(Base("small", base, "q8_0", exact=False, tokens=2), tmp_path, cases, repetitions=2)
    assert [row.what for row in rows] == [
        "small: 1 adapter, 2 conversations each",
        "small: 3 adapters, 1 conversation each",
    ]
    for row in rows:
        assert row.other == OTHER and row.theirs and len(row.ours.values) == len(row.theirs.values) == 2
        assert min(*row.ours.values, *row.theirs.values) > 0


def test_both_sides_sample_the_same(base: BaseModel, tmp_path: Path) -> None:
    state = tmp_path / "state"
    write_adapter(base, state)
    said = []
    for together in (True, False):
        side = Side(base, tmp_path, state, "f32", True, conversations=4, adapters=2, together=together)
        side.begin(Case(2, 2))
        side.rate(Case(2, 2), 5)
        said.append([context.tolist() for context in side._contexts])
        side.end()
        side.close()
    assert said[0] == said[1] and len(said[0][0]) == 8 + 1 + 5
