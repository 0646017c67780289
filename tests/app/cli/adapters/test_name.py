"""adapters name: given to a version, moved, listed and removed; the engine alone writes."""

from __future__ import annotations

from typing import Any

import pytest

from marlaas.app.operations import commands

from ...commanding import Commander, FakeEngine
from ...filling import Filling


@pytest.fixture
def sent(filling: Filling, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Commands that were sent; task 1 of *lab* has versions, and so has task 2 of *club*."""
    filling.task(tenant="lab", name="sums", made=3)
    filling.task(tenant="club", name="sums", made=1)
    found: list[tuple[Any, ...]] = []

    def command(database: object, kind: str, task: int | None = None, **arguments: Any) -> int:
        found.append((kind, task, arguments))
        return 1

    monkeypatch.setattr(commands, "command", command)
    monkeypatch.setattr(commands, "wait_for_outcomes", lambda reader, sent: dict.fromkeys(sent, ""))
    return found


def given(filling: Filling, tenant: str, name: str, version: str) -> None:
    filling.execute(
        "INSERT INTO adapter_names SELECT ?, ?, id, 1.0 FROM versions WHERE name = ?", tenant, name, version
    )


def test_a_name_is_given(sent: list[tuple[Any, ...]], marlaas: Commander) -> None:
    said = marlaas("adapters", "name", "prod", "1@newest")
    assert (said.code, said.err) == (0, "Clients of tenant lab find t1-v3-i1 as prod.\n")
    assert sent == [("name", 1, {"name": "prod", "version": 3})]
    said = marlaas("adapters", "name", "prod", "1@best", "--json")
    assert said.json == {
        "tenant": "lab",
        "name": "prod",
        "task": 1,
        "policy": "policy",
        "number": 2,
        "version": "t1-v2-i1",
        "kept": True,
        "removed": False,
    }


def test_a_name_that_moves_says_what_it_meant(
    sent: list[tuple[Any, ...]], filling: Filling, marlaas: Commander
) -> None:
    given(filling, "lab", "prod", "t1-v2-i1")
    assert "prod meant t1-v2-i1 before.\n" in marlaas("adapters", "name", "prod", "1@3").err
    assert "before" not in marlaas("adapters", "name", "prod", "1@2").err


def test_names_are_listed_and_removed(sent: list[tuple[Any, ...]], filling: Filling, marlaas: Commander) -> None:
    assert "No version has a name yet" in marlaas("adapters", "name").err
    for tenant, version in (("lab", "t1-v2-i1"), ("club", "t2-v1-i1")):
        given(filling, tenant, "prod", version)
    given(filling, "lab", "test", "t1-v3-i1")
    lines = marlaas("adapters", "name").out.splitlines()
    assert [line.split()[:4] for line in lines[1:]] == [
        ["club", "prod", "2", "t2-v1-i1"],
        ["lab", "prod", "1", "t1-v2-i1"],
        ["lab", "test", "1", "t1-v3-i1"],
    ]
    assert [one["name"] for one in marlaas("adapters", "name", "--json").json] == ["prod", "prod", "test"]
    said = marlaas("adapters", "name", "prod", "--remove")
    assert said.code == 2 and "Several tenants have the name 'prod': club, lab." in said.err
    said = marlaas("adapters", "name", "prod", "--remove", "--tenant", "club")
    assert (said.code, said.err) == (0, "The name prod of tenant club is removed.\n")
    assert sent == [("unname", None, {"tenant": "club", "name": "prod"})]
    said = marlaas("adapters", "name", "tset", "--remove")
    assert said.code == 2 and "No version has the name 'tset'.\n  Did you mean 'test'?" in said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("prod",), "A name is given to a version, or removed."),
        (("prod", "1", "--remove"), "A name is given to a version, or removed."),
        (("17", "1"), "A version cannot have the name '17'."),
        (("prod", "9"), "There is no adapter '9'."),
        (("prod", "1", "--tenant", "club"), "1@2 is of tenant 'lab'."),
    ],
)
def test_what_cannot_be(sent: list[tuple[Any, ...]], marlaas: Commander, words: tuple[str, ...], sentence: str) -> None:
    said = marlaas("adapters", "name", *words)
    assert said.code != 0 and sentence in said.err and not sent
