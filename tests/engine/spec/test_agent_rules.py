"""What [policies], [agents] and [eval.agents] must say together."""

from typing import Any

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.spec.rules import check_declared
from marlaas.engine.spec.task import TaskSpec, agent_map_of, parse, spec_of

TWO: dict[str, Any] = {"policies": {"solver": {}, "critic": {}}, "agents": {"a": "solver", "b": "critic"}}


def task(**tables: Any) -> TaskSpec:
    return parse({"tenant": "lab", "name": "talk", "environment": "talk", **tables}, "talk.toml")


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"agents": {"a": "solver"}}, "there is no [policies.NAME]"),
        ({**TWO, "policy": {"rank": 8}}, "[policy] and [policies.…] both stand there"),
        ({"policies": {"solver": {}}}, "[agents] is missing"),
        ({**TWO, "agents": {"a": "solver", "b": "critik"}}, "'agents.b' names the policy 'critik'"),
        ({**TWO, "agents": {"a": "solver", "b": "solver"}}, "no agent is played by the policy 'critic'"),
        ({"policies": {"base": {}}, "agents": {"a": "base"}}, "a policy cannot be called 'base'"),
        ({"policies": {"../x": {}}, "agents": {"a": "../x"}}, "a policy cannot be called '../x'"),
        ({"policies": {"s": {"frozen": "base"}}, "agents": {"a": "s"}}, "no policy is trained"),
        ({**TWO, "policies": {"solver": {}, "critic": {"frozen": "critic@0"}}}, "which is not trained, either"),
        ({**TWO, "policies": {"solver": {}, "critic": {"frozen": "solver@3"}}}, "Of a policy of this task only"),
        ({**TWO, "policies": {"solver": {}, "critic": {"pool": "critic"}}}, "which is not trained"),
        ({**TWO, "policies": {"solver": {}, "critic": {"pool": "solvr"}}}, "'solvr', which there is not"),
        ({**TWO, "policies": {"solver": {}, "critic": {"pool": "solver", "frozen": "base"}}}, "is frozen and a pool"),
        ({**TWO, "policies": {"solver": {}, "critic": {"start": "3", "frozen": "base"}}}, "begins a training"),
        ({**TWO, "policies": {"solver": {"rnk": 3}, "critic": {}}}, "unknown key 'policies.solver.rnk'"),
        ({**TWO, "policies": {"solver": {"rank": 0}, "critic": {}}}, "'policies.solver.rank' is 0"),
        ({**TWO, "policies": {"solver": 3, "critic": {}}}, "'policies.solver' must be a table"),
        ({**TWO, "agents": {"a": 3}}, "'agents.a' is 3"),
        ({**TWO, "eval": {"agents": {"c": "base"}}}, "'eval.agents.c' is no agent"),
        ({**TWO, "eval": {"agents": {"b": "critic@2"}}}, "write `critic` or `critic@0`"),
        (
            {
                "policies": {"solver": {}, "critic": {"pool": "solver"}},
                "agents": {"a": "solver", "b": "critic"},
                "train": {"deterministic": True, "max_staleness": 0},
            },
            "cannot repeat a pool",
        ),
        (
            {**TWO, "train": {"deterministic": True, "max_staleness": 0}, "eval": {"target": 0.5}},
            "'solver' is measured with 'critic', which is trained beside it",
        ),
    ],
)
def test_what_makes_no_sense_is_one_sentence(tables: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        task(**tables)
    assert str(caught.value).startswith("talk.toml: ") and says in str(caught.value)
    assert caught.value.path.partition(".")[0] in {"policy", "policies", "agents", "eval", "train"}


def test_a_specification_survives_its_json() -> None:
    spec = task(**TWO, eval={"agents": {"b": "critic@0"}, "rotate": True})
    assert parse(spec.to_json(), "again") == spec


def test_a_deterministic_task_may_end_by_a_fixed_score() -> None:
    fixed = {"target": 0.5, "agents": {"a": "solver@0", "b": "critic@0"}}
    assert task(**TWO, train={"deterministic": True, "max_staleness": 0}, eval=fixed).eval.target == 0.5


def test_each_policy_sees_the_task_with_its_own_numbers() -> None:
    policies = {"solver": {"rank": 4, "learning_rate": 1e-3}, "critic": {"groups_per_step": 2}}
    spec = task(**{**TWO, "policies": policies})
    solver, critic = spec_of(spec, "solver"), spec_of(spec, "critic")
    assert (solver.policy.rank, solver.train.learning_rate, solver.train.groups_per_step) == (4, 1e-3, 8)
    assert (critic.policy.rank, critic.train.learning_rate, critic.train.groups_per_step) == (16, "auto", 2)
    assert spec_of(task(), "policy") == task() and agent_map_of(task()).trained == ("policy",)


@pytest.mark.parametrize(
    ("declared", "says"),
    [(("a", "b", "c"), "No policy acts as the agent 'c'"), (("a",), "has no agent 'b'"), ((), ""), (("b", "a"), "")],
)
def test_agents_are_those_that_the_environment_declares(declared: tuple[str, ...], says: str) -> None:
    if not says:
        return check_declared(task(**TWO), declared)
    with pytest.raises(ConfigError, match=says):
        check_declared(task(**TWO), declared)
