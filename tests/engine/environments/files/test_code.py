"""Which edits of a plugin's files make another environment of it, and which do not."""

from __future__ import annotations

import pytest

from marlaas.engine.environments.files.source import Source, code_of

PLAIN = '''"""An environment."""
# /// script
# dependencies = ["sympy"]
# ///
from marlaas.plugins import env

@env
async def sums(ep, most: int = 9):
    """Add."""
    said = await ep.ask(f"{most} + 1?")
    return float(said.text == "10")
'''
EDITED = {
    "a comment": PLAIN.replace("@env", "# simple sums\n@env"),
    "a comment behind code": PLAIN.replace("@env\n", "@env  # declared\n"),
    "empty lines": PLAIN.replace("@env", "\n\n@env"),
    "indentation": PLAIN.replace("\n    ", "\n  "),
    "quotes and brackets": PLAIN.replace('"10"', "('10')"),
    "the module's docstring": PLAIN.replace("An environment.", "Sums of small numbers."),
    "no docstring of the module": PLAIN.partition("\n")[2],
    "a comment in the block": PLAIN.replace("# dependencies", "# # for grading\n# dependencies"),
    "other ends of lines": PLAIN.replace("\n", "\r\n"),
}
OTHER = {
    "a prompt": PLAIN.replace("+ 1?", "+ 1 ?"),
    "a reward": PLAIN.replace('"10"', '"11"'),
    "a default": PLAIN.replace("= 9", "= 8"),
    "a function's docstring, which may describe a tool": PLAIN.replace("Add.", "Add them."),
    "a library": PLAIN.replace("sympy", "sympy>=1.13"),
    "a docstring that is read": PLAIN.replace('f"{most}', '__doc__ + f"{most}'),
}


def code(text: str | bytes, name: str = "sums.py") -> str:
    content = text if isinstance(text, bytes) else text.encode()
    return Source("sums", "sums.py", ((name, content),)).code


@pytest.mark.parametrize("edit", EDITED)
def test_what_does_not_play_does_not_count(edit: str) -> None:
    assert EDITED[edit] != PLAIN and code(EDITED[edit]) == code(PLAIN)


@pytest.mark.parametrize("edit", OTHER)
def test_what_plays_counts(edit: str) -> None:
    assert code(OTHER[edit]) != code(PLAIN)


def test_a_docstring_that_code_reads_counts() -> None:
    before = '"""Say %s."""\nPROMPT = __doc__\n'
    assert code(before) != code(before.replace("Say", "Tell"))


def test_of_toml_the_values_count_in_their_order() -> None:
    before = 'adapter = "gymnasium"\n[config]\nid = "Taxi-v3"\n'
    same = "# taxis\nadapter=\"gymnasium\"\n\n[config] # whose\nid = 'Taxi-v3'\n"
    assert code(before, "taxi.toml") == code(same, "taxi.toml")
    assert code(before, "taxi.toml") != code(before.replace("v3", "v2"), "taxi.toml")


def test_of_data_every_byte_counts() -> None:
    assert code('{"a": 1}\n', "sums.jsonl") != code('{"a":  1}\n', "sums.jsonl")


@pytest.mark.parametrize("broken", [b"def (", b"\xff\xfe", b"x = '\0'", b"[" * 5000, b"x\n" * 600_000])
def test_what_cannot_be_parsed_counts_byte_by_byte(broken: bytes) -> None:
    assert code_of("a.py", broken) == broken and code_of("a.toml", broken) == broken
