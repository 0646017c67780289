"""What ``auto`` stands for: by the base's width, and by the lengths of first replies; numbers of authors stand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

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
from marlaas.engine.spec.task import (
    NamedPolicySpec,
    PolicySpec,
    SamplingSpec,
    TaskSpec,
    TrainSpec,
    agent_map_of,
    parse,
    spec_of,
)

TINY = load_base("tiny").config
SHIPPED = BaseTraits(TINY.hidden_size, TINY.context_length)
SMOLLM2 = BaseTraits(576, 8192)
QWEN3 = BaseTraits(1024, 40960, thinks=True, switch=True)
TASK = TaskSpec("lab", "sums", "sums")
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
    spec = by_base(TASK, SHIPPED)
    assert (spec.train.learning_rate, *numbers(spec)) == (5e-4, 32, 256) and not unmeasured(spec)
    assert replaced(TASK, spec) == {
        "train.learning_rate": 5e-4, "sampling.max_tokens": 32, "sampling.max_episode_tokens": 256,
    }  # fmt: skip
    assert by_base(spec, SMOLLM2) == spec, "what is fixed stays, whatever the base"


def test_each_policy_has_the_rate_of_its_alpha() -> None:
    policies = {"a": NamedPolicySpec(), "b": NamedPolicySpec(alpha=64.0), "c": NamedPolicySpec(learning_rate=1e-3)}
    policies |= {"d": NamedPolicySpec(learning_rate="auto"), "e": NamedPolicySpec(frozen="base")}
    agents = {name: name for name in policies}
    spec = by_base(replace(TASK, policies=policies, agents=agents), SMOLLM2)
    rates = {name: spec_of(spec, name).train.learning_rate for name in agent_map_of(spec).trained}
    assert rates == {"a": 1.4e-4, "b": 6.9e-5, "c": 1e-3, "d": 1.4e-4}
    fixed = by_base(replace(spec, train=TrainSpec(learning_rate=1e-5), policies={"a": NamedPolicySpec()}), SMOLLM2)
    assert spec_of(fixed, "a").train.learning_rate == 1e-5
    assert by_base(replace(TASK, policy=PolicySpec(alpha=16.0)), SMOLLM2).train.learning_rate == 2.8e-4


def test_a_base_with_the_switch_does_not_think_unasked() -> None:
    assert by_base(TASK, QWEN3).sampling.thinking is False
    assert numbers(bounded(by_base(TASK, QWEN3), QWEN3))[0] == 256
    wanted = replace(TASK, sampling=SamplingSpec(thinking=True))
    assert numbers(bounded(by_base(wanted, QWEN3), QWEN3))[0] == 2048
    always = replace(QWEN3, switch=False)
    assert by_base(TASK, always).sampling.thinking is None and numbers(bounded(TASK, always))[0] == 2048
    assert by_base(TASK, SMOLLM2).sampling.thinking is None


def test_an_evaluation_has_the_highest_limits_and_is_still_one() -> None:
    spec = by_base(replace(TASK, kind="eval", versions=("base",), steps=1), QWEN3)
    assert numbers(spec) == (256, 1024) and parse(spec.to_json(), "it") == spec


def test_limits_by_the_first_replies() -> None:
    spec = by_base(TASK, SMOLLM2)
    assert unmeasured(spec) and numbers(bounded(spec, SMOLLM2)) == (256, 1024)
    assert numbers(bounded(TASK, BaseTraits(1536, 32768))) == (512, 2048)

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


def test_a_wrong_value_is_told_of_both() -> None:
    table = {"tenant": "lab", "name": "sums", "environment": "sums", "train": {"learning_rate": "fast"}}
    with pytest.raises(ConfigError, match='it must be a number or "auto"'):
        parse(table, "task.toml")
