"""Files that llama.cpp reads: our own of each precision, and a user's GGUF, which is as transformers or refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, write_state
from marlaas.engine.errors import AdapterError, BaseModelError
from marlaas.engine.models.config import PRECISIONS, WRITTEN
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.gguf import base_bytes, names_like, read_header
from marlaas.engine.samplers.llama import model as llama_model
from marlaas.engine.samplers.llama.context import LlamaContext
from marlaas.engine.samplers.llama.model import TYPES, LlamaSampler, base_file, ensure_base_gguf, open_base, quantise
from marlaas.engine.samplers.protocol import SampleRequest
from tests.engine.models.gguf.brought import MODELS, bring
from tests.engine.models.hugging_face import Array, logits_of, with_lora
from tests.engine.rollout.random_base import write_base

FILE_TYPE = {"f32": 0, "f16": 1, **TYPES}


@pytest.fixture
def wide(tmp_path: Path) -> BaseModel:
    """Wide enough for every type: their blocks hold 256 weights."""
    return write_base(tmp_path / "wide", hidden_size=256, intermediate_size=512, head_dim=64)


def logits_as(base: BaseModel, folder: Path, weights: str) -> NDArray[np.float32]:
    context = open_base(base_file(base, folder, weights), 2, 256, exact=True).context
    tokens = np.arange(40, dtype=np.int32)
    result = context.decode(tokens, tokens, np.zeros(40, np.int32), np.ones(40, np.int8)).copy()
    context.close()
    return result


def test_each_precision_has_a_file_and_less_is_less_exact(wide: BaseModel, tmp_path: Path) -> None:
    sizes, errors = [], []
    exact = logits_as(wide, tmp_path / "cache", "f32")
    for weights in PRECISIONS:
        path = ensure_base_gguf(wide, tmp_path / "cache", weights)
        assert path.name == f"{wide.fingerprint}-{weights}.gguf" and path.exists()
        assert read_header(path).fields["general.file_type"] == FILE_TYPE[weights]
        before = path.stat().st_mtime_ns
        assert ensure_base_gguf(wide, tmp_path / "cache", weights).stat().st_mtime_ns == before
        if weights in WRITTEN:
            assert 0 < base_bytes(wide, weights) - path.stat().st_size < 1 << 20, "what it is estimated to take"
        sizes.append(path.stat().st_size)
        errors.append(float(np.abs(logits_as(wide, tmp_path / "cache", weights) - exact).mean()))
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 5 * sizes[-1]
    assert errors == sorted(errors) and 0 < errors[1] < 0.01 < errors[-1] < 1
    assert len(list((tmp_path / "cache").iterdir())) == len(PRECISIONS), "no file between"
    small = ensure_base_gguf(wide, tmp_path / "other", "q8_0")
    assert list((tmp_path / "other").iterdir()) == [small]
    assert set(PRECISIONS) == {*WRITTEN, *TYPES}


@pytest.mark.parametrize(("weights", "left"), [("f32", 0), ("q8_0", 100), ("f32", -1)])
def test_a_file_that_was_cut_is_written_again(base: BaseModel, tmp_path: Path, weights: str, left: int) -> None:
    path = ensure_base_gguf(base, tmp_path, weights)
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    assert ensure_base_gguf(base, tmp_path, weights) == path and path.read_bytes() == whole


def test_a_quantiser_that_fails_leaves_nothing(
    wide: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    with pytest.raises(BaseModelError, match=r"llama\.cpp could not write the base model as q8_0 \("):
        quantise(tmp_path / "no.gguf", tmp_path / "out.gguf", "q8_0")

    def into_nowhere(source: Path, _target: Path, weights: str, threads: int) -> None:
        quantise(source, tmp_path / "nowhere" / "out.gguf", weights, threads)

    with monkeypatch.context() as patch, pytest.raises(BaseModelError, match="as q4_k_m"):
        patch.setattr(llama_model, "quantise", into_nowhere)
        ensure_base_gguf(wide, tmp_path / "cache", "q4_k_m")
    assert list((tmp_path / "cache").iterdir()) == []


TOKENS = np.random.default_rng(0).integers(0, 61, 180).astype(np.int32)
CLOSE = {"granite": 3e-4, "olmo2": 3e-4, "gemma2": 0.02, "cohere": 3e-4}
"""Gemma's activation is a table of float16 in llama.cpp."""


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def llama_logprobs(context: LlamaContext) -> Array:
    count = len(TOKENS)
    positions = np.arange(count, dtype=np.int32)
    logits = context.decode(TOKENS, positions, np.zeros(count, np.int32), np.ones(count, np.int8))
    result = log_softmax(logits)
    context.cut(0, 0)
    return result


