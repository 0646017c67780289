"""Adapters that PEFT wrote are a start: with the logits that PEFT gives, or refused in a sentence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from marlaas.engine.adapters.export import write_peft_folder
from marlaas.engine.adapters.peft_folder import CONFIG, WEIGHTS, fitted, read_adapter
from marlaas.engine.adapters.statefile import PolicyState, write_state
from marlaas.engine.errors import AdapterError
from marlaas.engine.models.find import load_base
from marlaas.engine.spec.task import PolicySpec
from marlaas.engine.trainer.decoder.decoder import Decoder
from marlaas.engine.trainer.memory import PolicyMemory, weights_of
from marlaas.engine.trainer.protocol import PolicyConfig
from tests.engine.trainer.random_models import save_model
from tests.engine.trainer.samples import sequence_logprobs

SHAPE = {
    "family": "llama",
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "fold": 2,
    "head_dim": 8,
    "tie_word_embeddings": False,
}
TOKENS = np.arange(12, dtype=np.int32) * 3 % 40


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("base"), SHAPE, 0)


def made_by_peft(base: str, folder: Path, **options: Any) -> np.ndarray:
    """Saves random matrices; returns PEFT's log-probabilities of ``TOKENS[1:]``."""
    torch.manual_seed(1)
    plain: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM"} | options
    model: Any = get_peft_model(plain, LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    tokens = torch.from_numpy(TOKENS).long()
    with torch.no_grad():
        logits = model(input_ids=tokens[None]).logits[0, :-1]
    found: np.ndarray = logits.log_softmax(-1).gather(-1, tokens[1:, None])[:, 0].numpy()
    return found


def logprobs_of(base: str, folder: Path, policy: PolicySpec) -> np.ndarray:
    """Ours, once training would begin from the folder."""
    loaded = load_base(base)
    state = fitted(read_adapter(folder, loaded), policy, loaded.config)
    config = PolicyConfig(rank=policy.rank, alpha=policy.lora_alpha, targets=policy.target_names)
    model = Decoder.of(loaded)
    layout = model.layout(config.rank, config.targets)
    memory = PolicyMemory.frozen(config, layout, weights_of(state, config, layout, loaded.fingerprint))
    return sequence_logprobs(model, memory, TOKENS, 1, 1.0)


QV = ["q_proj", "v_proj"]


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({"target_modules": QV}, PolicySpec(rank=4, alpha=6.0, targets="q_proj, v_proj")),
        ({"target_modules": QV}, PolicySpec()),
        ({"target_modules": "all-linear", "use_rslora": True}, PolicySpec(rank=4, alpha=6.0, rslora=True)),
        ({"target_modules": QV, "rank_pattern": {"v_proj": 7}, "alpha_pattern": {"q_proj": 1}}, PolicySpec(rank=8)),
        (
            {"target_modules": QV, "rank_pattern": {"layers.1.self_attn.q_proj": 2}, "use_rslora": True},
            PolicySpec(rank=4, targets="attention"),
        ),
        ({"target_modules": ["up_proj"], "layers_to_transform": [1]}, PolicySpec(rank=4, targets="mlp")),
        ({"target_modules": r".*\.1\.mlp\.(gate|down)_proj"}, PolicySpec(rank=5, alpha=1.0)),
    ],
)
def test_a_start_computes_what_peft_does(
    base: str, tmp_path: Path, options: dict[str, Any], policy: PolicySpec
) -> None:
    theirs = made_by_peft(base, tmp_path / "adapter", **options)
    ours = logprobs_of(base, tmp_path / "adapter", policy)
    # float32 sums of 24 to 40 terms in another order; the adapter itself moves them by more than 0.1
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize("prefix", ["", "base_model.model.base_model.model.", "base_model.model.language_model."])
def test_other_prefixes_and_types_are_read(base: str, tmp_path: Path, prefix: str) -> None:
    folder = tmp_path / "adapter"
    theirs = made_by_peft(base, folder, target_modules=QV)
    arrays = load_file(folder / WEIGHTS)
    renamed = {
        f"{prefix}{name.removeprefix('base_model.model.').replace('.weight', '.default.weight')}": array
        for name, array in arrays.items()
    }
    save_file({name: array.astype(np.float16) for name, array in renamed.items()}, folder / WEIGHTS)
    ours = logprobs_of(base, folder, PolicySpec(rank=4, alpha=6.0))
    np.testing.assert_allclose(ours, theirs, atol=3e-3)  # matrices of 0.2 lose 1e-4 in float16


