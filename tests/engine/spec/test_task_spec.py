"""What the keys of a task must say together, all mistakes at once, and what auto stands for."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.app.operations.commands import written
from marlaas.engine.errors import ConfigError
from marlaas.engine.models.find import load_base
from marlaas.engine.spec.automatic import (
    BaseTraits,
    FirstReplies,
    bounded,
    by_base,
    by_replies,
    learning_rate,
    replaced,
    unmeasured,
)
from marlaas.engine.spec.losses import PUBLISHED, SHOWN
from marlaas.engine.spec.rules import check_declared
from marlaas.engine.spec.sweep import members
from marlaas.engine.spec.task import (
    Interleaving,
    NamedPolicySpec,
    PolicySpec,
    SamplingSpec,
    TaskSpec,
    TrainSpec,
    agent_map_of,
    components_of,
    parse,
    spec_of,
    tenant_change,
)
from marlaas.plugins.data import Source

from ...examples import examples


def task(**tables: Any) -> dict[str, Any]:
    return {"tenant": "lab", "name": "sums", "environment": "arithmetic", **tables}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a turn longer than its episode": (
        task(sampling={"max_tokens": 300, "max_episode_tokens": 256}),
        "may have only 256 tokens",
    ),
    "more members than a group has": (
        task(train={"group_size": 4, "min_members": 5}),
        "is 5, but a group has only 4 members",
    ),
    "more to drop than to keep": (
        task(train={"group_size": 4, "redundant": 5}),
        "is 5, but a group has only 4 members",
    ),
    "repeatable and by who is first": (
        task(train={"deterministic": True, "max_staleness": 0, "redundant": 1}),
        "is 1, but 'train.deterministic' is set",
    ),
    "repeatable and by which group is first": (
        task(train={"deterministic": True, "max_staleness": 0, "order": "arrival"}),
        "is \"arrival\", but 'train.deterministic' is set",
    ),
    "the first groups of the only ones": (
        task(train={"max_staleness": 0, "order": "arrival"}),
        "is \"arrival\", but 'train.max_staleness' is 0",
    ),
    "what is hard, out of order": (
        task(train={"sampling": "difficulty", "order": "arrival"}),
        'is "arrival", but \'train.sampling\' is "difficulty"',
    ),
    "repeatable and asynchronous": (task(train={"deterministic": True}), "needs 'train.max_staleness' = 0, not 2"),
    "a warm-up without an end": (task(steps=5, train={"warmup": 5}), "the task has only 5 steps"),
    "a clip that nothing uses": (task(train={"clip_low": 0.2}), "the loss dr_grpo clips no ratio from below"),
    "a lower clip of cispo": (task(train={"loss": "cispo", "clip_low": 0.2}), "the loss cispo clips no ratio from"),
    "an upper clip of reinforce": (task(train={"loss": "reinforce", "clip_high": 0.2}), "reinforce clips no ratio"),
    "a dual clip of weights": (task(train={"clip_dual": 3.0}), "the loss dr_grpo has no dual clip"),
    "token masks of gspo": (
        task(train={"loss": "gspo", "importance": "mask"}),
        "the loss gspo has a ratio, not a weight",
    ),
    "weights of sequences in grpo": (
        task(train={"loss": "grpo", "importance": "sequence_truncate"}),
        "the loss grpo has a ratio, not a weight",
    ),
    "a geometric cap of nothing": (task(train={"geometric_cap": 1.1}), "'train.importance' is \"truncate\""),
    "a reference of no KL term": (task(train={"kl_reference": "start"}), "without 'train.kl' there is no KL term"),
    "a floor of no weights": (task(train={"importance": "none", "importance_floor": 0.5}), "uses no weights"),
    "a penalty without a buffer": (
        task(train={"overlong": "penalty"}, sampling={"max_tokens": 32}),
        "of 1 to 32 tokens, not 0",
    ),
    "a penalty for every answer": (
        task(train={"overlong": "penalty", "overlong_buffer": 33}, sampling={"max_tokens": 32}),
        "32 tokens, not 33",
    ),
    "a buffer without a penalty": (
        task(train={"overlong": "mask", "overlong_buffer": 8}),
        "'train.overlong' is \"mask\"",
    ),
    "a discount of whole episodes": (task(train={"discount": 0.9}), "all that an episode is paid counts alike"),
    "top-p of the likeliest": (task(eval={"top_p": 0.9}), "'eval.temperature' = 0 takes the likeliest token"),
    "patience without evaluations": (task(eval={"patience": 2, "every": 0}), "'eval.every' = 0 measures only"),
    "samples that are all the same": (task(eval={"samples": 8}), "all samples of a prompt are the same"),
}


@pytest.mark.parametrize(("table", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_in_one_sentence(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=r"^task\.toml: ") as caught:
        parse(table, "task.toml")
    error = caught.value
    assert says in error.message and error.hint and error.code == "conflict"
    assert error.message.startswith(f"task.toml: '{error.path}' ") and all(
        "." in key or key == "steps" for key in error.also
    )


@pytest.mark.parametrize(
    "train",
    [
        {"loss": "dapo", "clip_low": 0.1, "clip_high": 0.3, "dynamic_sampling": False},
        {"loss": "cispo", "clip_high": 0.5, "importance": "mask", "importance_floor": 0.5},
        {"overlong": "penalty", "overlong_buffer": 32},
        {"schedule": "cosine", "warmup": 59},
        {"advantage_level": "turn", "discount": 0.5, "loss": "gspo"},
        {"group_size": 4, "min_members": 4},
        {"group_size": 4, "redundant": 4},
        {"order": "arrival", "redundant": 2, "max_staleness": 1},
        {"deterministic": True, "max_staleness": 0, "epochs": 2, "loss": "ppo"},
        *({"loss": loss} for loss in PUBLISHED if loss not in (*SHOWN, "distill")),
        {"loss": "distill", "kl_reference": "17@best"},
    ],
)
def test_what_goes_together_is_accepted(train: dict[str, Any]) -> None:
    spec = parse(task(train=train), "task.toml")
    assert parse(spec.to_json(), "row") == spec


@pytest.mark.parametrize(
    ("train", "fewest"),
    [({}, 7), ({"group_size": 7}, 7), ({"group_size": 16}, 14), ({"group_size": 2}, 2), ({"min_members": 3}, 3)],
)
def test_one_member_in_eight_may_be_lost(train: dict[str, int], fewest: int) -> None:
    assert parse(task(train=train), "task.toml").train.fewest_members == fewest


@pytest.mark.parametrize("table", ["sampling", "train"])
@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p"])
def test_training_draws_from_all_tokens(table: str, key: str) -> None:
    with pytest.raises(ConfigError, match="what is trained on must be what was sampled") as caught:
        parse(task(**{table: {key: 1}}), "task.toml")
    assert caught.value.path == f"{table}.{key}" and "under [eval]" in caught.value.hint
    spec = parse(task(eval={"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1}), "task.toml").eval
    assert (spec.top_p, spec.top_k, spec.min_p) == (0.9, 20, 0.1)


TWO: dict[str, Any] = {"policies": {"solver": {}, "critic": {}}, "agents": {"a": "solver", "b": "critic"}}


def talk(**tables: Any) -> TaskSpec:
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
        talk(**tables)
    assert str(caught.value).startswith("talk.toml: ") and says in str(caught.value)
    assert caught.value.path.partition(".")[0] in {"policy", "policies", "agents", "eval", "train"}


def test_each_policy_sees_the_task_with_its_own_numbers() -> None:
    policies = {"solver": {"rank": 4, "learning_rate": 1e-3}, "critic": {"groups_per_step": 2}}
    spec = talk(**{**TWO, "policies": policies})
    solver, critic = spec_of(spec, "solver"), spec_of(spec, "critic")
    assert (solver.policy.rank, solver.train.learning_rate, solver.train.groups_per_step) == (4, 1e-3, 8)
    assert (critic.policy.rank, critic.train.learning_rate, critic.train.groups_per_step) == (16, "auto", 2)
    assert spec_of(talk(), "policy") == talk() and agent_map_of(talk()).trained == ("policy",)


@pytest.mark.parametrize(
    ("declared", "says"),
    [(("a", "b", "c"), "No policy acts as the agent 'c'"), (("a",), "has no agent 'b'"), ((), ""), (("b", "a"), "")],
)
def test_agents_are_those_that_the_environment_declares(declared: tuple[str, ...], says: str) -> None:
    if not says:
        return check_declared(talk(**TWO), declared)
    with pytest.raises(ConfigError, match=says):
        check_declared(talk(**TWO), declared)


TASK = {"tenant": "lab", "name": "sums", "environment": "sums"}


def test_all_of_it_reaches_the_process() -> None:
    data = {"path": "/d/x.jsonl", "columns": {"question": "prompt"}, "split": {"eval": "test"}, "limit": 5}
    spec = parse(TASK | {"data": data}, "t")
    assert spec.data.record == data and parse(spec.to_json(), "t") == spec
    assert Source.of(data) == Source(Path("/d/x.jsonl"), {"question": "prompt"}, {"eval": "test"}, 5)


@pytest.mark.parametrize(
    ("data", "path", "says"),
    [
        ({"limit": 3}, "data.limit", "no 'data.path'"),
        ({"columns": {"a": "b"}}, "data.columns", "no 'data.path'"),
        ({"path": "x", "limit": -1}, "data.limit", "between 0 and"),
        ({"path": "x", "columns": {"a": 1}}, "data.columns.a", "a text in quotes"),
        ({"path": "x", "columns": ["a"]}, "data.columns", "must be a table"),
        ({"path": "x", "split": {"evl": 0.1}}, "data.split.evl", "unknown split"),
        ({"path": "x", "split": {"eval": True}}, "data.split.eval", "a share such as 0.1"),
        ({"path": "x", "split": {"eval": ""}}, "data.split.eval", "a share such as 0.1"),
        ({"path": "x", "split": {"eval": 1}}, "data.split.eval", "between 0 and 1"),
        ({"path": "x", "split": {"train": 0.5}}, "data.split.train", "what is left"),
        ({"path": "x", "split": {"eval": 0.1, "test": "t"}}, "data.split", "names and shares"),
        ({"path": "x", "split": {"eval": 0.5, "test": 0.5}}, "data.split", "nothing to train on"),
    ],
)
def test_what_is_refused(data: dict[str, Any], path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse(TASK | {"data": data}, "t")
    assert caught.value.path == path


SHARES = st.lists(st.decimals("0.01", "10", places=2).map(float), min_size=1, max_size=5)


@given(SHARES, st.integers(1, 120))
def test_each_has_its_share_to_within_one_group(shares: list[float], groups: int) -> None:
    drawing, total = Interleaving(shares), sum(Fraction(str(share)) for share in shares)
    drawn = [drawing.of(number) for number in range(groups)]
    counts = Counter[int]()
    for number, (place, before) in enumerate(drawn, 1):
        assert before == counts[place]
        counts[place] += 1
        assert all(abs(counts[p] - number * Fraction(str(s)) / total) < 1 for p, s in enumerate(shares))
        assert drawing.before(number) == [counts[place] for place in range(len(shares))]
    again = Interleaving(shares)
    assert again.of(groups - 1) == drawn[-1], "a restart draws the same"


EASY = {"environment": "arithmetic", "share": 2, "config": {"digits": 1}, "name": "easy"}
HARD = {"environment": "arithmetic", "config": {"digits": 3}}
GUESS = {"environment": "guess"}


def table(**more: Any) -> dict[str, Any]:
    return {"tenant": "lab", "name": "both", **more}


@pytest.mark.parametrize(
    ("more", "path", "says"),
    [
        ({}, "environment", "'environment' is missing"),
        ({"environment": "guess", "mixture": [EASY]}, "environment", "stands beside"),
        ({"environment_config": {"digits": 1}, "mixture": [EASY]}, "environment_config", "stands beside"),
        ({"mixture": [GUESS, GUESS]}, "mixture", "names two components alike"),
        ({"mixture": [{"environment": "a b"}]}, "mixture", "has a component that cannot be called 'a b'"),
        ({"mixture": [{"environment": "test"}]}, "mixture", "has a component that cannot be called 'test'"),
        (
            {"mixture": [GUESS], "eval": {"suite": [{"name": "guess", "environment": "arithmetic"}]}},
            "eval.suite",
            "a suite is called 'guess', as is a component",
        ),
        ({"mixture": [GUESS], "kind": "eval", "versions": ["base"]}, "mixture", "is about training"),
        ({"mixture": [GUESS], "data": {"path": "rows.jsonl"}}, "data.path", "names the rows of one environment"),
        ({"mixture": [GUESS], "train": {"sampling": "difficulty"}}, "train.sampling", "cannot be drawn by"),
        ({"mixture": [GUESS, {**EASY, "data": {"limit": 3}}]}, "mixture[1].data.limit", "no 'mixture[1].data.path'"),
        (
            {"mixture": [{**GUESS, "data": {"path": "x", "split": {"evl": 0.1}}}]},
            "mixture[0].data.split.evl",
            "unknown",
        ),
        (
            {"mixture": [{**GUESS, "data": {"path": "x", "split": {"eval": 0.5, "test": 0.5}}}]},
            "mixture[0].data.split",
            "nothing to train on",
        ),
        ({"mixture": [{**GUESS, "data": "rows.jsonl"}]}, "mixture[0].data", "must be a table"),
        ({"mixture": [{"environment": f"e{n}"} for n in range(65)]}, "mixture", "has 65 tables"),
        ({"mixture": [{"share": 1.0}]}, "mixture[0].environment", "is missing"),
        ({"mixture": [{**GUESS, "share": 0}]}, "mixture[0].share", "must lie between 0.001 and 1000"),
        ({"mixture": GUESS}, "mixture", "must be a list of tables"),
    ],
)
def test_what_cannot_be_mixed_is_refused(more: dict[str, Any], path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"^task\.toml: ") as caught:
        parse(table(**more), "task.toml")
    assert says in caught.value.message and caught.value.path == path


def test_a_mixture_is_written_and_read_back() -> None:
    spec = parse(table(mixture=[EASY, HARD, GUESS]), "task.toml")
    assert parse(json.loads(json.dumps(spec.to_json())), "again") == spec == parse(spec.to_json(), "again")
    assert parse(tomllib.loads(written(spec.to_json())), "again") == spec
    assert spec.played == "arithmetic + guess"
    assert {name: (own.environment, own.environment_config) for name, own in components_of(spec).items()} == {
        "easy": ("arithmetic", {"digits": 1}),
        "arithmetic": ("arithmetic", {"digits": 3}),
        "guess": ("guess", {}),
    }
    alone = parse(table(environment="guess"), "task.toml")
    assert components_of(alone) == {"": alone} and alone.played == "guess"


WATCHED = {"tenant": "lab", "name": "sums", "environment": "arithmetic"}


@pytest.mark.parametrize(
    ("watch", "says", "path"),
    [
        ({"pause": ["reward_hack"]}, "Did you mean 'reward_hacking'?", "watch.pause"),
        ({"pause": "one_reply"}, "must be a list", "watch.pause"),
        ({"length": 1.0}, "between 1.1 and 1000", "watch.length"),
        ({"kl": 0.5}, "without 'train.kl' the distance to the base is not measured", "watch.kl"),
        (
            {"pause": ["one_reply"], "ignore": ["one_reply"]},
            "names one_reply, which 'watch.ignore' names",
            "watch.pause",
        ),
    ],
)
def test_mistakes_are_refused(watch: dict[str, Any], says: str, path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse({**WATCHED, "watch": watch}, "t")
    assert says in str(refused.value) and refused.value.path == path


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"weight": 1}, "A tenant's name"),
        ({"name": 7, "weight": 1}, "A tenant's name"),
        ({"name": "bio"}, "Nothing is to change"),
        ({"name": "bio", "colour": "green"}, "knows no 'colour'"),
        ({"name": "bio", "tasks": True}, "cannot be True"),
        ({"name": "bio", "tasks": "2"}, "cannot be 2; it is a whole number"),
        ({"name": "bio", "weight": float("inf")}, "cannot be inf"),
        ({"name": "bio", "tokens_per_day": 10**16}, "from 0 to 1,000,000,000,000,000"),
    ],
)
def test_anything_else_is_refused(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tenant_change(arguments)
    assert sentence in str(caught.value)


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
        "train": {"loss": "ppoo", "group_size": 0, "top_p": 0.5, "deterministic": True},
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


def test_all_mistakes_of_a_sweep() -> None:
    sweep = {"name": ["a"], "train.seed": 3, "steps": [2], "environment_config.x": []}
    assert mistakes({**TASK, "train": {"loss": []}, "steps": 5, "sweep": sweep}) == [
        ("name", "conflict"),
        ("train.seed", "wrong_type"),
        ("steps", "conflict"),
        ("train.loss", "out_of_range"),
        ("environment_config.x", "out_of_range"),
    ]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)


@settings(max_examples=examples(4))
@given(st.dictionaries(st.sampled_from(["tenant", "name", "environment", "steps", "train", "mixture", "x"]), _json))
def test_any_table_is_a_task_or_refused_in_words(table: dict[str, object]) -> None:
    try:
        assert isinstance(parse(table, "f"), TaskSpec)
    except ConfigError as error:
        assert error.message


TINY = load_base("tiny").config
SHIPPED = BaseTraits(TINY.hidden_size, TINY.context_length)
SMOLLM2 = BaseTraits(576, 8192)
QWEN3 = BaseTraits(1024, 40960, thinks=True, switch=True)
PLAIN = TaskSpec("lab", "sums", "sums")
limits = st.none() | st.integers(1, 5000)


def numbers(spec: TaskSpec) -> tuple[object, object]:
    return spec.sampling.max_tokens, spec.sampling.max_episode_tokens


@pytest.mark.parametrize(
    ("width", "rate"),
    [(64, 5e-4), (160, 5e-4), (576, 1.4e-4), (896, 8.9e-5), (1536, 5.2e-5), (2560, 3.1e-5), (3584, 2.2e-5)],
)
def test_the_rate_falls_with_the_width(width: int, rate: float) -> None:
    assert learning_rate(width, 32.0) == rate
    assert learning_rate(width, 64.0) == pytest.approx(rate / 2, rel=0.05), "twice alpha, half the rate"


def test_the_shipped_base_has_what_its_examples_were_tuned_with() -> None:
    spec = by_base(PLAIN, SHIPPED)
    assert (spec.train.learning_rate, *numbers(spec)) == (5e-4, 32, 256) and not unmeasured(spec)
    assert replaced(PLAIN, spec) == {
        "train.learning_rate": 5e-4, "sampling.max_tokens": 32, "sampling.max_episode_tokens": 256,
    }  # fmt: skip
    assert by_base(spec, SMOLLM2) == spec, "what is fixed stays, whatever the base"


def test_each_policy_has_the_rate_of_its_alpha() -> None:
    policies = {"a": NamedPolicySpec(), "b": NamedPolicySpec(alpha=64.0), "c": NamedPolicySpec(learning_rate=1e-3)}
    policies |= {"d": NamedPolicySpec(learning_rate="auto"), "e": NamedPolicySpec(frozen="base")}
    agents = {name: name for name in policies}
    spec = by_base(replace(PLAIN, policies=policies, agents=agents), SMOLLM2)
    rates = {name: spec_of(spec, name).train.learning_rate for name in agent_map_of(spec).trained}
    assert rates == {"a": 1.4e-4, "b": 6.9e-5, "c": 1e-3, "d": 1.4e-4}
    fixed = by_base(replace(spec, train=TrainSpec(learning_rate=1e-5), policies={"a": NamedPolicySpec()}), SMOLLM2)
    assert spec_of(fixed, "a").train.learning_rate == 1e-5
    assert by_base(replace(PLAIN, policy=PolicySpec(alpha=16.0)), SMOLLM2).train.learning_rate == 2.8e-4


def test_a_base_with_the_switch_does_not_think_unasked() -> None:
    assert by_base(PLAIN, QWEN3).sampling.thinking is False
    assert numbers(bounded(by_base(PLAIN, QWEN3), QWEN3))[0] == 256
    wanted = replace(PLAIN, sampling=SamplingSpec(thinking=True))
    assert numbers(bounded(by_base(wanted, QWEN3), QWEN3))[0] == 2048
    always = replace(QWEN3, switch=False)
    assert by_base(PLAIN, always).sampling.thinking is None and numbers(bounded(PLAIN, always))[0] == 2048
    assert by_base(PLAIN, SMOLLM2).sampling.thinking is None


def test_an_evaluation_has_the_highest_limits_and_is_still_one() -> None:
    spec = by_base(replace(PLAIN, kind="eval", versions=("base",), steps=1), QWEN3)
    assert numbers(spec) == (256, 1024) and parse(spec.to_json(), "it") == spec


def test_limits_by_the_first_replies() -> None:
    spec = by_base(PLAIN, SMOLLM2)
    assert unmeasured(spec) and numbers(bounded(spec, SMOLLM2)) == (256, 1024)
    assert numbers(bounded(PLAIN, BaseTraits(1536, 32768))) == (512, 2048)

    def measured(*replies: int, episodes: tuple[int, ...] = (), single: bool = True) -> tuple[object, object]:
        return numbers(by_replies(spec, SMOLLM2, FirstReplies(replies, episodes or replies, single)))

    assert measured(*range(10, 25), 256) == (64, 64), "one runaway of sixteen does not count"
    assert measured(*[40] * 12, *[256] * 4) == (256, 256), "a quarter of them do"
    assert measured(3, 4) == (32, 32) and measured() == (256, 1024)
    assert measured(20, 20, 20, episodes=(60,), single=False) == (64, 128)
    assert measured(20, 20, 20, episodes=(300,), single=False) == (64, 608)


@given(limits, limits, st.integers(0, 64), st.lists(st.integers(1, 512), max_size=20), st.booleans())
def test_what_the_author_set_stands_and_fits(
    most: int | None, whole: int | None, buffer: int, replies: list[int], single: bool
) -> None:
    given_ = {"max_tokens": most or "auto", "max_episode_tokens": whole or "auto"}
    train = {"overlong": "penalty", "overlong_buffer": buffer} if buffer else {}
    table = {"tenant": "lab", "name": "sums", "environment": "sums", "sampling": given_, "train": train}
    try:
        spec = parse(table, "task.toml")
    except ConfigError:
        return
    first = FirstReplies(tuple(replies), (sum(replies),) if replies else (), single)
    for base in (SHIPPED, SMOLLM2, QWEN3):
        known = by_base(spec, base)
        settled, bounds = by_replies(known, base, first), bounded(known, base)
        for one in (settled, bounds):
            assert not unmeasured(one) and parse(one.to_json(), "task.toml") == one
            assert numbers(one)[0] == (most or numbers(one)[0]) and numbers(one)[1] == (whole or numbers(one)[1])
        assert numbers(settled) <= numbers(bounds) and numbers(settled)[1] <= numbers(bounds)[1]  # type: ignore[operator]
