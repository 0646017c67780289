"""Settings from signatures, and configurations checked against them."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, strategies as st

from marlaas.plugins import Range, env
from marlaas.plugins.messages import MOST_VALUES, Endpoint, Reply, within_limits
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

    for function, says in (
        (untyped, "needs a type"),
        (starred, "plain keyword"),
        (odd, "needs a type"),
        (mistyped, "whole number"),
        (nothing, "first parameter"),
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


def test_bounds_and_choices_stand_in_the_signature() -> None:
    async def f(  # type: ignore[no-untyped-def]
        ep: object,
        digits: Annotated[int, Range(1, 4)] = 2,
        rate: Annotated[float, "any other note", Range(low=0)] = 1,
        share: Annotated[float, Range(high=1.5)] = 0.5,
        level: Literal["easy", "hard"] = "easy",
        size: Annotated[Literal[3, 5], "a note"] = 3,
    ): ...

    found = parameters_of(f)
    assert found == (
        Parameter("digits", "int", 2, low=1, high=4),
        Parameter("rate", "float", 1.0, low=0),
        Parameter("share", "float", 0.5, high=1.5),
        Parameter("level", "str", "easy", choices=("easy", "hard")),
        Parameter("size", "int", 3, choices=(3, 5)),
    )
    edges = {"digits": 4, "rate": 0.0, "share": 1.5, "level": "hard", "size": 5}
    assert complete(found, edges, "sums") == edges
    for config, says in (
        ({"digits": 5}, "'digits' of sums must be a whole number from 1 to 4, not 5."),
        ({"digits": 0}, "'digits' of sums must be a whole number from 1 to 4, not 0."),
        ({"digits": "5"}, "'digits' of sums must be a whole number from 1 to 4, not '5'."),
        ({"rate": -0.1}, "'rate' of sums must be a number, at least 0, not -0.1."),
        ({"share": 2}, "'share' of sums must be a number, at most 1.5, not 2.0."),
        ({"level": "odd"}, "'level' of sums must be one of 'easy', 'hard', not 'odd'."),
        ({"size": 4}, "'size' of sums must be one of 3, 5, not 4."),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
            complete(found, config, "sums")


def test_bounds_that_mean_nothing() -> None:
    def text(ep, word: Annotated[str, Range(1, 4)] = "x"): ...  # type: ignore[no-untyped-def]

    def turned(ep, size: Annotated[int, Range(4, 1)] = 2): ...  # type: ignore[no-untyped-def]

    def endless(ep, size: Annotated[float, Range(0, math.inf)] = 2): ...  # type: ignore[no-untyped-def]

    def outside(ep, size: Annotated[int, Range(1, 4)] = 7): ...  # type: ignore[no-untyped-def]

    def mixed(ep, size: Literal[1, "a"] = 1): ...  # type: ignore[no-untyped-def]

    for function, says in (
        (text, "has a Range, which is for int and float alone"),
        (turned, "has a Range from 4 to 1, which holds nothing"),
        (endless, "whose ends are not finite numbers"),
        (outside, "'size' must be a whole number from 1 to 4, not 7"),
        (mixed, "a Literal of texts or whole numbers"),
    ):
        with pytest.raises((TypeError, ValueError), match=says):
            env(function)


@given(st.integers() | st.floats(), st.integers(-5, 5), st.integers(0, 9))
def test_what_is_accepted_lies_within_the_bounds(value: float, low: int, more: int) -> None:
    parameter = Parameter("rate", "float", 0.0, low=low, high=low + more)
    try:
        assert low <= checked(parameter, value) <= low + more
    except ValueError:
        assert not low <= value <= low + more


@pytest.mark.parametrize("value", [None, 1, "x" * 100_000, [0] * MOST_VALUES])
def test_what_is_within_them(value: object) -> None:
    within_limits(value, "it")


def test_entries_are_counted_over_all_levels() -> None:
    with pytest.raises(ValueError, match=f"more than {MOST_VALUES} entries"):
        within_limits([[0] * (MOST_VALUES - 1), 0], "it")


def test_an_endpoint_is_found_by_clients_of_both_interfaces() -> None:
    endpoint = Endpoint("http://127.0.0.1:8777/v1", "k")
    assert endpoint.anthropic == "http://127.0.0.1:8777"
    named = endpoint.of("a b/c").environment()
    assert named["OPENAI_BASE_URL"] == "http://127.0.0.1:8777/e/a%20b%2Fc/v1"
    assert named["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8777/e/a%20b%2Fc"
    assert (named["OPENAI_API_KEY"], named["ANTHROPIC_API_KEY"]) == ("k", "k")


@pytest.mark.parametrize("other", ["4", 4, 4.0, ["4"], b"4", True])
def test_a_reply_that_is_compared_with_a_text_raises(other: object) -> None:
    """``return reply == str(a + b)`` is never true, so such a reward would never pay."""
    reply = Reply("4", "stop", 0)
    with pytest.raises(TypeError, match=rf"compared with a {type(other).__name__}, .*: compare reply.text"):
        reply == other  # noqa: B015
    with pytest.raises(TypeError, match=r"compare reply\.text"):
        other != reply  # noqa: B015
    assert reply == Reply("4", "stop", 0) != Reply("4", "stop", 1) and reply is not None
    assert (reply == None) is False  # noqa: E711 - what some libraries write
    assert len({reply, Reply("4", "stop", 0), Reply("5", "stop", 0)}) == 2
