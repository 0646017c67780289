"""Who the policies of a task are, in words."""

from __future__ import annotations

import pytest

from marlaas.app.words.policies import agent_map_lines, kind, names, policy_and_version, who
from marlaas.engine.spec.agents import agent_map_of
from marlaas.engine.spec.policies import NamedPolicySpec
from marlaas.engine.spec.task import TaskSpec

from ..filling import HOSTILE


def test_what_a_policy_is() -> None:
    policies = (NamedPolicySpec(), NamedPolicySpec(frozen="base"), NamedPolicySpec(frozen="17@best"))
    assert [kind(policy) for policy in policies] == ["trained", "frozen: the bare base", "frozen: 17@best"]
    assert kind(NamedPolicySpec(pool="player")) == "pool of player"


@pytest.mark.parametrize(
    ("speaker", "spoke", "words"),
    [
        ("", None, "adder v7"),
        ("rivals", 4, "rivals v4"),
        ("player@0", 0, "player@0"),
        ("17@best", 12, "17@best v12"),
        ("base", 0, "base"),
        ("sorter", None, "sorter"),
    ],
)
def test_who_spoke(speaker: str, spoke: int | None, words: str) -> None:
    assert policy_and_version("adder", 7, speaker, spoke) == words


def test_agents_and_who_spoke_for_them() -> None:
    assert who("agent", "policy", 3) == "", "the version of the only one is said elsewhere"
    assert who("critic", "policy", 3) == "critic"
    assert who("adder", "adder", 17) == "adder v17" and who("first", "player", 5) == "first: player v5"
    assert who("second", "player", 5, "rivals", 2) == "second: rivals v2"
    assert who("old", "player", 5, "old", 2) == "old: old v2"


def test_foreign_names_are_safe() -> None:
    told = [names([HOSTILE, "x"]), policy_and_version("p", 1, HOSTILE, 3), kind(NamedPolicySpec(frozen=HOSTILE))]
    assert all("\x1b" not in text and "\n" not in text and "\u202e" not in text for text in told)


def test_the_agent_map_of_a_task_in_sentences() -> None:
    spec = TaskSpec(
        "lab",
        "duel",
        "race",
        policies={
            "player": NamedPolicySpec(start="17@best"),
            "rivals": NamedPolicySpec(pool="player", size=4, every=2),
            "old": NamedPolicySpec(frozen="player@0"),
        },
        agents={"first": "player", "third": "player", "second": "rivals", "guest": "old"},
    )
    assert agent_map_lines(agent_map_of(spec), True, [("second", "player@0")]) == [
        "player acts as first, third: trained, rank 16, from 17@best",
        "rivals acts as second: one of up to 4 earlier versions of player, every 2 steps one",
        "old acts as guest: frozen: player@0",
        "held-out: player@0 for second; the agents change places from prompt to prompt",
    ]
    assert agent_map_lines(agent_map_of(TaskSpec("lab", "sums", "arithmetic"))) == []
