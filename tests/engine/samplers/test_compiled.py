"""Compiled passes: as those of torch, to the last bit as a row alone; what is compiled, and where it cannot be."""

import platform
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.samplers.batching.context import SPARE, Context, Logits
from marlaas.engine.samplers.batching.sampler import BatchingSampler
from marlaas.engine.samplers.protocol import Sampler
from marlaas.engine.samplers.sampling import WHOLE, Truncation, choose
from marlaas.engine.samplers.torch import sampler as sampler_module
from marlaas.engine.samplers.torch.context import TorchContext
from marlaas.engine.samplers.torch.kernel import compare as comparing
from marlaas.engine.samplers.torch.kernel.compare import compare, disagreement
from marlaas.engine.samplers.torch.kernel.context import CompiledContext
from marlaas.engine.samplers.torch.kernel.library import SOURCE, Library, NotCompiled, compile_to, compiled, compiler
from marlaas.engine.samplers.torch.sampler import context_of, nbytes
from tests.engine.rollout.contract.asking import State
from tests.engine.rollout.contract.whole import PositionalContract
from tests.engine.rollout.random_base import write_adapter, write_base
from tests.seldom import often, seldom

SHAPES: dict[str, dict[str, object]] = {
    "even": {},
    "odd widths": {"hidden_size": 21, "intermediate_size": 27, "vocab_size": 37, "head_dim": 6},
    "a key for all": {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 10},
    "a key for each": {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 40},
    "wide heads": {"head_dim": 72, "num_hidden_layers": 3},
    "an output matrix of its own": {"tie_word_embeddings": False, "vocab_size": 301},
    "llama": {"model_type": "llama", "hidden_size": 33},
    "qwen2": {"model_type": "qwen2"},
    "scaled positions": {
        "model_type": "llama",
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
}

RANKS = (4, 16, 1, 9)

COUNT, LENGTH = 40, 120

CLOSE = 1e-4
"""Largest gap of logits of up to 10 between sums of float32 in another order, over a few layers."""


def base_of(folder: Path, shape: str) -> BaseModel:
    base = write_base(folder, 0, **SHAPES[shape])
    if base.config.architecture == "qwen2":  # the only one with biases
        file, random = folder / "model.safetensors", np.random.default_rng(5)
        tensors = load_file(file)
        for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
            bias = random.standard_normal(len(tensors[name]), np.float32)
            tensors[name.removesuffix("weight") + "bias"] = bias
        save_file(tensors, file)
        base = load_base(folder)
    return base


def loaded(context: Context, base: BaseModel, folder: Path) -> NDArray[np.int64]:
    """Handles of adapters of unequal ranks."""
    states = [read_state(write_adapter(folder / f"{rank}", base, rank, rank=rank)) for rank in RANKS]
    return np.array([context.load_adapter(state.adapter, 2.0 * state.header.alpha) for state in states])


def texts(base: BaseModel) -> NDArray[np.int32]:
    tokens = np.random.default_rng(2).integers(0, base.config.vocab_size, (COUNT, LENGTH))
    return tokens.astype(np.int32)


def run(
    context: Context, handles: NDArray[np.int64], tokens: NDArray[np.int32], rows: Sequence[tuple[int, int, int]]
) -> Logits:
    """Logits of all tokens of a pass over (sequence, begin, end), each under its sequence's adapter."""
    sequences = np.concatenate([np.full(end - begin, sequence) for sequence, begin, end in rows]).astype(np.int32)
    positions = np.concatenate([np.arange(begin, end) for _, begin, end in rows]).astype(np.int32)
    context.use(handles[sequences % len(handles)])
    wanted = np.ones(len(sequences), np.int8)
    return context.decode(tokens[sequences, positions], positions, sequences, wanted).copy()


def compare_with_torch(base: BaseModel, library: Library, folder: Path) -> None:
    tokens = texts(base)
    beginnings = [(sequence, 0, 1 + sequence * 7 % 45) for sequence in range(COUNT)]
    nexts = [(sequence, end, end + 1) for sequence, _, end in beginnings]
    ways = TorchContext(base, COUNT, LENGTH), CompiledContext(base, COUNT, LENGTH, library)
    found = []
    for way in ways:
        handles = loaded(way, base, folder)
        found.append(np.concatenate([run(way, handles, tokens, part) for part in (beginnings, nexts, nexts[3:4])]))
    assert np.abs(found[0]).max() > 1
    np.testing.assert_allclose(found[1], found[0], atol=CLOSE)


@pytest.mark.parametrize("shape", often(("odd widths", "an output matrix of its own", "llama", "qwen2"), SHAPES))
def test_logits_are_those_of_torch(library: Library, tmp_path: Path, shape: str) -> None:
    compare_with_torch(base_of(tmp_path / "base", shape), library, tmp_path)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names of processors are those of x86")
@pytest.mark.parametrize("processor", ["x86-64", seldom("x86-64-v3")])
def test_narrower_vectors_give_the_same_logits(tmp_path: Path, processor: str) -> None:
    if not compiler():
        pytest.skip("there is no C compiler")
    if processor == "x86-64-v3" and "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX2")
    made = compile_to(tmp_path / "decode.so", SOURCE, ((f"-march={processor}",),))
    compare_with_torch(base_of(tmp_path / "base", "odd widths"), Library(made), tmp_path)


