"""All mistakes of a task are found at once, and none that is only there because of another one."""

from __future__ import annotations

from typing import Any

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.spec.sweep import members
from marlaas.engine.spec.task import parse

TASK = {"tenant": "lab", "name": "sums", "environment": "sums"}
TWO: dict[str, Any] = {"policies": {"solver": {}, "critic": {}}, "agents": {"a": "solver", "b": "critic"}}


def mistakes(table: dict[str, Any]) -> list[tuple[str, str]]:
    """The keys at fault with their codes."""
    with pytest.raises(ConfigError) as caught:
        for member in members(table, "t.toml"):
            parse(member.table, "t.toml")
    assert all(each.message.startswith("t.toml: ") for each in caught.value.mistakes)
    assert str(caught.value).count("\n") == len(caught.value.mistakes) - 1
    return [(each.path, each.code) for each in caught.value.mistakes]


def test_mistakes_of_every_kind_in_all_tables() -> None:
    table = {
        "tenant": "lab",
        "environment": 3,
        "stepps": 9,
        "train": {"loss": "ppoo", "group_size": 1, "top_p": 0.5, "deterministic": True},
        "sampling": {"max_tokens": 300, "max_episode_tokens": 256},
        "eval": {"suite": [{"name": "far"}, {"name": "near", "environment": "near", "prompts": 0}]},
        "data": {"limit": 5, "split": {"evl": 0.1, "test": 2}},
    }
    assert mistakes(table) == [
        ("train.top_p", "refused"),
        ("stepps", "unknown_key"),
        ("name", "missing"),
        ("environment", "wrong_type"),
        ("train.loss", "no_choice"),
        ("train.group_size", "out_of_range"),
        ("eval.suite[0].environment", "missing"),
        ("eval.suite[1].prompts", "out_of_range"),
        ("sampling.max_tokens", "conflict"),
        ("train.deterministic", "conflict"),
        ("data.split", "conflict"),
        ("data.limit", "conflict"),
        ("data.split.evl", "unknown_key"),
        ("data.split.test", "out_of_range"),
    ]


def test_several_policies_and_a_mixture() -> None:
    policies = {"solver": {"rank": 0, "rnk": 1}, "critic": {"pool": "nobody"}, "../x": {}}
    found = mistakes({**TASK, "policies": policies, "agents": {"a": "solver", "b": "critic", "c": "../x"}})
    assert found == [
        ("policies.solver.rnk", "unknown_key"),
        ("policies.solver.rank", "out_of_range"),
        ("policies.../x", "conflict"),
        ("policies.critic.pool", "conflict"),
    ]
    mixture = [{"environment": "a", "share": 0}, {"environmnt": "b"}, {"environment": "c", "name": "test"}]
    assert mistakes({"tenant": "lab", "name": "m", "mixture": mixture, "steps": 0}) == [
        ("steps", "out_of_range"),
        ("mixture[0].share", "out_of_range"),
        ("mixture[1].environmnt", "unknown_key"),
    ]


@pytest.mark.parametrize(
    ("table", "only"),
    [
        ({**TASK, "environment": 3}, "environment"),
        ({"tenant": "lab", "name": "sums", "environmnt": "sums"}, "environmnt"),
        ({**TASK, "agents": {"a": "solver"}, "policies": 3}, "policies"),
        ({**TASK, **TWO, "agents": {"a": 3, "b": "critic"}}, "agents.a"),
        ({**TASK, **TWO, "agents": {"a": "solvr", "b": "critic"}}, "agents.a"),
        ({**TASK, "policies": TWO["policies"]}, "agents"),
        ({**TASK, "kind": "evl", "versions": ["base"]}, "kind"),
        ({"tenant": "lab", "name": "m", "mixture": 3}, "mixture"),
        ({**TASK, "eval": {"suite": [{"environment": "far"}]}}, "eval.suite[0].name"),
        ({**TASK, "sampling": {"max_tokens": 300, "max_episode_tokens": "many"}}, "sampling.max_episode_tokens"),
        ({**TASK, "steps": "five", "train": {"warmup": 100}}, "steps"),
        ({**TASK, "train": {"max_stalenes": 0, "deterministic": True}}, "train.max_stalenes"),
    ],
)
def test_what_follows_from_another_mistake_is_not_told(table: dict[str, Any], only: str) -> None:
    assert [path for path, _ in mistakes(table)] == [only]


def test_a_mistake_that_stands_beside_another_is_told() -> None:
    table = {**TASK, "steps": "five", "train": {"warmup": 100, "discount": 0.5}, "eval": {"samples": 4}}
    assert [path for path, _ in mistakes(table)] == ["steps", "train.discount", "eval.samples"]


def test_all_mistakes_of_a_sweep() -> None:
    sweep = {"name": ["a"], "train.seed": 3, "steps": [2], "environment_config.x": []}
    assert mistakes({**TASK, "train": {"loss": []}, "steps": 5, "sweep": sweep}) == [
        ("train.loss", "out_of_range"),
        ("name", "conflict"),
        ("train.seed", "wrong_type"),
        ("steps", "conflict"),
        ("environment_config.x", "out_of_range"),
    ]
