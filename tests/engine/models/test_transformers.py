"""What transformers and PEFT compute, our trainer, torch's sampler and llama.cpp compute, or refuse by the key.

Of every family with a real vocabulary before and after a step; and of every switch of ``config.json``, for 240 tokens,
nearly four times what scaled rotary positions are configured for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from marlaas.engine.adapters.export import export_adapter
from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.config import read_config, unsupported
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.gguf import names_of, write_base
from marlaas.engine.models.rope import frequencies
from marlaas.engine.models.weights import check_base, check_tokenizer
from marlaas.engine.samplers.batching.context import Context
from marlaas.engine.samplers.llama.model import BaseFile, LlamaSampler, base_file, open_base
from marlaas.engine.samplers.protocol import Sampler, SampleRequest, SampleResult
from marlaas.engine.samplers.torch.context import TorchContext
from marlaas.engine.samplers.torch.sampler import TorchSampler
from marlaas.engine.trainer.decoder.decoder import score_by_layers
from marlaas.engine.trainer.protocol import PolicyConfig, TrainGroup, TrainSequence
from marlaas.engine.trainer.torch_trainer import TorchTrainer
from marlaas.engine.trajectories import Logprobs, Tokens
from tests.engine.trainer.oracle import Oracle
from tests.seldom import often
from tools.random_base.families import FAMILIES
from tools.random_base.make import make_base

CLOSE = 1e-4
"""Largest difference of log-probabilities with float32 weights and memory."""
NEAR = {"f32": 0.1, "f16": 0.1, "q8_0": 1.0}
"""With llama.cpp's float16 memory and weights kept like this."""
CONTEXT = 256


def transformers(base: BaseModel, adapter: Path | None = None) -> Any:
    """The model in float32, with a PEFT folder's adapter if one is named."""
    model: Any = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32)
    return PeftModel.from_pretrained(model, str(adapter)) if adapter else model


def greedy(model: Any, prompt: Tokens, length: int) -> Tokens:
    """int32 (length,): the likeliest token each time, computed by transformers alone."""
    held, memory, tokens = torch.from_numpy(prompt)[None].long(), None, []
    with torch.no_grad():
        for _ in range(length):
            out = model(input_ids=held, past_key_values=memory, use_cache=True)
            held, memory = out.logits[:, -1:].argmax(-1), out.past_key_values
            tokens.append(int(held))
    return np.array(tokens, np.int32)


def logprobs_of(model: Any, tokens: Tokens, start: int) -> Logprobs:
    """float32 (T - start,): log-probabilities of ``tokens[start:]`` by transformers."""
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(tokens)[None].long()).logits[0, start - 1 : -1]
    return chosen(logits, tokens[start:])


def scores(context: Context, tokens: Tokens, start: int) -> Logprobs:
    """The same as an empty context of ours computes it."""
    row = np.arange(len(tokens), dtype=np.int32)
    logits = context.decode(tokens, row, row * 0, np.ones(len(tokens), np.int8))[start - 1 : -1]
    logprobs = chosen(torch.from_numpy(logits.astype(np.float64)), tokens[start:])
    context.cut(0, 0)
    return logprobs


def chosen(logits: torch.Tensor, tokens: Tokens) -> Logprobs:
    rows = torch.log_softmax(logits, -1).gather(1, torch.from_numpy(tokens)[:, None].long())
    return np.asarray(rows[:, 0].numpy(), np.float32)