def test_training_continues_from_what_was_added(base: str, tmp_path: Path) -> None:
    """New rows of A are not zero, or they and B would stay zero for ever."""
    made_by_peft(base, tmp_path / "adapter", target_modules=QV)
    loaded = load_base(base)
    state = fitted(read_adapter(tmp_path / "adapter", loaded), PolicySpec(rank=6), loaded.config)
    assert state.header.rank == 6 and len(state.adapter) == 2 * 2 * 7
    for name, array in state.adapter.items():
        new = array[4:] if name.endswith("lora_A") else array[:, 4:]
        assert new.size and bool(new.any()) == name.endswith("lora_A"), name
    same = PolicySpec(rank=6)
    assert fitted(state, same, loaded.config) is state, "nothing is rounded once more"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"target_modules": QV, "use_dora": True}, "lora_magnitude_vector, which is no LoRA matrix"),
    ({"target_modules": QV, "modules_to_save": ["norm"]}, "norm.weight, which is no LoRA matrix"),
    ({"target_modules": [*QV, "embed_tokens"]}, "which is no LoRA matrix of a linear layer"),
    ({"target_modules": QV, "bias": "lora_only"}, "uses trained biases"),
]


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")
@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_matrices_do_not_express_is_refused(
    base: str, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    made_by_peft(base, tmp_path / "adapter", **options)
    with pytest.raises(AdapterError, match=words):
        read_adapter(tmp_path / "adapter", load_base(base))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "LOHA"}, "uses LOHA"),
        ({"init_lora_weights": "pissa_niter_4"}, "initialisation pissa_niter_4, which changed the base"),
        ({"layer_replication": [[0, 2]]}, "uses repeated layers"),
        *(
            (changes, "is no configuration of a LoRA adapter")
            for changes in (
                {"r": "four"},
                {"r": 0},
                {"lora_alpha": float("nan")},
                {"alpha_pattern": {"q_proj": "two"}},
                {"alpha_pattern": {"(q_proj": 2}},
                {"alpha_pattern": [1]},
            )
        ),
        ([1], "is no configuration of a LoRA adapter"),
        (None, "is no configuration of a LoRA adapter"),
    ],
)
def test_a_configuration_is_checked(base: str, tmp_path: Path, changes: Any, words: str) -> None:
    made_by_peft(base, tmp_path / "adapter", target_modules=QV)
    config = tmp_path / "adapter" / CONFIG
    if isinstance(changes, dict):
        config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    elif changes is None:
        config.unlink()
    else:
        config.write_text(json.dumps(changes))
    with pytest.raises(AdapterError, match=words):
        read_adapter(tmp_path / "adapter", load_base(base))


def test_a_trained_output_layer_is_refused(base: str, tmp_path: Path) -> None:
    made_by_peft(base, tmp_path / "adapter", target_modules=QV)
    arrays = load_file(tmp_path / "adapter" / WEIGHTS)
    arrays["base_model.model.lm_head.lora_A.weight"] = np.ones((4, 24), np.float32)
    arrays["base_model.model.lm_head.lora_B.weight"] = np.ones((40, 4), np.float32)
    save_file(arrays, tmp_path / "adapter" / WEIGHTS)
    with pytest.raises(AdapterError, match="changes lm_head, the output layer"):
        read_adapter(tmp_path / "adapter", load_base(base))


