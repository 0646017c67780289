"""What a plugin declares is read from its files; what is wrong there is said with file and line."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.dependencies.requirements import (
    DeclarationError,
    Limits,
    Requirements,
    requirements_of,
)
from marlaas.engine.environments.files.source import Source, SourceError

BLOCK = """\
#!/usr/bin/env python
# A comment.

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "Reasoning_Gym==0.1.25",  # the datasets
#   "nltk",
# ]
#
# [tool.marlaas]
# memory_mb = 512
# network = false
# ///
from marlaas.plugins import env
"""
DECLARED = Requirements(("nltk", "reasoning-gym==0.1.25"), ">=3.11", Limits(512, False))


def a_file(text: str, name: str = "x.py") -> Source:
    return Source("x", name, ((name, text.encode()),))


def a_package(project: str) -> Source:
    files = (("x/__init__.py", BLOCK.encode()), ("x/pyproject.toml", project.encode()))
    return Source("x", "x", files)


@pytest.mark.parametrize("text", [BLOCK, BLOCK.replace("\n", "\r\n"), BLOCK.rpartition("from")[0].rstrip("\n")])
def test_a_block_in_a_file(text: str) -> None:
    assert requirements_of(a_file(text)) == DECLARED


@pytest.mark.parametrize(
    "text", ["", "import os\n", "# /// other\n# x = 1\n# ///\n", "# /// script\n# ///\n", "x = '# /// script'\n"]
)
def test_a_file_without_a_block_needs_nothing(text: str) -> None:
    assert requirements_of(a_file(text)) == Requirements()


def test_a_block_beside_that_of_another_tool() -> None:
    assert requirements_of(a_file(f"# /// other\n# [oops\n# ///\n\n{BLOCK}")) == DECLARED


def test_a_package_declares_in_its_project_file() -> None:
    project = """\
        [build-system]
        requires = ["setuptools"]
        [project]
        name = "x"
        requires-python = ">=3.11"
        dependencies = ["reasoning_gym == 0.1.25", "nltk"]
        [tool.marlaas]
        memory_mb = 512
        network = false
        """
    assert requirements_of(a_package(textwrap.dedent(project))) == DECLARED
    assert requirements_of(a_package("[tool.other]\nx = 1\n")) == Requirements()
    assert requirements_of(Source("x", "x", (("x/__init__.py", b""),))) == Requirements()


def test_a_toml_plugin_brings_what_its_adapter_needs() -> None:
    plain = requirements_of(a_file('adapter = "reasoning_gym"\ndataset = "chain_sum"\n', "x.toml"))
    assert [entry.partition("==")[0] for entry in plain.dependencies] == ["reasoning-gym"]
    own = 'adapter = "reasoning_gym"\ndependencies = ["reasoning-gym==9"]\n[tool.marlaas]\nmemory_mb = 100\n'
    assert requirements_of(a_file(own, "x.toml")) == Requirements(("reasoning-gym==9",), "", Limits(100))


@pytest.mark.parametrize(
    ("source", "place", "words"),
    [
        (a_file(BLOCK.replace("512", "=512")), ("x.py", 12), "no TOML: Invalid value (column 15)"),
        (a_file(BLOCK.replace('#   "nltk",\n# ]\n', "")), ("x.py", 9), "no TOML"),
        (a_file("# /// script\n# x = [\n# ///\n"), ("x.py", 2), "no TOML"),
        (a_file(BLOCK.replace("nltk", "nl tk")), ("x.py", 8), "'nl tk' is no requirement"),
        (a_file(BLOCK.replace(">=3.11", "3.11")), ("x.py", 5), "requires-python"),
        (a_file(BLOCK.replace("network", "netwrk")), ("x.py", 13), "Did you mean 'network'?"),
        (a_file(BLOCK.replace("# ///\n", "")), ("x.py", 4), "has no end"),
        (a_file(f"{BLOCK}{BLOCK}"), ("x.py", 19), "a second block"),
        (a_file("dependencies = 1\n", "x.toml"), ("x.toml", 1), "a list of texts"),
        (a_file("adapter = [\n", "x.toml"), ("x.toml", 1), "no TOML"),
        (a_file("# games\nadapter = chess\n", "x.toml"), ("x.toml", 2), "no TOML: Invalid value (column 11)"),
        (a_package("[project]\nname = 'x'\ndependencies = 'a'\n"), ("x/pyproject.toml", 3), "a list of texts"),
        (a_package("project = 1\n"), ("x/pyproject.toml", 1), "must be tables"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(source: Source, place: tuple[str, int], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        requirements_of(source)
    assert (caught.value.file, caught.value.line) == place and words in str(caught.value)


@given(st.text("#/ script\n=[]\"'x", max_size=60), st.sampled_from(["x.py", "x.toml"]))
def test_any_text_is_read_or_refused(text: str, name: str) -> None:
    try:
        assert isinstance(requirements_of(a_file(f"# /// script\n{text}", name)), Requirements)
    except SourceError as error:
        assert isinstance(error, DeclarationError) and 1 <= error.line <= text.count("\n") + 2