def gap(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return float(np.abs(a - b).max())


# families, with real vocabularies in two shards


PROMPT = "A farmer has twelve cows and sells a quarter of them. How many are left?\n"
ROWS, LENGTH = 151_936, 24
CASES = [(family, tied) for family in FAMILIES for tied in (True, False)]
QUICK = [("llama3", False)]
"""What families differ in is in the switches below, and Qwen3 with a tied head is the base that ships."""
CONFIG = PolicyConfig(rank=4, alpha=8.0, learning_rate=0.02, denominator=32.0)


@dataclass
class Made:
    """A base and what reads it."""

    name: str
    base: BaseModel
    cache: Path
    """Where GGUF files go."""

    @cached_property
    def prompt(self) -> Tokens:
        """A question in the folder's own tokens."""
        tokenizer = Tokenizer.from_file(str(self.base.path / "tokenizer.json"))
        return np.array(tokenizer.encode(PROMPT).ids, np.int32)

    def sampler(self, exact: bool, weights: str = "f32") -> LlamaSampler:
        return LlamaSampler(str(self.base.path), str(self.cache), 4, CONTEXT, exact=exact, weights=weights)

    def trainer(self) -> TorchTrainer:
        """To be shut down by the caller."""
        return TorchTrainer(str(self.base.path), self.base.fingerprint, sync=False)

    async def answers(self, sampler: Sampler, count: int, length: int, temperature: float) -> list[SampleResult]:
        """Some replies of version 0 to the prompt, sampled next to each other."""
        stop = tuple(json.loads((self.base.path / "generation_config.json").read_text())["eos_token_id"])
        requests = [SampleRequest(f"{n}", "0", self.prompt, length, temperature, stop, n) for n in range(count)]
        results = await asyncio.gather(*(sampler.generate(request) for request in requests))
        for request in requests:
            await sampler.release(request.conversation)
        return list(results)

    def group(self, results: list[SampleResult]) -> TrainGroup:
        """The replies to train on: the more even tokens, the better."""
        rewards = np.array([float(np.mean(result.tokens % 2 == 0)) for result in results])
        sequences = []
        for result, advantage in zip(results, rewards - rewards.mean(), strict=True):
            begin = len(self.prompt)
            tokens = np.concatenate([self.prompt, result.tokens])
            logprobs = np.concatenate([np.zeros(begin, np.float32), result.logprobs])
            mask = (np.arange(len(tokens)) >= begin).astype(np.uint8)
            sequences.append(TrainSequence(tokens, mask, logprobs, float(advantage)))
        return TrainGroup(1, tuple(sequences))


@pytest.fixture(
    scope="module", params=often(QUICK, CASES), ids=lambda case: f"{case[0]}-{'tied' if case[1] else 'untied'}"
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    torch.set_num_threads(1)
    family, tied = request.param
    folder = tmp_path_factory.mktemp(family)
    base = make_base(folder / "base", family, tied=tied, rows=ROWS, shards=2, seed=CASES.index(request.param))
    assert len(base.weight_files) == 2 and base.config.vocab_size == ROWS
    check_tokenizer(base.path, ROWS)
    with pytest.raises(BaseModelError, match="does not match its embedding"):
        check_tokenizer(base.path, 200_000)
    yield Made(f"{family}, {'tied' if tied else 'untied'}", base, folder / "cache")
    for file in folder.rglob("*.*"):  # the next family needs the room
        if file.suffix in (".gguf", ".safetensors"):
            file.unlink()


async def test_greedy_tokens_are_those_of_transformers(
    made: Made, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    model, trainer = transformers(made.base), made.trainer()
    expected = greedy(model, made.prompt, LENGTH)
    assert len(set(expected.tolist())) > LENGTH / 2
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    tokens, start = np.concatenate([made.prompt, expected]), len(made.prompt)
    reference = logprobs_of(model, tokens, start)
    gaps = {"trainer": gap(await trainer.score("a", tokens, start, 1.0), reference)}
    trainer.shutdown()
    torch_sampler = TorchSampler(str(made.base.path), sequences=4, context=CONTEXT)
    for name, sampler in (("llama.cpp", made.sampler(exact=True)), ("torch", torch_sampler)):
        await sampler.load("0", str(tmp_path / "0"))
        (result,) = await made.answers(sampler, 1, LENGTH, 0.0)
        assert result.tokens.tolist() == expected.tolist(), name
        gaps[name] = gap(result.logprobs, reference)
        await sampler.close()
    assert max(gaps.values()) < CLOSE
    for weights, most in NEAR.items():
        quick = made.sampler(exact=False, weights=weights)
        await quick.load("0", str(tmp_path / "0"))
        name = f"llama.cpp, {weights}, float16 memory"
        gaps[name] = gap(await quick.score("0", tokens, start, 1.0), reference)
        await quick.close()
        assert gaps[name] < most
    for name, size in gaps.items():
        record_property(f"largest gap, {name}", f"{size:.1e}")
        print(f"{made.name}: largest gap to transformers, {name}: {size:.1e}")


async def test_a_step_matches_peft_and_every_sampler(made: Made, tmp_path: Path) -> None:
    """With the adapter as it stays in the home, and as it is exported."""
    trainer, sampler = made.trainer(), made.sampler(exact=True)
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    await sampler.load("0", str(tmp_path / "0"))
    results = await made.answers(sampler, 4, 8, 1.0)
    group = made.group(results)
    oracle = Oracle(str(made.base.path), tmp_path / "0")
    (norm,) = oracle.steps([[group]], CONFIG)
    stats = await trainer.accumulate("a", (group,))
    stepped = await trainer.step("a", str(tmp_path / "1"))
    assert stats.gap_max < CLOSE
    assert stats.measured == sum(len(result.tokens) for result in results) > 0
    assert stepped.grad_norm == pytest.approx(norm, rel=1e-3)
    assert oracle.distance(read_state(tmp_path / "1")) < CONFIG.learning_rate / 50
    del oracle

    export_adapter(tmp_path / "1", made.base.path, tmp_path / "out", gguf=True)
    assert await sampler.load("1", str(tmp_path / "1")) == stepped.checksum
    context = open_base(base_file(made.base, made.cache), 2, CONTEXT, exact=True).context
    adapter = context.read_adapter(tmp_path / "out" / "adapter.gguf")
    context.use(np.array([adapter]))
    model, start = transformers(made.base, tmp_path / "out"), len(made.prompt)
    moved = 0.0
    for sequence in group.sequences:
        tokens = sequence.tokens
        trained = await trainer.score("a", tokens, start, 1.0)
        moved = max(moved, gap(trained, sequence.logprobs[start:]))
        assert gap(trained, logprobs_of(model, tokens, start)) < CLOSE
        assert gap(trained, await sampler.score("1", tokens, start, 1.0)) < CLOSE
        assert gap(trained, scores(context, tokens, start)) < CLOSE
    trainer.shutdown()
    await sampler.close()
    context.free_adapter(adapter)
    context.close()
    assert moved > 100 * CLOSE  # else what agrees is the base


# switches of config.json

TOKENS = np.random.default_rng(0).integers(0, 600, 240).astype(np.int32)
SHORT = {"factor": 4.0, "original_max_position_embeddings": 64}
BANDS = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **SHORT, "factor": 32.0}
Changes = dict[str, Any]
COMPUTED: dict[str, tuple[str, Changes, str]] = {
    "new keys": (
        "llama3",
        {"rope_theta": None, "rope_scaling": None, "rope_parameters": {**BANDS, "rope_theta": 10_000.0}},
        "",
    ),
    "rope_scaling takes the place of rope_parameters": (
        "llama3",
        {"rope_theta": 5e5, "rope_scaling": BANDS, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        "",
    ),
    "and its rope_theta with it": (
        "llama3",
        {"rope_theta": None, "rope_scaling": BANDS, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        "",
    ),
    "the original length next to it": (
        "llama3",
        {"rope_scaling": {**BANDS, "original_max_position_embeddings": 64}, "original_max_position_embeddings": 32},
        "",
    ),
    "bands": ("llama3", {"rope_scaling": BANDS}, ""),
    "bands without an original length": (
        "llama3",
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
        "",
    ),
    "nothing, by name": ("qwen2", {"rope_scaling": {"type": "default"}}, ""),
    "biases everywhere": ("llama3", {"attention_bias": True, "mlp_bias": True, "rope_scaling": BANDS}, ""),
    "heads of an odd size": ("llama3", {"head_dim": 24, "rope_scaling": BANDS}, ""),
    "silu by another name": ("llama3", {"hidden_act": "swish"}, ""),
    "no activation, epsilon or theta": ("qwen2.5", {"hidden_act": None, "rms_norm_eps": None, "rope_theta": None}, ""),
    "a window in no layer": (
        "qwen2.5",
        {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 2},
        "",
    ),
    "a window that is off": ("qwen2.5", {"sliding_window": 32}, ""),
    "keys that are not read": ("llama3", {"pretraining_tp": 2, "clip_qkv": 0.1, "logits_scaling": 8.0}, ""),
    "yarn": ("qwen3", {"rope_scaling": {"rope_type": "yarn", **SHORT}}, "of type 'yarn'"),
    "linear": ("qwen2", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "of type 'linear'"),
    "bands of another family": ("qwen2", {"rope_scaling": BANDS}, "'llama3' in the architecture 'qwen2'"),
    "dynamic": ("llama3", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "of type 'dynamic'"),
    "biases of qwen3": ("qwen3", {"attention_bias": True}, "qwen3 has no biases"),
}
"""Family, changes, and why llama.cpp cannot compute it: such a base can only be trained."""
DAILY = (
    "rope_scaling takes the place of rope_parameters",
    "bands without an original length",
    "biases everywhere",
    "a window in no layer",
    "yarn",
    "bands of another family",
    "biases of qwen3",
)


def make(folder: Path, family: str, changes: Changes, rows: int = 1600) -> BaseModel:
    return make_base(folder, family, rows=rows, changes={"max_position_embeddings": 256, **changes})


@pytest.mark.parametrize("case", often(DAILY, COMPUTED))
async def test_every_switch_is_computed_as_by_transformers(tmp_path: Path, case: str) -> None:
    family, changes, refused = COMPUTED[case]
    base = make(tmp_path / "base", family, changes)
    check_base(base)
    reference = logprobs_of(transformers(base), TOKENS, 1)
    trainer = TorchTrainer(str(base.path), base.fingerprint, sync=False)
    await trainer.open("a", PolicyConfig(rank=2), str(tmp_path / "state"), resume=False)
    trained = await trainer.score("a", TOKENS, 1, 1.0)
    trainer.shutdown()
    assert gap(trained, reference) < CLOSE
    if not unsupported(base.config):  # else by transformers in the trainer, and by no other pass of ours
        assert gap(score_by_layers(base, TOKENS).numpy(), reference) < CLOSE
        assert gap(scores(TorchContext(base, 1, 256), TOKENS, 1), reference) < CLOSE
    if refused:
        with pytest.raises(BaseModelError, match=refused):
            write_base(base, tmp_path / "base.gguf")
        return
    write_base(base, tmp_path / "base.gguf")
    context = open_base(BaseFile(tmp_path / "base.gguf", names_of(base.config), ours=True), 2, 256, exact=True).context
    assert gap(scores(context, TOKENS, 1), reference) < CLOSE
    context.close()


def change(folder: Path, **values: Any) -> None:
    """Set keys of ``config.json``; those that are None go."""
    path = folder / "config.json"
    kept = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in kept.items() if value is not None}))


REFUSED: dict[str, tuple[str, Changes, str]] = {
    "gelu": ("llama3", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; for 'llama' marlaas computes 'silu' only"),
    "gelu of qwen": ("qwen2.5", {"hidden_act": "gelu_pytorch_tanh"}, "hidden_act is 'gelu_pytorch_tanh'"),
    "relu": ("qwen3", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
    "half turned": ("llama3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    "half turned, new key": (
        "qwen3",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
        "partial_rotary_factor is 0.25",
    ),
    "by layer": ("qwen3", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "by kind of layer"),
    "su": ("llama3", {"rope_scaling": {"type": "su", "factor": 2.0}}, "unknown type 'su'"),
    "no factor": ("llama3", {"rope_scaling": {"type": "llama3"}}, "of type 'llama3' have no factor"),
    "odd heads": ("llama3", {"head_dim": 15}, "head_dim is 15"),
    "heads that do not divide": ("llama3", {"num_key_value_heads": 3}, "4 heads of queries and 3 of keys"),
    "fp8": ("qwen3", {"quantization_config": {"quant_method": "fp8"}}, r"quantised \(fp8\).*make them plain"),
    "absent heads of keys": ("qwen2.5", {"num_key_value_heads": None}, "4 heads of queries and 32 of keys"),
    "absent size of heads": (
        "qwen3",
        {"head_dim": None},
        r"q_norm\.weight with the shape \(32,\), and config\.json makes it \(128,\)",
    ),
    "window": ("qwen2.5", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1}, ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_key(tmp_path: Path, case: str) -> None:
    family, changes, words = REFUSED[case]
    folder = make(tmp_path / "base", family, {}).path
    change(folder, **changes)
    if not words:  # then transformers computes it in the trainer
        assert read_config(folder / "config.json").sliding_window
        return
    with pytest.raises(BaseModelError, match=rf"(?s){words}"):
        check_base(load_base(folder))


def test_settings_that_nobody_reads_are_named(tmp_path: Path) -> None:
    base = make_base(tmp_path, "llama3", rows=1600, changes={"clip_qkv": 8.0, "auto_map": {"A": "b"}, "use_x": False})
    assert base.config.unread == ("clip_qkv = 8.0", 'auto_map = {"A": "b"}')
    assert make_base(tmp_path / "plain", "qwen3", rows=1600).config.unread == ()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda t: t.update({"model.layers.0.self_attn.o_proj.bias": torch.ones(64)}),
            r"hold model\.layers\.0\.self_attn\.o_proj\.bias, which transformers' qwen3 model does not have",
        ),
        (
            lambda t: t.pop("model.layers.1.self_attn.q_norm.weight"),
            r"hold no model\.layers\.1\.self_attn\.q_norm\.weight",
        ),
        (
            lambda t: t.update({"model.layers.1.mlp.down_proj.weight": torch.ones(64, 161)}),
            r"down_proj\.weight with the shape \(64, 161\), and config\.json makes it \(64, 160\)",
        ),
        (
            lambda t: t.update({"model.layers.0.mlp.up_proj.weight_scale": torch.ones(1)}),
            r"quantised \(fp8\): .*up_proj\.weight_scale",
        ),
        (
            lambda t: t.update({"lm_head.weight": 2 * t["model.embed_tokens.weight"]}),
            r"tie_word_embeddings = true, but lm_head\.weight has other values.*false",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(64).to(torch.float8_e4m3fn)}),
            r"quantised \(fp8\): .*model\.norm\.weight as F8_E4M3",
        ),
    ],
)
def test_tensors_that_transformers_reads_otherwise(tmp_path: Path, damage: Any, words: str) -> None:
    folder = make_base(tmp_path, "qwen3", rows=1600, shards=1).path
    tensors = load_file(folder / "model.safetensors")
    damage(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BaseModelError, match=rf"(?s){words}"):
        check_base(load_base(folder))


