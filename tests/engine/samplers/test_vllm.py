"""What vLLM is started with, its adapters' folders and what it reports, without vLLM: a list takes its place."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file

from marlaas.engine.adapters.peft_folder import PREFIX, WEIGHTS
from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.devices.software import Installed
from marlaas.engine.errors import AdapterError, BaseModelError
from marlaas.engine.home.guard import PrivateFolder
from marlaas.engine.models.config import BaseConfig
from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.memory import rank_class
from marlaas.engine.samplers.batching.requests import Version as Serving
from marlaas.engine.samplers.options import Wishes
from marlaas.engine.samplers.protocol import SampleRequest, SamplerLimits
from marlaas.engine.samplers.vllm import sampler as vllm
from marlaas.engine.samplers.vllm.sampler import (
    Engine,
    FolderAdapters,
    Progress,
    VllmSettings,
    _positions,
    _reported,
    engine_arguments,
    environment,
    limits_of,
)

from ..rollout.contract.asking import State

CONFIG = BaseConfig("qwen3", 32, 64, 2, 4, 2, 32, 50, 2048, 1e-6, 1e4)


def settings(**changes: object) -> VllmSettings:
    return VllmSettings("folder", CONFIG, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rank", "started"), [(1, 1), (2, 8), (16, 16), (17, 32), (257, 320), (512, 512)])
def test_vllm_is_started_for_the_next_rank_that_it_knows(rank: int, started: int) -> None:
    assert engine_arguments(settings(largest_rank=rank))["max_lora_rank"] == started
    with pytest.raises(ValueError, match="up to rank 512; 513 was asked for"):
        rank_class(513)


def test_logprobs_are_as_sampled_and_text_stays_out() -> None:
    for device in ("cpu", "cuda"):
        arguments = engine_arguments(settings(device=device, extra={"enable_sleep_mode": True, "seed": 3}))
        assert arguments["logprobs_mode"] == "processed_logprobs" and arguments["generation_config"] == "vllm"
        assert arguments["skip_tokenizer_init"] and arguments["distributed_executor_backend"] == "uni"
        assert arguments["max_cpu_loras"] >= 1 << 16  # vLLM never drops an adapter by itself
        assert arguments["enable_prefix_caching"], "what prompts begin with is read once"
        assert "o_proj" in arguments["lora_target_modules"]
        assert arguments["enable_sleep_mode"] is True and arguments["seed"] == 3, "whoever shares the device says more"
        assert environment(device)["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    other = BaseConfig("olmo2", 32, 64, 2, 4, 2, 32, 50, 2048, 1e-6, 1e4)
    assert "lora_target_modules" not in engine_arguments(VllmSettings("folder", other))


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("", "vLLM is not installed.*pip install"),
        ("0.25.1", r"vLLM 0\.25\.1 can serve another tenant's adapter.*pip install"),
        *((version, None) for version in ("0.26.0", "0.33.0", "1.0", "a build of my own")),
    ],
)
def test_one_that_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch, version: str, words: str | None) -> None:
    monkeypatch.setattr(vllm, "find_installed", lambda: Installed(vllm=version))
    if words is None:
        vllm.require()
        return
    with pytest.raises(BaseModelError, match=words):
        vllm.require()


def test_limits_are_what_memory_was_found_for() -> None:
    asked = settings(sequences=64, context=300)
    assert limits_of(asked, 64) == limits_of(asked, 99) == SamplerLimits(64, 300)
    fewer = limits_of(asked, 20)
    assert (fewer.sequences, fewer.context) == (20, 300) and "20 conversations of 300 tokens, of 64" in fewer.note


def test_the_likeliest_stand_behind_what_was_asked_for() -> None:
    nested = SimpleNamespace(
        start_indices=[0, 0, 3],
        end_indices=[0, 3, 6],  # the first token of a prompt has none
        token_ids=[7, 9, 7, 3, 3, 4],
        logprobs=[-1.0, -0.5, -1.0, -0.1, -0.1, -2.5],
    )
    given, found = _reported(_positions(nested), 2)
    assert given.tolist() == pytest.approx([-1.0, -0.1])
    assert found.tokens.tolist() == [[9, 7], [3, 4]] and found.tokens.dtype == np.int32
    np.testing.assert_allclose(found.logprobs, [[-0.5, -1.0], [-0.1, -2.5]])


@pytest.mark.parametrize("length", [1, 2])
def test_a_prompt_of_any_length_is_reported(length: int) -> None:
    request = SampleRequest("a", "v", np.arange(length, dtype=np.int32), 1, 1.0, (), 0).wishing(Wishes(prompt=True))
    serving = cast(Serving, SimpleNamespace(name="v", checksum="0"))
    turn = vllm.Turn("turn", request, serving, cast(Any, None), room=1)
    turn.take(Progress("turn", [3], [([3], [-0.5])], [([1], [-2.0])] * (length - 1), "length", 0))
    result = turn.result("length")
    assert result.extras is not None and result.extras.prompt_logprobs is not None
    assert result.extras.prompt_logprobs.tolist() == [-2.0] * (length - 1)
    assert result.logprobs.tolist() == [-0.5]


class Reader:
    """Reads adapters as vLLM does: once, when they are added."""

    def __init__(self) -> None:
        self.held: dict[int, dict[str, np.ndarray]] = {}

    def add_adapter(self, handle: int, folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS).items()
        self.held[handle] = {name.removeprefix(PREFIX).removesuffix(".weight"): array for name, array in tensors}

    def remove_adapter(self, handle: int) -> None:
        del self.held[handle]


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def folder(tmp_path: Path) -> PrivateFolder:
    return PrivateFolder(tmp_path / "scratch", "vllm-")


@pytest.fixture
def adapters(reader: Reader, base: BaseModel, folder: PrivateFolder) -> FolderAdapters:
    return FolderAdapters(cast(Engine, reader), base.path, folder, 16)


def test_every_adapter_arrives_as_it_is_in_a_folder_of_its_own(
    adapters: FolderAdapters, reader: Reader, state: State, folder: PrivateFolder
) -> None:
    """Also after all folders were deleted. A handle is never used again."""
    sent = read_state(state(1)).adapter
    first, second = adapters.load_adapter(sent, 16.0), adapters.load_adapter(sent, 4.0)
    arrived = reader.held[first]
    assert all(np.array_equal(arrived[name], array) for name, array in sent.items()) and len(arrived) == len(sent)
    adapters.free_adapter(first)
    third = adapters.load_adapter(sent, 4.0)
    assert len({first, second, third}) == 3
    assert {path.name for path in folder.path.iterdir() if path.is_dir()} == {str(second), str(third)}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir() if path.is_dir()} == {0o700}
    shutil.rmtree(folder.path)
    adapters.load_adapter(sent, 4.0)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    adapters.free_adapter(second)
    assert len(reader.held) == 2


def test_an_adapter_that_is_refused_leaves_nothing(
    adapters: FolderAdapters, reader: Reader, state: State, folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    sent, large = read_state(state(0)).adapter, read_state(state(1)).adapter
    few = FolderAdapters(cast(Engine, reader), folder.path, folder, 15)
    with pytest.raises(AdapterError, match=r"rank 16; vLLM was started for ranks up to 15.*`largest_rank = 16`"):
        few.load_adapter(large, 4.0)
    monkeypatch.setattr(vllm, "write_peft_folder", full)
    with pytest.raises(AdapterError, match=r"could not be written to .*No space left on device"):
        adapters.load_adapter(sent, 4.0)
    assert not [path for path in folder.path.iterdir() if path.is_dir()] and not reader.held
