"""Plans stay within the memory, grow with it, and are refused exactly where the least one does not fit."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.config import PRECISIONS, SAMPLERS, BaseConfig
from marlaas.engine.models.find import load_base
from marlaas.engine.models.memory import (
    LONG,
    PASS_BYTES,
    Budget,
    MemoryPlan,
    Wanted,
    context_for,
    layer_bytes,
    least_plan,
    needs,
    plan_memory,
)
from marlaas.engine.models.weights import parameters as parameters_of

GIGABYTE = 10**9
configs = st.builds(
    BaseConfig,
    architecture=st.just("qwen2"),
    hidden_size=st.sampled_from([160, 256, 896, 2048, 4096]),
    intermediate_size=st.sampled_from([512, 4864, 14336]),
    layers=st.integers(1, 40),
    heads=st.sampled_from([4, 14, 32]),
    kv_heads=st.sampled_from([1, 2, 4]),
    head_dim=st.sampled_from([32, 64, 128]),
    vocab_size=st.sampled_from([288, 32_000, 151_936]),
    context_length=st.sampled_from([256, 1024, LONG, 32_768]),
    norm_eps=st.just(1e-6),
    rope_theta=st.just(1e4),
    tie_word_embeddings=st.booleans(),
)


def parameters(config: BaseConfig) -> int:
    heads = 1 if config.tie_word_embeddings else 2
    return layer_bytes(config) // 4 + heads * config.vocab_size * config.hidden_size


wishes = st.builds(
    lambda config, **options: Wanted(config, parameters(config), **options),
    configs,
    sampler=st.sampled_from(["llama.cpp", "llama.cpp", "torch"]),
    weights=st.sampled_from(["auto", "auto", *PRECISIONS]),
    gguf_bytes=st.sampled_from([0, 0, 3 * GIGABYTE]),
    sequences=st.sampled_from([0, 0, 1, 7, 64, 200]),
    context=st.sampled_from([0, 0, 100, 700, 4096]),
    exact=st.booleans(),
    tasks=st.integers(1, 64),
    slots=st.sampled_from([0, 0, 1, 5, 100]),
)
memory = st.integers(0, 200 * GIGABYTE)


def planned(wanted: Wanted, free: int) -> MemoryPlan | None:
    try:
        return plan_memory(wanted, free)
    except BaseModelError:
        return None


@given(wishes, st.integers(1, 40_000))
def test_a_suggested_context_has_room_and_names_its_memory(wanted: Wanted, tokens: int) -> None:
    says, made_for = context_for(wanted, tokens), wanted.config.context_length
    if tokens > made_for:
        assert says.startswith(f"the base is made for {made_for:,}, ")
        return
    context = int(re.findall(r"`context = (\d+)`", says)[0])
    least = least_plan(replace(wanted, context=context))
    assert tokens <= context <= made_for and least.context == context
    assert says.endswith(f"at least {least.total / 1e9:.1f} GB of memory on a processor")


@given(wishes, memory)
def test_a_plan_keeps_to_the_memory_and_the_settings(wanted: Wanted, free: int) -> None:
    plan = planned(wanted, free)
    if plan is None:
        return
    own = wanted.config.context_length
    assert plan.total <= free
    most = SAMPLERS[wanted.sampler].conversations
    assert plan.sequences == wanted.sequences or (not wanted.sequences and 8 <= plan.sequences <= most)
    assert plan.context == min(wanted.context, own) if wanted.context else min(512, own) <= plan.context <= 2048
    assert plan.slots == min(wanted.slots or plan.slots, wanted.tasks) >= 1
    assert (plan.held == 0) == bool(wanted.slots)
    assert plan.weights == wanted.weights or wanted.weights == "auto" or wanted.sampler == "torch" or wanted.gguf_bytes


@given(wishes, memory)
def test_a_base_is_refused_where_the_least_plan_fails(wanted: Wanted, free: int) -> None:
    least = least_plan(wanted)
    assert (planned(wanted, free) is None) == (least.total > free)
    assert planned(wanted, least.total) is not None


def test_the_shipped_base_runs_as_published() -> None:
    base = load_base("tiny")
    count = parameters_of(base)
    for free in (2, 4, 16, 256):
        plan = plan_memory(Wanted(base.config, count), free * GIGABYTE)
        assert (plan.sequences, plan.context, plan.weights, plan.room) == (128, 512, "f32", PASS_BYTES)


HALF = BaseConfig("qwen2", 896, 4864, 24, 14, 2, 64, 151_936, 32_768, 1e-6, 1e6, tie_word_embeddings=True)
"""As Qwen2.5-0.5B."""


SMOL = BaseConfig("llama", 576, 1536, 30, 9, 3, 64, 49_152, 8192, 1e-5, 1e5, tie_word_embeddings=True)
"""As SmolLM2-135M."""


@pytest.mark.parametrize(("tokens", "limit"), [(256, 2.0), (768, 3.0)])
def test_what_a_default_task_takes_of_a_real_base(tokens: int, limit: float) -> None:
    """By hand: 64 running conversations of whole blocks of 256 tokens, for replies of 128 and of 512."""
    count = parameters(SMOL)
    assert 134_000_000 < count < 135_000_000
    wanted = Wanted(SMOL, count, weights="f16", tasks=1)
    room = Budget().modest(SMOL, tokens - 70).room  # prompts of 50 tokens
    parts = dict(needs(wanted, "f16", 64, tokens, room, 1))
    assert parts["keys and values of conversations"] == 30 * 2 * 3 * 64 * 2 * 66 * tokens
    assert parts["the sampler's weights"] == 2 * count and parts["the trainer's weights"] == 4 * count
    large = sum(parts[what] for what in parts if "program" not in what and "gaps" not in what)
    assert large <= limit * GIGABYTE, parts


def test_a_refusal_names_sum_parts_and_ways_out() -> None:
    wanted = Wanted(HALF, parameters(HALF), weights="f32", sequences=128, context=4096)
    with pytest.raises(BaseModelError) as refused:
        plan_memory(wanted, 12 * GIGABYTE)
    least = least_plan(wanted)
    assert (
        f"needs {least.total / GIGABYTE:.1f} GB of memory for 128 conversations of 4096 tokens" in refused.value.message
    )
    assert "keys and values of conversations (13.1 GB) and adapters in the sampler (" in refused.value.message
    assert refused.value.message.endswith("12.0 GB are free on this machine.")
    assert "`sequences = " in refused.value.hint and "`context = 512`" in refused.value.hint
    with pytest.raises(BaseModelError, match="Choose a smaller base"):
        plan_memory(Wanted(HALF, parameters(HALF)), GIGABYTE)


@given(wishes, memory)
def test_what_a_refusal_proposes_fits(wanted: Wanted, free: int) -> None:
    try:
        plan_memory(wanted, free)
    except BaseModelError as error:
        if "`tasks = 1`" in error.hint:
            assert plan_memory(replace(wanted, tasks=1), free)
        if '`weights = "' in error.hint and "with `context" not in error.hint:
            assert plan_memory(replace(wanted, weights=error.hint.split('weights = "')[1].split('"')[0]), free)