def test_a_head_of_the_embedding_s_values_is_tied(tmp_path: Path) -> None:
    folder = make_base(tmp_path, "qwen3", rows=1600, shards=1).path
    tensors = load_file(folder / "model.safetensors")
    for head in (tensors["model.embed_tokens.weight"].clone(), tensors["model.embed_tokens.weight"].float()):
        save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors")
        check_base(load_base(folder))


def test_a_tensor_in_two_shards_and_pickled_weights(tmp_path: Path) -> None:
    folder = make_base(tmp_path, "qwen3", rows=1600).path
    second = folder / "model-00002-of-00002.safetensors"
    save_file(load_file(second) | {"model.embed_tokens.weight": torch.zeros(1600, 64)}, second)
    with pytest.raises(BaseModelError, match=r"hold model\.embed_tokens\.weight twice, the second time in model-00002"):
        check_base(load_base(folder))
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(BaseModelError, match=r"pickled weights only \(\*\.bin\).*Convert them: python -c .*save_pret"):
        load_base(folder)


# frequencies, for any settings of each kind of scaling

BASE = load_base("tiny").config
sizes = st.sampled_from([16, 24, 64, 128])
thetas = st.sampled_from([1e4, 5e5, 1e6])
lengths = st.integers(32, 40_000)
factors = st.floats(1.0, 64.0)
bands = st.fixed_dictionaries(
    {
        "rope_type": st.just("llama3"),
        "factor": factors,
        "low_freq_factor": st.floats(0.5, 2.0),
        "high_freq_factor": st.floats(3.0, 8.0),
        "original_max_position_embeddings": lengths,
    }
)


@given(sizes, thetas, bands)
def test_frequencies_are_those_of_transformers(size: int, theta: float, scaling: dict[str, Any]) -> None:
    make: Any = LlamaConfig
    theirs = make(head_dim=size, rope_parameters={**scaling, "rope_theta": theta}, max_position_embeddings=100_000)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, None)
    ours = replace(BASE, head_dim=size, rope_theta=theta, rope_scaling=scaling, context_length=100_000)
    assert np.allclose(frequencies(ours), expected.numpy(), rtol=2e-5)