def gap(ours: Array, expected: Array) -> float:
    return float(np.abs(ours - expected)[expected > -12].max())


@pytest.mark.parametrize("kind", MODELS)
async def test_base_and_adapter_have_the_logits_of_torch(kind: str, tmp_path: Path) -> None:
    model, path = bring(kind, tmp_path / "model")
    base = load_base(tmp_path / "model")
    file = base_file(base, tmp_path / "cache", gguf=str(path))
    assert (file.names.architecture, file.ours) == (MODELS[kind][0], False)
    context = open_base(file, 2, 256, exact=True).context
    plain = log_softmax(logits_of(model, TOKENS))
    assert gap(llama_logprobs(context), plain) < CLOSE[kind]

    adapted, adapter = with_lora(model)
    changed = log_softmax(logits_of(adapted, TOKENS))
    assert np.abs(changed - plain).max() > 0.3
    handle = context.load_adapter(adapter, 8.0)
    context.use(np.array([handle]))
    assert gap(llama_logprobs(context), changed) < CLOSE[kind]
    context.free_adapter(handle)
    context.close()
    assert not (tmp_path / "cache").exists()

    write_state(tmp_path / "state", PolicyState(StateHeader(4, 8.0, 0, base.fingerprint), adapter), sync=False)
    sampler = LlamaSampler(str(base.path), str(tmp_path / "cache"), 2, 256, exact=True, gguf=str(path))
    await sampler.load("v0", str(tmp_path / "state"))
    scored = await sampler.score("v0", TOKENS, 1, 1.0)
    for conversation in ("a", "b"):  # two that share a prompt, and two turns of each
        turn = TOKENS[:90]
        for _ in range(2):
            sampled = (await sampler.generate(SampleRequest(conversation, "v0", turn, 1, 0.0, (), 0))).tokens
            assert sampled[0] == logits_of(adapted, turn)[-1].argmax()
            turn = np.concatenate([turn, sampled, TOKENS[91:120]])
    await sampler.close()
    np.testing.assert_allclose(scored, changed[np.arange(179), TOKENS[1:]], atol=CLOSE[kind])


def test_an_architecture_without_a_known_name_needs_a_gguf() -> None:
    config = load_base("tiny").config
    assert names_like(replace(config, architecture="mistral")).architecture == "llama"
    with pytest.raises(BaseModelError, match=r"'zamba' is not known\. Name the base's GGUF"):
        names_like(replace(config, architecture="zamba"))