def test_matrices_of_rank_0_are_refused(base: str, tmp_path: Path) -> None:
    made_by_peft(base, tmp_path / "adapter", target_modules=QV)
    arrays = load_file(tmp_path / "adapter" / WEIGHTS)
    empty = {name: array[:0] if "lora_A" in name else array[:, :0] for name, array in arrays.items()}
    save_file({name: np.ascontiguousarray(array) for name, array in empty.items()}, tmp_path / "adapter" / WEIGHTS)
    with pytest.raises(AdapterError, match="matrices of rank 0"):
        read_adapter(tmp_path / "adapter", load_base(base))


def test_an_adapter_of_another_base_is_refused(base: str, tmp_path: Path) -> None:
    made_by_peft(base, tmp_path / "adapter", target_modules=QV)
    wide = save_model(tmp_path / "wide", SHAPE | {"hidden_size": 36}, 0)
    with pytest.raises(AdapterError, match="It was trained on another base model"):
        read_adapter(tmp_path / "adapter", load_base(wide))
    short = save_model(tmp_path / "short", SHAPE | {"num_hidden_layers": 1}, 0)
    with pytest.raises(
        AdapterError, match=r"changes model\.layers\.1\.self_attn\.q_proj, which this base model has not"
    ):
        read_adapter(tmp_path / "adapter", load_base(short))
    with pytest.raises(AdapterError, match="belongs to another base"):
        ours = read_adapter(tmp_path / "adapter", load_base(base))
        export_like_ours(tmp_path / "ours", replace(ours, header=replace(ours.header, base="another")))
        read_adapter(tmp_path / "ours", load_base(base))


def export_like_ours(folder: Path, state: PolicyState) -> None:
    folder.mkdir()
    write_peft_folder(folder, state, "base")


def test_other_files_are_refused_in_a_sentence(base: str, tmp_path: Path) -> None:
    loaded, folder = load_base(base), tmp_path / "adapter"
    with pytest.raises(AdapterError, match="cannot be read"):
        read_adapter(tmp_path / "none", loaded)
    made_by_peft(base, folder, target_modules=QV)
    (folder / WEIGHTS).write_bytes(b"\x55" * 100)
    with pytest.raises(AdapterError, match="cannot be read"):
        read_adapter(folder, loaded)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(AdapterError, match="the old format"):
        read_adapter(folder, loaded)


def test_what_does_not_fit_the_policy_is_named(base: str, tmp_path: Path) -> None:
    made_by_peft(base, tmp_path / "adapter", target_modules=QV)
    loaded = load_base(base)
    state = read_adapter(tmp_path / "adapter", loaded)
    with pytest.raises(AdapterError, match=r"has rank 4, the policy only 2\. Write `rank = 4`"):
        fitted(state, PolicySpec(rank=2), loaded.config)
    with pytest.raises(AdapterError, match="q_proj, which is not among the targets 'mlp'"):
        fitted(state, PolicySpec(targets="mlp"), loaded.config)


def test_ours_comes_back_as_it_is(base: str, tmp_path: Path) -> None:
    made_by_peft(base, tmp_path / "adapter", target_modules=QV, use_rslora=True)
    loaded = load_base(base)
    state = read_adapter(tmp_path / "adapter", loaded)
    export_like_ours(tmp_path / "ours", state)
    again = read_adapter(tmp_path / "ours", loaded)
    assert again.header == state.header and again.adapter.keys() == state.adapter.keys()
    write_state(tmp_path / "state", again, sync=False)
    plain: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tokens = torch.from_numpy(TOKENS).long()[None]
    ours = PeftModel.from_pretrained(plain, str(tmp_path / "ours"))(input_ids=tokens).logits
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(plain, str(tmp_path / "adapter"))(input_ids=tokens).logits
    assert torch.allclose(ours, theirs, atol=1e-5)
