"""Compiled passes beside those of torch and beside themselves, whatever the shapes and whoever else is there."""

import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.samplers.batching.context import Context, DecodeFailed, Logits
from marlaas.engine.samplers.sampling import WHOLE, Cuts, Truncation, choose
from marlaas.engine.samplers.torch.context import TorchContext
from marlaas.engine.samplers.torch.kernel.context import CompiledContext
from marlaas.engine.samplers.torch.kernel.library import SOURCE, Library, compile_to, compiler

from .....seldom import seldom
from ....rollout.random_base import write_adapter, write_base

SHAPES: dict[str, dict[str, object]] = {
    "even": {},
    "odd widths": {"hidden_size": 21, "intermediate_size": 27, "vocab_size": 37, "head_dim": 6},
    "a key for all": {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 10},
    "a key for each": {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 40},
    "wide heads": {"head_dim": 72, "num_hidden_layers": 3},
    "an output matrix of its own": {"tie_word_embeddings": False, "vocab_size": 301},
    "llama": {"model_type": "llama", "hidden_size": 33},
    "qwen2": {"model_type": "qwen2"},
    "scaled positions": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
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


def compare(base: BaseModel, library: Library, folder: Path) -> None:
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


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_torch(library: Library, tmp_path: Path, shape: str) -> None:
    compare(base_of(tmp_path / "base", shape), library, tmp_path)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names of processors are those of x86")
@pytest.mark.parametrize("processor", ["x86-64", seldom("x86-64-v3")])
def test_narrower_vectors_give_the_same_logits(tmp_path: Path, processor: str) -> None:
    if not compiler():
        pytest.skip("there is no C compiler")
    if processor == "x86-64-v3" and "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX2")
    made = compile_to(tmp_path / "decode.so", SOURCE, ((f"-march={processor}",),))
    compare(base_of(tmp_path / "base", "odd widths"), Library(made), tmp_path)


@pytest.mark.parametrize("shape", ["even", "odd widths"])
def test_bits_are_those_of_a_row_alone(library: Library, tmp_path: Path, shape: str) -> None:
    base = base_of(tmp_path / "base", shape)
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