def test_bits_are_those_of_a_row_alone(library: Library, tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", "odd widths")
    tokens, context = texts(base), CompiledContext(base, COUNT, LENGTH, library)
    handles = loaded(context, base, tmp_path)
    alone = [run(context, handles, tokens, [(sequence, 0, 50)]) for sequence in range(COUNT)]
    for count in (2, 3, 5, 13, COUNT):
        every = range(COUNT - count, COUNT)
        begun = run(context, handles, tokens, [(sequence, 0, 20) for sequence in every])
        steps = [run(context, handles, tokens, [(sequence, at, at + 1) for sequence in every]) for at in range(20, 30)]
        ended = run(context, handles, tokens, [(sequence, 30, 50) for sequence in every])
        for place, sequence in enumerate(every):
            own = [begun[place * 20 : place * 20 + 20], *(step[place : place + 1] for step in steps)]
            whole = np.concatenate([*own, ended[place * 20 : place * 20 + 20]])
            assert whole.tobytes() == alone[sequence].tobytes()


def test_threads_share_rows_and_change_no_bit(library: Library, tmp_path: Path) -> None:
    base, found = base_of(tmp_path / "base", "even"), []
    for number in (1, 3, 8):
        context = CompiledContext(base, COUNT, LENGTH, library, number)
        handles, tokens = loaded(context, base, tmp_path), texts(base)
        begun = run(context, handles, tokens, [(sequence, 0, 1 + sequence * 7 % 45) for sequence in range(COUNT)])
        first = run(context, handles, tokens, [(39, 0, 100)])  # one sequence is for one thread
        every = np.arange(COUNT, dtype=np.int32)
        context.use(handles[every % len(handles)])
        last = context.decode(tokens[:, 50], every * 0 + 45, every, np.ones(COUNT, np.int8))
        found.append([each.tobytes() for each in (begun, first, last)])
        context.close()
    assert found[0] == found[1] == found[2]


def test_drawn_tokens_are_those_of_numpy(library: Library, tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", "an output matrix of its own")
    context, random = CompiledContext(base, COUNT, LENGTH, library), np.random.default_rng(3)
    logits = random.normal(0, 3, (500, base.config.vocab_size)).astype(np.float32)
    temperatures = random.choice([0.0, 0.5, 1.0, 1.7], 500)
    noise = np.concatenate([[0.0, 1 - 2.0**-53], random.random(498)])
    truncations = [Truncation(top_k=4, top_p=0.8) if row % 3 == 0 else WHOLE for row in range(500)]
    for cuts in (None, truncations):
        expected, found = (way(logits, temperatures, noise, cuts) for way in (choose, context.choose))
        assert np.array_equal(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1], atol=1e-5)  # two exponential functions


def test_a_broken_adapter_breaks_its_own_rows_alone(library: Library, tmp_path: Path) -> None:
    """One that has diverged; its tokens are ones of the vocabulary all the same."""
    base = base_of(tmp_path / "base", "odd widths")
    tokens, context = texts(base), CompiledContext(base, COUNT, LENGTH, library)
    handles = loaded(context, base, tmp_path)
    whole = run(context, handles, tokens, [(0, 0, 9)])
    state = read_state(write_adapter(tmp_path / "broken", base, 7))
    broken = {name: np.full_like(values, np.nan) for name, values in state.adapter.items()}
    handles[1] = context.load_adapter(broken, 4.0)
    beside = run(context, handles, tokens, [(0, 0, 9), (1, 0, 9)])
    assert beside[:9].tobytes() == whole.tobytes() and np.isnan(beside[9:]).all()
    drawn, _ = context.choose(beside, np.ones(18), np.full(18, 0.5), None)
    assert ((drawn >= 0) & (drawn < base.config.vocab_size)).all()


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


@pytest.fixture
def cache(tmp_path: Path, compiled_files: Path) -> Path:
    """A folder with what was compiled once."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for file in compiled_files.glob("*.so"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(autouse=True)
def without_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "users_folder", lambda: None)


@pytest.mark.parametrize("left", [seldom(0), 9000])
def test_a_damaged_file_is_replaced(cache: Path, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:left])
    path, _ = compiled(cache)
    assert list(cache.iterdir()) == [path] and path.stat().st_size > left
    monkeypatch.setenv("CC", "false")
    assert compiled(cache)[0] == path, "it is compiled once"


def test_homes_of_a_user_share_what_is_compiled(
    tmp_path: Path, cache: Path, base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compared once. A comparison that fails, on a loaded machine say, is made again."""
    (made,) = cache.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(comparing, "SECONDS", 0.01)
        assert "timed out" in disagreement(made, base)
        patch.setattr(sys, "executable", str(tmp_path / "gone"))
        assert "No such file" in disagreement(made, base)
    assert list(cache.iterdir()) == [made]
    monkeypatch.setattr(sampler_module, "users_folder", lambda: cache)
    monkeypatch.setenv("CC", "false")
    for _ in range(2):
        assert isinstance(context_of(base, 4, 64, "f32", str(tmp_path / "home")), CompiledContext)
    assert sorted(file.suffix for file in cache.iterdir()) == [".so", ".verdict"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo broken pipe dream >&2; exit 1", "broken pipe dream"),
        ("exit 0", "it says nothing"),
        ('while [ "$1" != -o ]; do shift; done; echo no library > "$2"', "invalid ELF header|file too short|cannot"),
    ],
)
def test_a_broken_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    monkeypatch.setenv("CC", script(tmp_path / "broken", text))
    with pytest.raises(NotCompiled, match=said):
        compiled(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_without_a_compiler_torch_computes(
    tmp_path: Path, base: BaseModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "file").write_text("")
    for cache in ("cache", "file"):  # the second cannot be a folder
        assert isinstance(context_of(base, 4, 64, "f32", str(tmp_path / cache)), TorchContext)
    assert "There is no C compiler." in caplog.text


def test_what_dies_in_its_trial_is_not_used(tmp_path: Path, base: BaseModel) -> None:
    if not compiler():
        pytest.skip("there is no C compiler")
    source, names = tmp_path / "dies.c", ("pack", "memory_size", "room_size", "logits_size", "decode", "draw")
    functions = "".join(f"long {name}(void) {{ return 1; }}\n" for name in (*names, "packed_size"))
    source.write_text(f"{functions}long block_size(void) {{ *(volatile int *)0 = 1; return 0; }}\n")
    made = compile_to(tmp_path / "dies.so", source)
    for _ in range(2):  # found out once, and kept
        assert "ends with -" in disagreement(made, base)
    assert len(list(tmp_path.glob("dies-*.verdict"))) == 1


RIGHT = "float factor = 1.0f / sqrtf(sum / (float)size + eps);"


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        seldom("head < base->queries ? base->scale : 1.0f", "1.0f", "Their results differ from torch's."),
        seldom("rows->positions[row] + 1, qkv", "rows->positions[row], qkv", "Their results differ from torch's."),
        seldom("own->columns[module], dy, ADD", "own->columns[module], dy, SET", "Their results differ from torch's."),
        seldom("> noise[row] * total", "> 0.9 * noise[row] * total", "The tokens that they draw differ from numpy's."),
        (
            RIGHT,
            f"static int n; {RIGHT} factor *= 1.0f + 1e-6f * (float)(++n % 7);",
            "A row's last bits depend on other rows.",
        ),
    ],
)
def test_passes_that_are_wrong_are_refused(
    tmp_path: Path, compiled_files: Path, base: BaseModel, right: str, wrong: str, words: str
) -> None:
    source, text = tmp_path / "wrong.c", SOURCE.read_text()
    assert text.count(right) == 1
    source.write_text(text.replace(right, wrong))
    made = compile_to(tmp_path / "wrong.so", source)
    assert compare(base, Library(made)) == words


def test_large_bases_and_bfloat16_are_for_torch(cache: Path, base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(context_of(base, 4, 64, "bf16", str(cache)), TorchContext)
    assert isinstance(context_of(base, 4, 64, "f32", ""), TorchContext)
    monkeypatch.setattr(sampler_module, "SMALL", nbytes(base) - 1)
    assert isinstance(context_of(base, 4, 64, "f32", str(cache)), TorchContext)


@pytest.fixture
async def compiled_sampler(base: BaseModel, state: State, library: Library) -> AsyncIterator[BatchingSampler]:
    sampler = BatchingSampler(base, CompiledContext(base, 64 + SPARE, 2048, library), 2048)
    for number in (0, 1):
        await sampler.load(f"v{number}", str(state(number)))
    yield sampler
    await sampler.close()


class TestCompiledSampler(PositionalContract):
    apart = rounding = 1e-4

    @pytest.fixture
    async def sampler(self, compiled_sampler: BatchingSampler) -> Sampler:
        return compiled_sampler
