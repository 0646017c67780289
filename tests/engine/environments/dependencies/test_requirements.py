"""Equal sets of libraries have equal keys, however they are written; what differs for an installer differs here."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.dependencies.requirements import (
    BadRequirements,
    Limits,
    Requirements,
    named,
    requirements,
)

NAMES = st.sampled_from(["a", "reasoning-gym", "nltk", "zope.interface"])
VERSIONS = st.sampled_from(["", "==1.0", ">=2,<3", "!=1.5,>=1"])


@given(st.lists(st.tuples(NAMES, VERSIONS), max_size=5), st.randoms(use_true_random=False))
def test_spelling_and_order_do_not_matter(wanted: list[tuple[str, str]], randomness: random.Random) -> None:
    def spelled(name: str, version: str) -> str:
        other = "".join(randomness.choice((c.upper(), c)) for c in name).replace("-", randomness.choice("-_."))
        return f" {other} {','.join(randomness.sample(version.split(','), version.count(',') + 1))} "

    plain = requirements([name + version for name, version in wanted], None, None)
    other = [spelled(*one) for one in wanted]
    randomness.shuffle(other)
    assert requirements(other, None, None) == plain
    assert requirements(other, None, None).key("3.11") == plain.key("3.11")


def test_what_pip_would_treat_differently_has_another_key() -> None:
    sets = (["a"], ["a==1"], ["a[x]"], ["a==1", "b"], ["a==1; python_version > '3'"], ["a @ https://example.org/a.whl"])
    keys = {requirements(one, None, None).key(python) for one in sets for python in ("3.11", "3.12")}
    assert len(keys) == 2 * len(sets) and all(len(key) == 12 for key in keys)


def test_limits_and_pythons_do_not_make_another_set() -> None:
    plain = requirements(["a"], None, None)
    assert requirements(["a"], ">=3.11", {"memory_mb": 100, "network": False}).key("3.11") == plain.key("3.11")


def test_marlaas_itself_is_always_there() -> None:
    assert requirements(["Marlaas>=0.1", "a"], None, None).dependencies == ("a",)


def test_nothing_declared() -> None:
    assert requirements(None, None, None) == requirements([], None, {}) == Requirements((), "", Limits(4096, True))


@pytest.mark.parametrize(
    ("dependencies", "python", "limits", "words", "near"),
    [
        ("a", None, None, "dependencies must be a list of texts", "dependencies"),
        ([1], None, None, "dependencies must be a list of texts", "dependencies"),
        (["a b"], None, None, "'a b' is no requirement", "a b"),
        (["--index-url=http://evil"], None, None, "is no requirement", "--index-url=http://evil"),
        (["./here"], None, None, "is no requirement", "./here"),
        (None, "3.11", None, "requires-python must be a text", "requires-python"),
        (None, 3.11, None, "requires-python must be a text", "requires-python"),
        (None, None, [], "tool.marlaas must be a table", "marlaas"),
        (None, None, {"memry_mb": 1}, "Did you mean 'memory_mb'?", "memry_mb"),
        (None, None, {"memory_mb": 1}, "must lie between 64 and", "memory_mb"),
        (None, None, {"network": "no"}, "it must be true or false", "network"),
    ],
)
def test_what_cannot_be_is_said(dependencies: object, python: object, limits: object, words: str, near: str) -> None:
    with pytest.raises(BadRequirements) as caught:
        requirements(dependencies, python, limits)
    assert words in str(caught.value) and caught.value.near == near


def test_a_sentence_names_a_few() -> None:
    assert named(("a", "b", "c")) == "a, b, c"
    assert named(("a", "b", "c", "d", "e")) == "a, b, c and 2 more"
