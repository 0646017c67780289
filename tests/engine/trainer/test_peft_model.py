"""Other architectures compute what they compute by themselves, in less memory: head by chunks, layers once more."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, MixtralConfig, MixtralForCausalLM

from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.find import load_base
from marlaas.engine.models.weights import unadapted
from marlaas.engine.trainer import peft_model
from marlaas.engine.trainer.group_pass import add_gradients
from marlaas.engine.trainer.memory import PolicyMemory, fresh
from marlaas.engine.trainer.peft_model import PeftModel
from marlaas.engine.trainer.protocol import PolicyConfig, TrainGroup

from .held import Largest
from .samples import sequence, sequence_logprobs

VOCABULARY = 500


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that squeezes the scores of its attention into ±1, and its logits into ±2 after the head."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=256,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=1.0,
        final_logit_softcapping=2.0,
        initializer_range=0.5,
    )
    folder = tmp_path_factory.mktemp("capped")
    model: Any = Gemma2ForCausalLM
    model(config).save_pretrained(folder)
    return str(folder)


def test_the_routed_experts_of_a_mixture_are_not_adapted(tmp_path: Path) -> None:
    """As people are told, for the experts are no linear layers to PEFT."""
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = MixtralConfig(vocab_size=VOCABULARY, num_key_value_heads=1, num_local_experts=4, **sizes)
    model: Any = MixtralForCausalLM
    model(config).save_pretrained(tmp_path)
    adapted = {entry.name.split(".")[3] for entry in PeftModel(str(tmp_path)).layout(4).entries}
    assert adapted == {"self_attn"}
    base = load_base(tmp_path)
    assert "a mixture of 4 experts (mixtral): LoRA adapts its attention" in unadapted(base.config)
    assert not unadapted(replace(base.config, experts=0))


def policy(model: PeftModel, config: PolicyConfig) -> PolicyMemory:
    layout = model.layout(config.rank)
    state = fresh(config, layout)
    state.weights.add_(0.02)  # B away from zero, so that A has a gradient
    return PolicyMemory.of(config, layout, state)


def gradient(model: PeftModel, config: PolicyConfig, group: TrainGroup) -> np.ndarray:
    memory = policy(model, config)
    add_gradients(model, [(memory, [group])])
    return np.asarray(memory.gradient.numpy())


def test_chunks_of_any_size_give_the_same(capped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = PeftModel(capped), PolicyConfig(rank=2, alpha=4.0, temperature=0.8, kl=0.3)
    draw = np.random.default_rng(0)
    group = TrainGroup(0, tuple(sequence(draw.integers(0, VOCABULARY, 20).tolist(), 5, a) for a in (1.0, -0.4)))
    whole, scores = (
        gradient(model, config, group),
        sequence_logprobs(model, policy(model, config), group.sequences[0].tokens, 1, 1.0),
    )
    monkeypatch.setattr(peft_model, "MAX_LOGITS", 7 * VOCABULARY)
    assert np.abs(whole).max() > 1e-4
    np.testing.assert_allclose(gradient(model, config, group), whole, rtol=1e-3, atol=1e-6)
    again = sequence_logprobs(model, policy(model, config), group.sequences[0].tokens, 1, 1.0)
    np.testing.assert_allclose(again, scores, atol=1e-5)
    assert scores.max() > scores.min() > -4.0 - np.log(VOCABULARY)  # within the cap on either side


def test_one_long_sequence_holds_the_logits_of_one_chunk(capped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = PeftModel(capped), PolicyConfig(rank=2)
    monkeypatch.setattr(peft_model, "MAX_LOGITS", 20 * VOCABULARY)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 120).tolist()
    memory = policy(model, config)
    scores = 119 * 119  # of each head's attention
    with Largest(scores, 2 * scores) as largest:
        add_gradients(model, [(memory, [TrainGroup(0, (sequence(tokens, 10, 1.0),))])])
    assert largest.elements == 20 * VOCABULARY


def logprobs_of_transformers(folder: str, attention: str, tokens: Tensor) -> Tensor:
    """Of all tokens but the first, (S - 1,)."""
    plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    with torch.no_grad():
        logits = plain(tokens[None]).logits[0, :-1]
    found: Tensor = logits.log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
    return found


def test_scores_of_attention_are_capped(capped: str) -> None:
    model, config = PeftModel(capped), PolicyConfig(rank=2)
    layout = model.layout(config.rank)
    memory = PolicyMemory.of(config, layout, fresh(config, layout))  # whose B is zero: the base alone
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 40).astype(np.int32)
    ours = sequence_logprobs(model, memory, tokens, 1, 1.0)
    given = torch.from_numpy(tokens).long()
    assert np.abs(ours - logprobs_of_transformers(capped, "eager", given).numpy()).max() < 1e-5
    assert np.abs(ours - logprobs_of_transformers(capped, "sdpa", given).numpy()).max() > 0.1


class Kept:
    """Bytes that autograd keeps, each storage once."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}

    @property
    def size(self) -> int:
        return sum(self.storages.values())

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self.storages[storage.data_ptr()] = storage.nbytes()
        return tensor


def test_a_pass_without_room_keeps_less_and_gives_the_same(capped: str, base: str) -> None:
    draw = np.random.default_rng(0)
    group = TrainGroup(0, tuple(sequence(draw.integers(0, 32, 50).tolist(), 5, a) for a in (1.0, -0.4, 0.2)))
    for folder in (capped, base):
        found = []
        for room in (1 << 30, 1):
            kept = Kept()
            with saved_tensors_hooks(kept.pack, lambda tensor: tensor):
                found.append((gradient(PeftModel(folder, room=room), PolicyConfig(rank=2, kl=0.3), group), kept.size))
        (whole, much), (again, little) = found
        assert np.abs(whole).max() > 1e-4
        np.testing.assert_allclose(again, whole, rtol=1e-4, atol=1e-7)
        assert little < much / 4


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "banana"}))
    with pytest.raises(BaseModelError, match=r"cannot be loaded: .*banana") as raised:
        peft_model.load_transformers(str(tmp_path))
    assert "pip install" not in str(raised.value) and str(raised.value).count(". ") == 0


def test_an_adapter_far_below_the_last_bits_of_products_counts(capped: str) -> None:
    model, config = PeftModel(capped, precision="bf16"), PolicyConfig(rank=4, alpha=8.0)
    layout, generator = model.layout(config.rank), torch.Generator().manual_seed(0)
    state = fresh(config, layout)
    state.weights.copy_(6e-3 * torch.randn(len(state.weights), generator=generator))
    memory, name = PolicyMemory.of(config, layout, state), "model.layers.0.mlp.gate_proj"
    model.mount([memory])
    sequence_logprobs(model, memory, np.arange(9, dtype=np.int32), 1, 1.0)  # puts the policy into PEFT's layers
    layer = model._model.get_submodule(name)
    x = 3 * torch.randn(20_000, 16, generator=generator).bfloat16()
    term = memory.scale * (x.float() @ memory.parameters[f"{name}.lora_A"].T @ memory.parameters[f"{name}.lora_B"].T)
    with torch.no_grad():
        change = layer(x).float() - layer.base_layer(x).float()
        part = float((change * term).sum() / term.square().sum())
    # 480,000 values; where the term was added afterwards, three tenths of it were left
    assert part == pytest.approx(1.0, abs=0.05)
