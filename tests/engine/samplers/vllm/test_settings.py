"""What vLLM is started with, where it is not; and what its memory is planned to be. Without vLLM."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.devices.software import Installed
from marlaas.engine.errors import BaseModelError
from marlaas.engine.models import memory
from marlaas.engine.models.config import BaseConfig
from marlaas.engine.models.memory import RANKS, batch_for, cache_bytes, rank_class, slots_bytes, whole_blocks
from marlaas.engine.samplers.protocol import SamplerLimits
from marlaas.engine.samplers.vllm import sampler as installed
from marlaas.engine.samplers.vllm.sampler import VllmSettings, engine_arguments, environment, limits_of

CONFIG = BaseConfig("qwen3", 32, 64, 2, 4, 2, 32, 50, 2048, 1e-6, 1e4)


def settings(**changes: object) -> VllmSettings:
    return VllmSettings("folder", CONFIG, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rank", "started"), [(1, 1), (2, 8), (16, 16), (17, 32), (257, 320), (512, 512)])
def test_vllm_is_started_for_the_next_rank_that_it_knows(rank: int, started: int) -> None:
    assert rank_class(rank) == started
    assert engine_arguments(settings(largest_rank=rank))["max_lora_rank"] == started


def test_a_rank_that_none_can_serve_is_refused() -> None:
    with pytest.raises(ValueError, match="up to rank 512; 513 was asked for"):
        rank_class(513)


def test_logprobs_are_as_sampled_and_text_stays_out() -> None:
    for device in ("cpu", "cuda"):
        arguments = engine_arguments(settings(device=device))
        assert arguments["logprobs_mode"] == "processed_logprobs" and arguments["generation_config"] == "vllm"
        assert arguments["skip_tokenizer_init"] and arguments["distributed_executor_backend"] == "uni"
        assert arguments["max_cpu_loras"] >= 1 << 16  # vLLM never drops an adapter by itself
        assert environment(device)["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_what_prompts_begin_with_is_read_once_on_every_device() -> None:
    assert all(engine_arguments(settings(device=device))["enable_prefix_caching"] for device in ("cpu", "cuda"))


def test_a_processor_uses_float32_and_whole_prompts() -> None:
    arguments = engine_arguments(settings(sequences=600, context=300))
    assert arguments["dtype"] == "float32" and arguments["enforce_eager"]
    assert not arguments["enable_chunked_prefill"]
    assert arguments["max_num_batched_tokens"] == 600
    assert engine_arguments(settings(context=2000))["max_num_batched_tokens"] == 2001
    assert arguments["kv_cache_memory_bytes"] == cache_bytes(CONFIG, 600, 300, "cpu")
    assert environment("cpu")["TORCHDYNAMO_DISABLE"] == "1"


def test_a_card_computes_in_bfloat16_and_takes_what_it_is_given() -> None:
    assert "enforce_eager" not in engine_arguments(settings(device="cuda"))
    assert "kv_cache_memory_bytes" not in engine_arguments(settings(device="cuda"))
    given_memory = engine_arguments(settings(device="cuda", memory=1 << 30))
    assert (given_memory["dtype"], given_memory["kv_cache_memory_bytes"]) == ("bfloat16", 1 << 30)
    assert "TORCHDYNAMO_DISABLE" not in environment("cuda")


def test_whoever_shares_the_device_may_say_more() -> None:
    arguments = engine_arguments(settings(extra={"enable_sleep_mode": True, "seed": 3}))
    assert arguments["enable_sleep_mode"] is True and arguments["seed"] == 3


def test_layers_are_named_where_they_are_known() -> None:
    assert "o_proj" in engine_arguments(settings())["lora_target_modules"]
    other = BaseConfig("olmo2", 32, 64, 2, 4, 2, 32, 50, 2048, 1e-6, 1e4)
    assert "lora_target_modules" not in engine_arguments(VllmSettings("folder", other))


@given(st.integers(1, 300), st.integers(1, 4000), st.sampled_from(["cpu", "cuda"]))
def test_every_conversation_fits_at_its_longest(sequences: int, context: int, device: memory.Device) -> None:
    block = memory.BLOCK[device]
    assert context <= whole_blocks(context, device) < context + block
    each = cache_bytes(CONFIG, 2, context, device) - cache_bytes(CONFIG, 1, context, device)
    assert cache_bytes(CONFIG, sequences, context, device) >= sequences * each
    assert batch_for(sequences, context) >= max(sequences, context + 1)


@given(st.sampled_from(RANKS), st.integers(1, 64))
def test_slots_take_the_room_of_the_largest_rank(rank: int, slots: int) -> None:
    assert slots_bytes(CONFIG, rank, slots, "cpu") == 2 * slots_bytes(CONFIG, rank, slots, "cuda")
    assert slots_bytes(CONFIG, rank, slots, "cpu") == slots * slots_bytes(CONFIG, rank, 1, "cpu")


@pytest.mark.parametrize(
    ("found", "said"), [("", "vLLM is not installed"), ("0.25.1", r"vLLM 0\.25\.1 can serve another tenant's adapter")]
)
def test_what_is_to_be_installed_is_said(monkeypatch: pytest.MonkeyPatch, found: str, said: str) -> None:
    monkeypatch.setattr(installed, "find_installed", lambda: Installed(vllm=found))
    with pytest.raises(BaseModelError, match=said + ".*pip install"):
        installed.require()


@pytest.mark.parametrize("found", ["0.26.0", "0.33.0", "1.0", "a build of my own"])
def test_one_that_can_be_used_is_taken(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(installed, "find_installed", lambda: Installed(vllm=found))
    installed.require()


def test_limits_are_what_memory_was_found_for() -> None:
    asked = settings(sequences=64, context=300)
    assert limits_of(asked, 64) == limits_of(asked, 99) == SamplerLimits(64, 300)
    fewer = limits_of(asked, 20)
    assert (fewer.sequences, fewer.context) == (20, 300) and "20 conversations of 300 tokens, of 64" in fewer.note
