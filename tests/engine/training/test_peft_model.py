"""The head of any architecture, chunk by chunk: the same numbers, whatever the model does to its logits afterwards."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from marlaas.engine.training import peft_model
from marlaas.engine.training.bank import PolicyMemory, fresh
from marlaas.engine.training.group_pass import add_gradient, sequence_logprobs
from marlaas.engine.training.peft_model import PeftModel
from marlaas.engine.training.protocol import PolicyConfig, TrainGroup

from .largest import Largest
from .samples import sequence

VOCABULARY = 500


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that squeezes its logits into ±2 after the head."""
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
        final_logit_softcapping=2.0,
        initializer_range=0.5,
    )
    folder = tmp_path_factory.mktemp("capped")
    model: Any = Gemma2ForCausalLM
    model(config).save_pretrained(folder)
    return str(folder)


def policy(model: PeftModel, config: PolicyConfig) -> PolicyMemory:
    layout = model.layout(config.rank)
    state = fresh(config, layout)
    state.weights.add_(0.02)  # B away from zero, so that A has a gradient
    return PolicyMemory.of(config, layout, state)


def gradient(model: PeftModel, config: PolicyConfig, group: TrainGroup) -> np.ndarray:
    memory = policy(model, config)
    add_gradient(model, memory, [group])
    return np.asarray(memory.gradient.numpy())


@pytest.mark.parametrize("tokens", [1, 7])
def test_chunks_of_any_size_give_the_same(capped: str, monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    model, config = PeftModel(capped), PolicyConfig(rank=2, alpha=4.0, temperature=0.8, kl=0.3)
    draw = np.random.default_rng(0)
    group = TrainGroup(0, tuple(sequence(draw.integers(0, VOCABULARY, 20).tolist(), 5, a) for a in (1.0, -0.4)))
    whole, scores = (
        gradient(model, config, group),
        sequence_logprobs(model, policy(model, config), group.sequences[0].tokens, 1, 1.0),
    )
    monkeypatch.setattr(peft_model, "MAX_LOGITS", tokens * VOCABULARY)
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
    with Largest() as largest:
        add_gradient(model, memory, [TrainGroup(0, (sequence(tokens, 10, 1.0),))])
    assert largest.elements == 20 * VOCABULARY
