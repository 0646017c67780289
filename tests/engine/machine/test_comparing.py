"""A base is compared with transformers, and sampler and trainer with each other; which gaps are rounding."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlaas.app.operations.bases import list_bases
from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.paths import TINY_BASE, Home
from marlaas.engine.home.settings import RolloutSettings
from marlaas.engine.machine import reference
from marlaas.engine.machine.reference import (
    check_comparison,
    compare_base,
    compare_here,
    compared_before,
    spoken_comparison,
)
from marlaas.engine.machine.routing.router import (
    EXACT,
    FAST,
    HALF,
    POLICY,
    ROUNDED,
    Agreement,
    Tolerance,
    compare,
    tolerance_of,
)
from marlaas.engine.models import reference as results, rope, tensors
from marlaas.engine.models.config import PRECISIONS
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.gguf import GgufNames
from marlaas.engine.models.reference import AGREES, DISAGREES, UNVERIFIED, comparison_of, is_unverified, keep_comparison
from marlaas.engine.samplers.llama.model import LlamaSampler, ensure_base_gguf
from marlaas.engine.store.rows import EngineRow
from marlaas.engine.trainer.torch_trainer import TorchTrainer
from tools.random_base.make import make_base

from ..rollout.random_base import write_base


def test_the_shipped_base_carries_its_result(tmp_path: Path) -> None:
    """By checksum. After a change of its files, ``python -m marlaas.engine.machine.reference 0 FOLDER`` writes it."""
    result = comparison_of(load_base("tiny"), Path("nowhere"))
    assert result is not None and result.state == AGREES and result.gap < 1e-3 and result.conversations == 6
    for path in TINY_BASE.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert comparison_of(load_base(tmp_path), tmp_path) is not None
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert comparison_of(load_base(tmp_path), tmp_path) is None, "a change is another base"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    changes = {"max_position_embeddings": 3072}
    return make_base(tmp_path_factory.mktemp("base"), "qwen3", rows=1600, changes=changes)


def test_agreement_is_kept_for_the_installed_versions(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = compare_here(base)
    assert (result.state, result.tokens, result.conversations) == (AGREES, 3072, 12)
    assert "3,072 tokens differ by" in spoken_comparison(result)
    check_comparison(base, result)
    keep_comparison(base, tmp_path, result)
    assert comparison_of(base, tmp_path) is not None and not is_unverified(tmp_path, base.fingerprint)
    monkeypatch.setattr(results, "_versions", lambda: "others")
    assert comparison_of(base, tmp_path) is None


def test_a_difference_that_shows_far_into_a_text(base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequencies that are 0.002 % too high: within rounding for some hundred tokens, and wrong at 3,000."""
    monkeypatch.setattr(tensors, "frequencies", lambda config: rope.frequencies(config) * 1.00002)
    monkeypatch.setattr(reference, "CLOSE", 0.005)
    result = compare_here(base)
    assert result.state == DISAGREES
    first = int(result.words.partition("first after ")[2].split()[0].replace(",", ""))
    assert first > 300 and result.words.endswith("tokens of 3,072")
    keep_comparison(base, tmp_path, result)
    assert compared_before(base, tmp_path, 0) == comparison_of(base, tmp_path) is not None
    with pytest.raises(
        BaseModelError, match="otherwise than transformers: log-probabilities of a text differ by up to"
    ):
        check_comparison(base, result)


