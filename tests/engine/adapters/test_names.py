import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlaas.engine.adapters.names import safe_name


@pytest.mark.parametrize("name", ["sums", "Two_digit-sums.v2", "a" * 80])
def test_a_safe_name_stays(name: str) -> None:
    assert safe_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../../etc/passwd", "/root", "a/b", "a\\b", "a\0b", "-rf", "~", "\ud800"]
)
def test_a_dangerous_name_is_one_plain_component(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*-[0-9a-f]{8}", safe_name(name))


@given(st.text(), st.text())
def test_any_two_names_stay_apart_and_plain(one: str, other: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,88}", safe_name(one))
    assert (safe_name(one) == safe_name(other)) == (one == other)
