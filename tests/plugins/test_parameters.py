"""Settings from signatures, and configurations checked against them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlaas.plugins import env
from marlaas.plugins.parameters import Parameter, checked, complete, parameters_of


def test_a_signature_is_a_schema() -> None:
    async def f(ep: object, task: str, size: int, rate: float = 1, word="x", deep: bool = False, ids: list[int] = []):  # type: ignore[no-untyped-def]  # noqa: B006
        ...

    assert parameters_of(f) == (
        Parameter("size", "int", None, required=True),
        Parameter("rate", "float", 1.0),
        Parameter("word", "str", "x"),
        Parameter("deep", "bool", False),
        Parameter("ids", "json", []),
    )


def test_what_a_signature_may_not_have() -> None:
    def untyped(ep, word): ...  # type: ignore[no-untyped-def]

    def starred(ep, **more: int): ...  # type: ignore[no-untyped-def]

    def odd(ep, when: complex = 1j): ...  # type: ignore[no-untyped-def]

    def mistyped(ep, size: int = 1.5): ...  # type: ignore[no-untyped-def,assignment]

    def nothing() -> None: ...

    def tasked(ep, task): ...  # type: ignore[no-untyped-def]

    for function, says in (
        (untyped, "needs a type"),
        (starred, "plain keyword"),
        (odd, "needs a type"),
        (mistyped, "whole number"),
        (nothing, "first parameter"),
        (tasked, "has no data"),
    ):
        with pytest.raises((TypeError, ValueError), match=says):
            env(function)


PARAMETERS = (
    Parameter("digits", "int", 2),
    Parameter("rate", "float", 0.5),
    Parameter("word", "str", "x"),
    Parameter("deep", "bool", False),
    Parameter("rows", "json", None),
)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"digit": 2}, r"no parameter 'digit'; it has digits, rate, word, deep, rows. Did you mean 'digits'\?"),
        ({"digits": 2.0}, "must be a whole number, not 2.0"),
        ({"digits": True}, "must be a whole number, not True"),
        ({"rate": float("nan")}, "must be a number, not nan"),
        ({"deep": 1}, "must be true or false, not 1"),
        ({"rows": {1, 2}}, "JSON"),
    ],
)
def test_helpful_messages(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        complete(PARAMETERS, config, "sums")


def test_required_parameters_and_none_at_all() -> None:
    with pytest.raises(ValueError, match="needs 'size': a whole number"):
        complete((Parameter("size", "int", None, required=True),), {}, "sums")
    with pytest.raises(ValueError, match="has no parameters"):
        complete((), {"x": 1}, "sums")


@given(
    st.dictionaries(
        st.sampled_from([p.name for p in PARAMETERS]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    )
)
def test_a_complete_configuration_is_a_fixed_point(config: dict[str, Any]) -> None:
    try:
        full = complete(PARAMETERS, config, "sums")
    except ValueError:
        return
    assert list(full) == [p.name for p in PARAMETERS]
    assert complete(PARAMETERS, full, "sums") == full
    for parameter in PARAMETERS:
        kind = {"int": int, "float": float, "str": str, "bool": bool}.get(parameter.type)
        assert kind is None or type(full[parameter.name]) is kind or abs(full[parameter.name]) >= 2**53


def test_whole_numbers_are_numbers() -> None:
    assert type(checked(Parameter("rate", "float", 0.0), 3)) is float