def test_other_ids_disagree(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from marlaas.engine.rollout.renderer import Renderer

    read = Renderer.open
    monkeypatch.setattr(Renderer, "open", lambda self, *given: [*read(self, *given), 7])
    result = compare_here(base)
    assert result.state == DISAGREES and result.words.startswith("a conversation has other token ids, from token")


def test_what_cannot_be_compared_is_shown_as_unverified(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home").create()
    result = asyncio.run(compare_base(base, home.root, 1 << 20))
    assert result.state == UNVERIFIED and "GB of memory, and 0.001 GB are free" in result.words
    check_comparison(base, result)
    assert is_unverified(home.root, base.fingerprint)
    assert compared_before(base, home.root, 1 << 20) == comparison_of(base, home.root)
    assert compared_before(base, home.root, 8 << 30) is None, "it is compared as soon as there is room"
    home.config.write_text(f'base = "{base.path}"\n')
    shown = {row.reference for row in list_bases(home) if row.path}
    assert shown == {"agrees", "unverified"}
    engine = EngineRow(1, 2, "running", 0.0, 0.0, "org/model", "", unverified=True)
    assert engine.shown_base == "org/model (unverified)"

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("no such model")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", fail)
    result = compare_here(load_base("tiny"))
    assert result.state == UNVERIFIED and "KeyError: 'no such model'" in result.words


@pytest.mark.slow
def test_in_a_child_process(tmp_path: Path) -> None:
    """The program itself, which imports torch and transformers; every day ``compare_here`` computes the same."""
    base = make_base(tmp_path / "base", "llama3", rows=1600, changes={"max_position_embeddings": 256})
    result = asyncio.run(compare_base(base, tmp_path, 8 << 30))
    assert result.state == AGREES and 0 < result.memory < 2 << 30 and np.isfinite(result.gap)
    assert comparison_of(base, tmp_path) is not None


LLAMA: dict[str, Any] = {"model_type": "llama", "head_dim": 8, "num_attention_heads": 4}
TOKENS = np.random.default_rng(5).integers(0, 50, 40).astype(np.int32)
Compare = Callable[[BaseModel, BaseModel], Awaitable[Agreement]]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Compare]:
    """Compares a sampler of one base with a trainer of another, or of the same."""
    started: list[LlamaSampler | TorchTrainer] = []

    async def compare_both(sampled: BaseModel, trained: BaseModel) -> Agreement:
        sampler = LlamaSampler(str(sampled.path), str(tmp_path / "gguf"), 4, 64, exact=True)
        trainer = TorchTrainer(str(trained.path), sampled.fingerprint, sync=False)
        started.extend([sampler, trainer])
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        agreement = await compare(sampler, trainer, TOKENS, scratch)
        assert not list(scratch.iterdir())
        with pytest.raises(Exception, match="not open"):
            await trainer.score(POLICY, TOKENS, 1, 1.0)
        return agreement

    yield compare_both
    for worker in started:
        await worker.close() if isinstance(worker, LlamaSampler) else worker.shutdown()


@pytest.mark.parametrize("family", [{}, LLAMA])
async def test_the_same_base_agrees(pair: Compare, tmp_path: Path, family: dict[str, Any]) -> None:
    base = write_base(tmp_path / "base", **family)
    agreement = await pair(base, base)
    agreement.check(EXACT, "The file")
    assert agreement.moved > 0.05, "an adapter that changes nothing proves nothing"


async def test_other_weights_are_found_even_where_much_is_rounded(pair: Compare, tmp_path: Path) -> None:
    ours, other = write_base(tmp_path / "ours"), write_base(tmp_path / "other", seed=1)
    agreement = await pair(other, ours)
    with pytest.raises(BaseModelError, match="The file X does not hold the weights of the base model"):
        agreement.check(ROUNDED["q4_k_m"], "The file X")


async def test_adapters_in_another_row_order_are_found(
    pair: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = write_base(tmp_path / "base", **LLAMA)
    ensure_base_gguf(base, tmp_path / "gguf")  # as it should be: only adapters go wrong
    monkeypatch.setattr(GgufNames, "rows", lambda names, module, array: array)
    agreement = await pair(base, base)
    with pytest.raises(BaseModelError, match="takes adapters in another order"):
        agreement.check(EXACT, "The file")


def test_the_less_exact_the_weights_the_wider() -> None:
    means = [ROUNDED[weights].mean for weights in PRECISIONS if math.isfinite(ROUNDED[weights].mean)]
    assert means == sorted(means) and len(means) == len(PRECISIONS) - 2
    assert HALF.mean < ROUNDED["q8_0"].mean, "sixteen bits on both sides are less far apart than eight on one"
    assert Tolerance().holds(1e9, 1e9)
    assert not Tolerance().holds(math.nan, 0.0) and not Tolerance().holds(0.0, math.nan)


@pytest.mark.parametrize(
    ("rollout", "stored", "exact", "tolerance"),
    [
        (RolloutSettings(sampler="llama.cpp", exact=True), "f32", True, EXACT),
        (RolloutSettings(sampler="torch", exact=False), "f32", True, EXACT),
        (RolloutSettings(sampler="llama.cpp", exact=False), "f32", True, FAST),
        (RolloutSettings(sampler="llama.cpp", exact=True), "f16", True, FAST),
        (RolloutSettings(sampler="llama.cpp", exact=True), "q8_0", True, ROUNDED["q8_0"]),
        (RolloutSettings(sampler="torch"), "bf16", True, ROUNDED["bf16"]),
        (RolloutSettings(sampler="torch"), "bf16", False, HALF),  # the trainer's base may be in bfloat16, too
        (RolloutSettings(sampler="llama.cpp", gguf="own.gguf"), "f32", True, FAST),
        (RolloutSettings(sampler="llama.cpp", gguf="own.gguf"), "q4_k_m", True, ROUNDED["q4_k_m"]),
        (RolloutSettings(sampler="vllm"), "f16", False, HALF),
        (RolloutSettings(sampler="llama.cpp", exact=True), "f32", False, HALF),
        (RolloutSettings(), "q4_k_m", False, replace(ROUNDED["q4_k_m"], trainer_rounds=True)),
    ],
)
def test_what_computes_in_float32_is_held_to_it(
    rollout: RolloutSettings, stored: str, exact: bool, tolerance: Tolerance
) -> None:
    assert tolerance_of(rollout, stored, exact=exact) == tolerance
