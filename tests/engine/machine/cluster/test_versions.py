"""Which differences of versions keep a node out, and in which words."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from marlaas.engine.machine.cluster.node import NEEDED, Versions, differences, own_versions

HERE = Versions("3.12.3", "0.1.0", "2.60.0", "2.11.0+cpu", "0.3.36", "0.26.0")


@pytest.mark.parametrize("field", [field.name for field in fields(Versions)])
def test_each_version_counts(field: str) -> None:
    other = differences(HERE, replace(HERE, **{field: "9.9.9"}))
    assert "is 9.9.9 there and" in other and other.endswith(" here.") and other.count("9.9.9") == 1
    missing = differences(HERE, replace(HERE, **{field: ""}))
    assert ("is missing there" in missing) is (field in NEEDED)
    assert differences(replace(HERE, **{field: ""}), HERE) == missing.replace("missing there", "x") or field in NEEDED


@pytest.mark.parametrize(("field", "value"), [("python", "3.12.11"), ("torch", "2.11.0+cu128"), ("vllm", "0.26.0+cu1")])
def test_patches_of_python_and_builds_do_not_count(field: str, value: str) -> None:
    assert differences(HERE, replace(HERE, **{field: value})) == ""


def test_all_differences_are_one_sentence() -> None:
    told = differences(HERE, replace(HERE, python="3.11.9", torch="2.12.0", llama_cpp=""), "on ada")
    assert told == "Python is 3.11.9 on ada and 3.12.3 here, torch is 2.12.0 on ada and 2.11.0+cpu here."


def test_this_environment_fits_itself() -> None:
    own = own_versions()
    assert differences(own, own) == "" and own.marlaas and own.python.startswith("3.")
