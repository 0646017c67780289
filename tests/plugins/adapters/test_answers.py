"""Which part of a reply is the answer."""

from __future__ import annotations

import pytest

from marlaas.plugins.adapters.declaring import extract_of, last_line, whole


@pytest.mark.parametrize(
    ("reply", "all_of_it", "last"),
    [
        (" 8\n", "8", "8"),
        ("4 + 4\nis\n8 \n\n", "4 + 4\nis\n8", "8"),
        ("first <answer>7</answer>, no: <answer> 8 </answer>.", "8", "8"),
        ("<answer>1 2\n3 4</answer>", "1 2\n3 4", "3 4"),
        ("<answer>8", "8", "8"),
        ("</answer>8", "</answer>8", "</answer>8"),
        ("", "", ""),
    ],
)
def test_extracts(reply: str, all_of_it: str, last: str) -> None:
    assert (whole(reply), last_line(reply)) == (all_of_it, last)


def test_names_and_functions() -> None:
    assert extract_of("last_line") is last_line
    assert extract_of(str.upper) is str.upper
    with pytest.raises(ValueError, match="whole, last_line or a function, not 'first'"):
        extract_of("first")
