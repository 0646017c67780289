"""Which request is another's retry."""

from __future__ import annotations

from marlaas.engine.gateway.requests import MOST, Retries


def test_equal_requests_are_two_unless_one_is_a_retry() -> None:
    retries = Retries()
    first, second = (retries.name("k", "/p", b"x", "0", None) for _ in range(2))
    assert first != second
    retries.ended(first, 504)
    assert retries.name("k", "/p", b"x", "1", None) == first
    assert retries.name("k", "/p", b"y", "1", None) not in (first, second)
    assert retries.name("other", "/p", b"x", "1", None) not in (first, second)


def test_a_retry_that_comes_before_its_request_has_ended() -> None:
    retries = Retries()
    first = retries.name("k", "/p", b"x", "0", None)
    assert retries.name("k", "/p", b"x", "1", None) == first
    retries.ended(first, 499)
    retries.ended(first, 200)
    assert retries.name("k", "/p", b"x", "1", None) == first


def test_a_refused_request_is_asked_anew() -> None:
    retries = Retries()
    first = retries.name("k", "/p", b"x", "0", None)
    retries.ended(first, 429)
    assert retries.name("k", "/p", b"x", "1", None) != first


def test_what_says_nothing_has_no_name_and_memory_is_bounded() -> None:
    retries = Retries()
    assert retries.name("k", "/p", b"x", None, None) == ""
    assert retries.name("k", "/p", b"x", "soon", None) == ""
    assert retries.name("k", "/p", b"x", None, "a") == retries.name("k", "/p", b"x", None, "a") != ""
    for number in range(MOST + 10):
        retries.name("k", "/p", str(number).encode(), "0", None)
    assert len(retries._alike) == MOST
