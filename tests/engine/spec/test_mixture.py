"""Which component of a mixture each group belongs to: by the shares, whatever was asked before."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.app.operations.commands import written
from marlaas.engine.errors import ConfigError
from marlaas.engine.spec.task import Interleaving, components_of, parse

SHARES = st.lists(st.decimals("0.01", "10", places=2).map(float), min_size=1, max_size=5)


@given(SHARES, st.integers(1, 300))
def test_each_has_its_share_to_within_one_group(shares: list[float], groups: int) -> None:
    drawing, total = Interleaving(shares), sum(Fraction(str(share)) for share in shares)
    drawn = [drawing.of(number) for number in range(groups)]
    counts = Counter[int]()
    for number, (place, before) in enumerate(drawn, 1):
        assert before == counts[place]
        counts[place] += 1
        assert all(abs(counts[p] - number * Fraction(str(s)) / total) < 1 for p, s in enumerate(shares))
        assert drawing.before(number) == [counts[place] for place in range(len(shares))]
    again = Interleaving(shares)
    assert again.of(groups - 1) == drawn[-1], "a restart draws the same"


@pytest.mark.parametrize(
    ("shares", "places"),
    [([1], [0] * 6), ([1, 1], [0, 1] * 3), ([2, 1], [0, 1, 0] * 2), ([0.5, 0.25, 0.25], [0, 1, 2, 0] * 2)],
)
def test_a_few_by_hand(shares: list[float], places: list[int]) -> None:
    drawing = Interleaving(shares)
    assert [drawing.of(number)[0] for number in range(len(places))] == places


EASY = {"environment": "arithmetic", "share": 2, "config": {"digits": 1}, "name": "easy"}
HARD = {"environment": "arithmetic", "config": {"digits": 3}}
GUESS = {"environment": "guess"}


def table(**more: Any) -> dict[str, Any]:
    return {"tenant": "lab", "name": "both", **more}


@pytest.mark.parametrize(
    ("more", "path", "says"),
    [
        ({}, "environment", "'environment' is missing"),
        ({"environment": "guess", "mixture": [EASY]}, "environment", "stands beside"),
        ({"environment_config": {"digits": 1}, "mixture": [EASY]}, "environment_config", "stands beside"),
        ({"mixture": [GUESS, GUESS]}, "mixture", "names two components alike"),
        ({"mixture": [{"environment": "a b"}]}, "mixture", "has a component that cannot be called 'a b'"),
        ({"mixture": [{"environment": "test"}]}, "mixture", "has a component that cannot be called 'test'"),
        (
            {"mixture": [GUESS], "eval": {"suite": [{"name": "guess", "environment": "arithmetic"}]}},
            "eval.suite",
            "a suite is called 'guess', as is a component",
        ),
        ({"mixture": [GUESS], "kind": "eval", "versions": ["base"]}, "mixture", "is about training"),
        ({"mixture": [GUESS], "data": {"path": "rows.jsonl"}}, "data.path", "names the rows of one environment"),
        ({"mixture": [GUESS], "train": {"sampling": "difficulty"}}, "train.sampling", "cannot be drawn by"),
        ({"mixture": [GUESS, {**EASY, "data": {"limit": 3}}]}, "mixture[1].data.limit", "no 'mixture[1].data.path'"),
        (
            {"mixture": [{**GUESS, "data": {"path": "x", "split": {"evl": 0.1}}}]},
            "mixture[0].data.split.evl",
            "unknown",
        ),
        (
            {"mixture": [{**GUESS, "data": {"path": "x", "split": {"eval": 0.5, "test": 0.5}}}]},
            "mixture[0].data.split",
            "nothing to train on",
        ),
        ({"mixture": [{**GUESS, "data": "rows.jsonl"}]}, "mixture[0].data", "must be a table"),
        ({"mixture": [{"environment": f"e{n}"} for n in range(65)]}, "mixture", "has 65 tables"),
        ({"mixture": [{"share": 1.0}]}, "mixture[0].environment", "is missing"),
        ({"mixture": [{**GUESS, "share": 0}]}, "mixture[0].share", "must lie between 0.001 and 1000"),
        ({"mixture": GUESS}, "mixture", "must be a list of tables"),
    ],
)
def test_what_cannot_be_mixed_is_refused(more: dict[str, Any], path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"^task\.toml: ") as caught:
        parse(table(**more), "task.toml")
    assert says in caught.value.message and caught.value.path == path


def test_each_component_has_its_own_rows() -> None:
    rows = {"path": "/d/x.jsonl", "columns": {"question": "prompt"}, "split": {"eval": 0.2}, "limit": 5}
    spec = parse(table(mixture=[{**EASY, "data": rows}, {**HARD, "data": {"path": "/d/y.jsonl"}}, GUESS]), "task.toml")
    parts = components_of(spec)
    assert parts["easy"].data.record == rows and parts["guess"].data.record is None
    assert parts["arithmetic"].data.path == "/d/y.jsonl"
    assert parse(tomllib.loads(written(spec.to_json())), "again") == spec == parse(spec.to_json(), "again")
    old = spec.to_json()
    for part in old["mixture"]:
        del part["data"]
    assert not any(part.data.record for part in components_of(parse(old, "of an older program")).values())


def test_a_mixture_is_written_and_read_back() -> None:
    spec = parse(table(mixture=[EASY, HARD, GUESS]), "task.toml")
    assert parse(json.loads(json.dumps(spec.to_json())), "again") == spec == parse(spec.to_json(), "again")
    assert parse(tomllib.loads(written(spec.to_json())), "again") == spec
    assert spec.played == "arithmetic + guess"
    assert {name: (own.environment, own.environment_config) for name, own in components_of(spec).items()} == {
        "easy": ("arithmetic", {"digits": 1}),
        "arithmetic": ("arithmetic", {"digits": 3}),
        "guess": ("guess", {}),
    }
    alone = parse(table(environment="guess"), "task.toml")
    assert components_of(alone) == {"": alone} and alone.played == "guess"