def test_an_adapter_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    _, path = bring("olmo2", tmp_path / "model")
    context = open_base(base_file(load_base(tmp_path / "model"), tmp_path, gguf=str(path)), 2, 256).context
    name = "model.layers.1.mlp.up_proj"
    a, b = np.zeros((4, 64), np.float32), np.zeros((96, 4), np.float32)
    for wrong, words in (
        ({f"{name}.lora_A": a[:, 1:], f"{name}.lora_B": b}, "incorrect shape"),
        ({f"{name}.lora_A": a, f"{name}.lora_B": b[1:]}, "incorrect shape"),
        ({f"{name}.lora_A": a[1:], f"{name}.lora_B": b}, "make no product"),
        ({f"{name}.lora_A": a}, "has no .*up_proj.lora_B"),
        ({"lm_head.lora_A": a, "lm_head.lora_B": b}, "incorrect shape"),
    ):
        with pytest.raises(AdapterError, match=words):
            context.load_adapter(wrong, 8.0)
    for module in ("model.layers.2.mlp.up_proj", "model.layers.1.mlp.sideways"):
        with pytest.raises(BaseModelError, match=f"olmo2 with \\d+ layers has no {module}, but the base has"):
            context.load_adapter({f"{module}.lora_A": a, f"{module}.lora_B": b}, 8.0)
    context.close()


def test_a_gguf_of_another_base_is_refused(tmp_path: Path) -> None:
    wrong: dict[str, tuple[int | str, str]] = {
        "olmo2.block_count": (3, r"number of layers is 3, config\.json says 2"),
        "olmo2.embedding_length": (65, r"hidden size is 65, config\.json says 64"),
        "split.count": (3, r"one of 3 parts of a GGUF file\. Merge them with `llama-gguf-split --merge"),
        "general.type": ("adapter", "holds no model: its type is adapter"),
    }
    for key, (value, words) in wrong.items():
        folder = tmp_path / key
        _, path = bring("olmo2", folder, **{key: value})
        with pytest.raises(BaseModelError, match=words):
            base_file(load_base(folder), tmp_path, gguf=str(path))
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"vocab_size": 61', '"vocab_size": 60'))
    _, path = bring("olmo2", tmp_path / "whole")
    with pytest.raises(BaseModelError, match=r"vocabulary is 61, config\.json says 60"):
        base_file(load_base(folder), tmp_path, gguf=str(path))
    tiny = load_base("tiny")
    like = replace(tiny, config=replace(tiny.config, vocab_size=61, layers=2, hidden_size=64))
    with pytest.raises(BaseModelError, match=r"architecture is olmo2, config\.json says qwen3"):
        base_file(like, tmp_path, gguf=str(path))


def test_what_is_no_whole_gguf_is_refused(tmp_path: Path) -> None:
    _, path = bring("olmo2", tmp_path / "model")
    base, data = load_base(tmp_path / "model"), path.read_bytes()
    for content, words in (
        (data[:-1], f"has {len(data) - 1} bytes of {len(data)}; it was not copied whole"),
        (data[:300], "ends within its header; it was not copied whole"),
        (b"", "is no GGUF file"),
        (b"PK\3\4" + data[4:], "is no GGUF file"),
        (data[:4] + b"\1\0\0\0" + data[8:], "is a GGUF file of version 1"),
        (data[:4] + b"\0\0\0\3" + data[8:], "is a GGUF file for big-endian processors"),
    ):
        (tmp_path / "other.gguf").write_bytes(content)
        with pytest.raises(BaseModelError, match=words):
            base_file(base, tmp_path, gguf=str(tmp_path / "other.gguf"))
    with pytest.raises(BaseModelError, match="There is no GGUF file"):
        base_file(base, tmp_path, gguf=str(tmp_path / "nowhere.gguf"))
    with pytest.raises(BaseModelError, match="cannot be read: Is a directory"):
        base_file(base, tmp_path, gguf=str(tmp_path))
    with pytest.raises(BaseModelError, match=r"no GGUF for the architecture 'olmo2'.*\[rollout\] gguf = FILE"):
        base_file(base, tmp_path)


def test_what_llama_cpp_refuses_is_said(tmp_path: Path) -> None:
    _, path = bring("olmo2", tmp_path / "model", **{"olmo2.attention.head_count": "four"})
    with pytest.raises(BaseModelError, match=r"llama\.cpp cannot load .*It may be damaged"):
        open_base(base_file(load_base(tmp_path / "model"), tmp_path, gguf=str(path)), 2, 256)