def test_matrices_stored_in_bfloat16_give_the_same_bits(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read as such, in half as many bytes, and widened."""
    base = write_base(tmp_path / "base", hidden_size=300, intermediate_size=30)  # more inputs than are summed at once
    file = base.path / "model.safetensors"
    halves = {name: (each.view(np.uint32) & 0xFFFF0000).view(np.float32) for name, each in load_file(file).items()}
    save_file(halves, file)
    base, found = load_base(base.path), []
    assert library.halved(halves["model.embed_tokens.weight"]) is not None
    for _ in range(2):
        context = CompiledContext(base, COUNT, LENGTH, library)
        handles = loaded(context, base, tmp_path)
        found.append(run(context, handles, texts(base), [(0, 0, 30), (1, 0, 2), (2, 0, 1)]).tobytes())
        monkeypatch.setattr(library, "halved", lambda weight: None)
    assert found[0] == found[1]


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_share_rows_and_change_no_bit(library: Library, tmp_path: Path, threads: int) -> None:
    base, found = base_of(tmp_path / "base", "even"), []
    for number in (1, threads):
        context = CompiledContext(base, COUNT, LENGTH, library, number)
        handles, tokens = loaded(context, base, tmp_path), texts(base)
        begun = run(context, handles, tokens, [(sequence, 0, 1 + sequence * 7 % 45) for sequence in range(COUNT)])
        first = run(context, handles, tokens, [(39, 0, 100)])  # one sequence is for one thread
        every, heats = np.arange(COUNT, dtype=np.int32), np.ones(COUNT)
        context.use(handles[every % len(handles)])
        drawn = context.draw(tokens[:, 50], every * 0 + 45, every, heats, np.linspace(0, 0.99, COUNT), None)
        found.append([each.tobytes() for each in (begun, first, *drawn)])
        context.close()
    assert found[0] == found[1]


def test_a_matrix_in_float32_is_not_halved(library: Library) -> None:
    weight = np.ones((5, 7), np.float32)
    assert library.halved(weight) is not None
    weight[3, 2] = np.nextafter(np.float32(1), np.float32(2))
    assert library.halved(weight) is None


def test_a_copy_goes_on_as_its_source(library: Library, tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", "even")
    tokens, context = texts(base), CompiledContext(base, COUNT, LENGTH, library)
    handle = loaded(context, base, tmp_path)[:1]
    tokens[9] = tokens[3]
    run(context, handle, tokens, [(3, 0, 30)])
    run(context, handle, tokens, [(9, 0, 60)])  # what a sequence held before is no part of it
    context.cut(9, 0)
    context.copy(3, [9], 25)
    assert context.held[[3, 9]].tolist() == [30, 25]
    copied = run(context, handle, tokens, [(9, 25, 31)])
    assert copied[-1].tobytes() == run(context, handle, tokens, [(3, 30, 31)]).tobytes()


def test_only_wanted_rows_have_logits(library: Library, tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", "even")
    tokens, context = texts(base), CompiledContext(base, COUNT, LENGTH, library)
    handles = loaded(context, base, tmp_path)
    whole = run(context, handles, tokens, [(0, 0, 110), (1, 0, 5), (4, 0, 5)])
    sequences = np.repeat(np.array([0, 1, 4], np.int32), (110, 5, 5))
    positions = np.concatenate([np.arange(110), np.arange(5), np.arange(5)]).astype(np.int32)
    wanted = np.zeros(120, np.int8)
    wanted[[109, 113, 114, 116]] = 1
    context.use(handles[sequences % len(handles)])
    found = context.decode(tokens[sequences, positions], positions, sequences, wanted)
    assert found.tobytes() == whole[[109, 113, 114, 116]].tobytes()


def test_a_long_prompt_takes_no_room_for_logits(library: Library, tmp_path: Path) -> None:
    """A large vocabulary would otherwise take a gigabyte."""
    base = base_of(tmp_path / "base", "even")
    tokens, context = texts(base), CompiledContext(base, COUNT, LENGTH, library)
    before, wanted = context._logits.nbytes, np.zeros(LENGTH, np.int8)
    wanted[-2:] = 1
    positions = np.arange(LENGTH, dtype=np.int32)
    assert len(context.decode(tokens[0], positions, positions * 0, wanted)) == 2
    assert context._logits.nbytes == before


def test_a_position_beyond_the_memory_is_refused(library: Library, tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", "even")
    context, one = CompiledContext(base, 2, LENGTH, library), np.ones(1, np.int32)
    with pytest.raises(DecodeFailed, match="position 120 is beyond"):
        context.decode(one, one * LENGTH, one, np.ones(1, np.int8))


def test_a_freed_place_is_taken_again(library: Library, tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", "even")
    tokens, context = texts(base), CompiledContext(base, COUNT, LENGTH, library)
    handles = loaded(context, base, tmp_path)
    before = run(context, handles, tokens, [(2, 0, 9)])
    context.free_adapter(int(handles[1]))
    state = read_state(write_adapter(tmp_path / "another", base, 7, rank=30))
    assert context.load_adapter(state.adapter, 30.0) == handles[1]
    assert run(context, handles, tokens, [(2, 0, 9)]).tobytes() == before.tobytes()
    assert np.abs(run(context, handles[1:2], tokens, [(2, 0, 9)]) - before).max() > 0.01


def test_drawn_tokens_are_those_of_numpy(library: Library, tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", "an output matrix of its own")
    context, random = CompiledContext(base, COUNT, LENGTH, library), np.random.default_rng(3)
    logits = random.normal(0, 3, (500, base.config.vocab_size)).astype(np.float32)
    temperatures = random.choice([0.0, 0.5, 1.0, 1.7], 500)
    noise = np.concatenate([[0.0, 1 - 2.0**-53], random.random(498)])
    truncations = [Truncation(top_k=4, top_p=0.8) if row % 3 == 0 else WHOLE for row in range(500)]
    for cuts in (None, Cuts(truncations, temperatures)):
        expected, found = (way(logits, temperatures, noise, cuts) for way in (choose, context.choose))
        assert np.array_equal(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1], atol=1e-5)  # two exponential functions


def test_a_pass_draws_as_its_logits_say(library: Library, tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", "even")
    tokens, context = texts(base), CompiledContext(base, COUNT, LENGTH, library)
    context.use(loaded(context, base, tmp_path)[np.arange(COUNT) % len(RANKS)])
    every, zeros = np.arange(COUNT, dtype=np.int32), np.zeros(COUNT, np.int32)
    heats, noise = np.linspace(0, 2, COUNT), np.random.default_rng(0).random(COUNT)
    logits = context.decode(tokens[:, 0], zeros, every, np.ones(COUNT, np.int8)).copy()
    for cuts in (None, Cuts([Truncation(top_k=2)] * COUNT, heats)):
        drawn, logprobs = context.draw(tokens[:, 0], zeros, every, heats, noise, cuts)
        expected = context.choose(logits, heats, noise, cuts)
        assert np.array_equal(drawn, expected[0]) and logprobs.tobytes() == expected[1].tobytes()


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
