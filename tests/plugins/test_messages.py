"""What an author sends to the engine is refused where it is said, by the limits that the engine has."""

from __future__ import annotations

import pytest

from marlaas.plugins.messages import DEEPEST, MOST_VALUES, Endpoint, Reply, within_limits


@pytest.mark.parametrize("innermost", [[], {}, (), [1], {"a": None}])
def test_the_last_level_counts_even_if_it_is_empty(innermost: object) -> None:
    value = innermost
    for _ in range(DEEPEST - 1):
        value = [value]
    within_limits(value, "it")
    for deeper in ([value], {"a": value}, (value,)):
        with pytest.raises(ValueError, match=f"it is nested more than {DEEPEST} deep"):
            within_limits(deeper, "it")


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
