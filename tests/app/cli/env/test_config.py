"""``--config NAME=VALUE``: typed by the environment's parameters, and told apart from what cannot be read."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, strategies as st

from marlaas.app.cli.env import typed
from marlaas.engine.errors import ConfigError
from marlaas.plugins.parameters import Parameter, complete

PARAMETERS = (
    Parameter("digits", "int", 2),
    Parameter("rate", "float", 0.5),
    Parameter("word", "str", "a"),
    Parameter("loud", "bool", False),
    Parameter("items", "json", []),
)


def completed(*pairs: str) -> dict[str, object]:
    """What an environment would be played with."""
    return complete(PARAMETERS, typed(pairs, PARAMETERS), "shop")


def test_values_have_the_types_of_the_parameters() -> None:
    found = completed("digits=3", "rate=2", "word=1=2", "loud=True", 'items=[1, {"ink": 2}]')
    assert found == {"digits": 3, "rate": 2.0, "word": "1=2", "loud": True, "items": [1, {"ink": 2}]}
    assert type(found["digits"]) is int and type(found["rate"]) is float


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("digits=three", "must be a whole number"),
        ("digits=2.0", "must be a whole number"),
        ("rate=nan", "must be a number"),
        ("loud=yes", "must be true or false"),
        ("digit=3", "Did you mean 'digits'?"),
    ],
)
def test_what_does_not_fit_meets_the_sentence_of_a_task_file(pair: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("?", r"\?")):
        completed(pair)


@pytest.mark.parametrize("pair", ["digits", "=3", "", "items=[1", "items=ink", "items=NaN"])
def test_what_cannot_be_read_is_said_with_the_way_out(pair: str) -> None:
    with pytest.raises(ConfigError) as raised:
        typed([pair], PARAMETERS)
    assert "Write, for example" in raised.value.hint


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_any_json_arrives_as_it_is(value: object) -> None:
    assert typed([f"items={json.dumps(value)}"], PARAMETERS) == {"items": value}


@given(st.floats(allow_nan=False))
def test_any_number_arrives_as_it_is(value: float) -> None:
    (found,) = typed([f"rate={value!r}"], PARAMETERS).values()
    assert found == value or math.isinf(value)
