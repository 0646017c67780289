"""TOML of strangers: ordinary texts read as ever, those that would take all memory are refused at once."""

from __future__ import annotations

import pytest

from marlaas.engine.spec.toml_text import DEEPEST, read_toml


@pytest.mark.parametrize("text", ["a.b.c = 1", "[a.'b.c'.d]\ne = '" + "x." * 100 + "'", "# " + "a." * 100 + "\nb = 2"])
def test_ordinary_texts(text: str) -> None:
    assert read_toml(text)


@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "x = {{ {} = 1 }}", "[[{}]]", "x = {{y = 1, {} = 2}}"])
@pytest.mark.parametrize("part", ["a", "'a'", '"a b"'])
def test_keys_of_thousands_of_parts_are_refused_unread(form: str, part: str) -> None:
    with pytest.raises(ValueError, match="more than 32 parts"):
        read_toml("first = 0\n" + form.format(" . ".join([part] * 100_000)))
    assert read_toml(form.format(".".join([part] * (DEEPEST - 3))))


def test_what_is_not_toml() -> None:
    deep = "x = " + "{a = " * 40 + "1" + "}" * 40
    for text in (
        deep,
        f"[{'.'.join('b' * 20)}]\n{'.'.join('c' * 20)} = 1",
        "a =",
        "x = " + "[" * 100_000,
        "x = 1" + "0" * 10_000,
    ):
        with pytest.raises(ValueError):
            read_toml(text)
