"""Rows of several adapters in one call of llama.cpp have the bits of calls of their own."""

import asyncio
import ctypes
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from marlaas.engine.models import gguf as gguf_module
from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.gguf import plain_layers, read_header
from marlaas.engine.models.weights import linear_shapes
from marlaas.engine.samplers.batching import context as batching_context
from marlaas.engine.samplers.batching.context import Arrays, DecodeFailed, Logits
from marlaas.engine.samplers.llama import context as context_module, mixing as mixing_module
from marlaas.engine.samplers.llama.context import LlamaContext
from marlaas.engine.samplers.llama.mixing import Ggml, Mixing, Tensor, Unknown
from marlaas.engine.samplers.llama.model import BaseFile, LlamaSampler, base_file, open_base
from marlaas.engine.samplers.llama.native import llama
from tools.random_base.make import make_base

from ...rollout.contract.asking import State, alone, request, same
from ...rollout.random_base import write_base

PROMPT = 7
HELD = [(1, 4, 8.0), (2, 16, 16.0), (3, 3, 7.0), (4, 16, 0.0)]
"""Adapters: seed, rank and alpha."""


def adapter(base: BaseModel, seed: int, rank: int, lacks: str = "") -> Arrays:
    """On all layers, or on those whose names do not hold ``lacks``."""
    random = np.random.default_rng(seed)
    tensors: Arrays = {}
    for module, (out, into) in linear_shapes(base.config).items():
        if not lacks or lacks not in module:
            tensors[f"{module}.lora_A"] = random.standard_normal((rank, into), np.float32) / np.float32(6)
            tensors[f"{module}.lora_B"] = random.standard_normal((out, rank), np.float32) / np.float32(6)
    return tensors


def opened(
    file: BaseFile, mixes: bool = True, threads: int = 1, exact: bool = False, length: int = 512
) -> LlamaContext:
    return open_base(file, 24, length, threads, exact, mixes=mixes).context


def prefill(context: LlamaContext, handle: int, sequence: int, tokens: int = PROMPT) -> Logits:
    wanted = np.zeros(tokens, np.int8)
    wanted[-2:] = 1
    context.use(np.array([handle]))
    given = (np.arange(tokens, dtype=np.int32) * 3 + sequence) % 50
    return context.decode(given, np.arange(tokens, dtype=np.int32), np.full(tokens, sequence, np.int32), wanted).copy()


def decode(context: LlamaContext, handles: list[int], rows: list[int]) -> Logits:
    """One token more of each of the sequences ``rows``."""
    ids = np.array(rows, np.int32)
    context.use(np.array(handles))
    return context.decode(ids % 50, context.held[ids].copy(), ids, np.ones(len(ids), np.int8)).copy()


@pytest.fixture(params=["f32", "f16", "q8_0"])
def file(request: pytest.FixtureRequest, base: BaseModel, tmp_path: Path) -> BaseFile:
    return base_file(base, tmp_path / "cache", request.param)


def held(context: LlamaContext, base: BaseModel) -> list[int]:
    lacking = ("", "", "down_proj", "layers.0")
    return [
        context.load_adapter(adapter(base, seed, rank, lacks), alpha)
        for (seed, rank, alpha), lacks in zip(HELD, lacking, strict=True)
    ]


ROWS = {
    "pairs": ([0, 1, 2, 3, 4, 5, 6, 7], [0, 0, 1, 1, 2, 2, 3, 3]),
    "lone rows": ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 1, 0]),
    "micro-batches": ([0, 1, 2, 3, 8, 9, 10, 15, 16], [0, 0, 0, 1, 2, 3, 3, 1, 1]),
    "unequal": ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 0, 0, 0, 0, 1, 1, 3, 0, 0]),
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("case", ROWS)
def test_mixed_rows_have_the_bits_of_calls_of_their_own(
    file: BaseFile, base: BaseModel, case: str, exact: bool
) -> None:
    compare(file, base, *ROWS[case], exact)


@pytest.mark.parametrize("family", ["qwen2.5", "llama3"])
def test_every_family_mixes_with_the_same_bits(family: str, tmp_path: Path) -> None:
    """Qwen2 has biases; llama.cpp has the rows of Llama's queries and keys in an order of its own, and its head has an
    adapter."""
    base = make_base(tmp_path / "base", family, rows=1500)
    compare(base_file(base, tmp_path / "cache"), base, *ROWS["unequal"], exact=True)


def compare(file: BaseFile, base: BaseModel, rows: list[int], owners: list[int], exact: bool) -> None:
    """Decode ``rows``, sequences, under the adapters ``owners`` in one call, and each by itself with llama.cpp's own
    adapters."""
    logits: dict[bool, list[bytes]] = {}
    for mixes in (False, True):
        context = opened(file, mixes, exact=exact)
        assert context.mixes == mixes
        handles = held(context, base)
        said = [prefill(context, handles[owner], row).tobytes() for row, owner in zip(rows, owners, strict=True)]
        for _ in range(3):
            if mixes:
                found = decode(context, [handles[owner] for owner in owners], rows)
            else:
                found = np.empty((len(rows), context.vocabulary), np.float32)
                for place, (row, owner) in enumerate(zip(rows, owners, strict=True)):
                    pair = sorted((row, row ^ 1))  # a lone row would have other bits; nobody is interested in its twin
                    length = int(context.held[row ^ 1])
                    found[place] = decode(context, [handles[owner]], pair)[pair.index(row)]
                    context.cut(row ^ 1, length)
            said += [each.tobytes() for each in found]
        logits[mixes] = said
        context.close()
    assert logits[False] == logits[True]
    assert len(set(logits[True][-len(rows) :])) == len(rows)


def test_long_prompts_have_the_same_bits(file: BaseFile, base: BaseModel) -> None:
    """Of three micro-batches the first two have no row that is asked for."""
    said = []
    for mixes in (False, True):
        context = opened(file, mixes, length=1024)
        handles = held(context, base)
        said.append([prefill(context, handle, place, 600).tobytes() for place, handle in enumerate(handles)])
        context.close()
    assert said[0] == said[1] and len(set(said[0])) == len(HELD)


def test_threads_change_no_bit(file: BaseFile, base: BaseModel) -> None:
    said = []
    for threads in (1, 2):
        context = opened(file, threads=threads)
        if not context.mixes:
            context.close()
            pytest.skip("this llama.cpp has no OpenMP")
        handles = held(context, base)
        for row, handle in enumerate(handles):
            prefill(context, handle, row)
        said.append(decode(context, handles, [0, 1, 2, 3]).tobytes())
        context.close()
    assert said[0] == said[1]


@pytest.fixture
def context(base: BaseModel, tmp_path: Path) -> Iterator[LlamaContext]:
    opening = opened(base_file(base, tmp_path / "cache"))
    yield opening
    opening.close()


def test_a_retired_adapter_gives_its_memory_back(context: LlamaContext, base: BaseModel) -> None:
    handles = held(context, base)
    before = decode(context, [handles[0], handles[0], handles[1]], [0, 1, 2])
    mixing = context._mixing
    assert mixing is not None
    gone = weakref.ref(mixing._adapters[handles[2]].matrices[0])
    assert gone() is not None
    context.free_adapter(handles[2])
    assert gone() is None
    for row in range(3):
        context.cut(row, 0)
    assert decode(context, [handles[0], handles[0], handles[1]], [0, 1, 2]).tobytes() == before.tobytes()


def test_graphs_outlive_adapters(context: LlamaContext, base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions come and go with each step; their ranks stay."""
    made: list[mixing_module.Terms] = []

    class Counted(mixing_module.Terms):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(mixing_module, "Terms", Counted)
    first, second = (context.load_adapter(adapter(base, seed, 4), 8.0) for seed in (1, 2))
    decode(context, [first, first, second], [0, 1, 2])
    count = len(made)
    context.free_adapter(second)
    third = context.load_adapter(adapter(base, 3, 4), 8.0)
    decode(context, [first, first, third], [0, 1, 2])
    assert 0 < count == len(made)


def test_a_call_without_adapters_is_the_bare_base(context: LlamaContext, base: BaseModel, tmp_path: Path) -> None:
    held(context, base)
    plain = opened(base_file(base, tmp_path / "cache"), mixes=False)
    assert decode(context, [], [0, 1]).tobytes() == decode(plain, [], [0, 1]).tobytes()
    plain.close()


def test_a_graph_without_an_adapted_layer_fails_the_call(
    context: LlamaContext, base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = held(context, base)
    number = Mixing._number

    def blind(self: Mixing, weight: int) -> int:
        return -1 if b"blk.1.ffn_up" in Tensor.from_address(weight).name else number(self, weight)

    with monkeypatch.context() as patch:
        patch.setattr(Mixing, "_number", blind)
        for asked in ([handles[0]], [handles[0], handles[1]]):
            with pytest.raises(DecodeFailed, match="lacks layers"):
                decode(context, asked, [0, 1])
            context.cut(0, 0)
            context.cut(1, 0)
    decode(context, handles[:2], [0, 1])


def test_other_micro_batches_than_expected_fail_the_call(
    context: LlamaContext, base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = held(context, base)
    for wrong in ([slice(0, 1), slice(1, 4)], [slice(0, 4), slice(0, 4)], [slice(0, 2)]):
        with monkeypatch.context() as patch:
            patch.setattr(mixing_module, "micro_batches", lambda *_, wrong=wrong: wrong)
            with pytest.raises(DecodeFailed, match="did not compute what was asked for"):
                decode(context, handles, [0, 1, 2, 3])
        for row in range(4):
            context.cut(row, 0)
    decode(context, handles, [0, 1, 2, 3])


def test_memory_that_runs_out_is_said_as_such(
    context: LlamaContext, base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = held(context, base)

    def short(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(mixing_module, "Layout", short)
    with pytest.raises(MemoryError, match="no room"):
        decode(context, handles[:2], [0, 1])


def test_another_layout_of_tensors_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer(ctypes.Structure):
        _fields_ = [("new", ctypes.c_int64), *Tensor._fields_]

    monkeypatch.setattr(mixing_module, "Tensor", Longer)
    with pytest.raises(Unknown, match="another way"):
        Ggml()


def test_threads_that_start_for_each_layer_do_not_mix(base: BaseModel, tmp_path: Path) -> None:
    names = base_file(base, tmp_path / "cache").names
    without = SimpleNamespace(**vars(llama()) | {"llama_print_system_info": lambda: b"CPU : AVX2 = 1 |"})
    assert mixing_module.mixing(without, names, threads=2, rows=8, mixes=True, floats=False) is None
    alone = mixing_module.mixing(without, names, threads=1, rows=8, mixes=True, floats=False)
    assert alone is not None
    alone.close()


async def test_an_unknown_library_decodes_one_version_a_call(
    base: BaseModel, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> Ggml:
        raise Unknown("A tensor of ggml is laid out in another way.")

    calls = await calls_of(base, state, tmp_path, monkeypatch, mixes=True)
    monkeypatch.setattr(mixing_module, "ggml", unknown)
    assert len(await calls_of(base, state, tmp_path, monkeypatch, mixes=True)) > 2 * len(calls)


async def calls_of(
    base: BaseModel, state: State, folder: Path, monkeypatch: pytest.MonkeyPatch, mixes: bool
) -> list[int]:
    """How many rows each decode call held: 4 versions of 2 turns of 10 tokens, which are then compared."""
    monkeypatch.setattr(batching_context, "CACHE", 0)
    calls: list[int] = []
    decoding = LlamaContext.decode

    def counted(self: LlamaContext, tokens: Any, *rest: Any) -> Any:
        calls.append(len(tokens))
        return decoding(self, tokens, *rest)

    sampler = LlamaSampler(str(base.path), str(folder / "cache"), sequences=16, context=256, mixes=mixes)
    asked = [request(f"{n}", [7], version=f"v{n // 2}", seed=n, max_tokens=10) for n in range(8)]
    for number in range(4):
        await sampler.load(f"v{number}", str(state(number)))
    with monkeypatch.context() as patch:
        patch.setattr(context_module.LlamaContext, "decode", counted)
        together = await asyncio.gather(*(sampler.generate(each) for each in asked))
    for each in asked:
        await sampler.release(each.conversation)
    apart = [await alone(sampler, each) for each in asked]
    assert all(same(one, other) for one, other in zip(together, apart, strict=True))
    await sampler.close()
    return calls


async def test_versions_share_each_reading_of_a_large_base(
    base: BaseModel, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight turns of four versions: a call for each token, where it was one for each token and version."""
    mixed = await calls_of(base, state, tmp_path, monkeypatch, mixes=True)
    unmixed = await calls_of(base, state, tmp_path, monkeypatch, mixes=False)
    # turns that come after the first step begin a token later; they end later, too
    assert len(mixed) <= 12 and max(mixed) == 8
    assert len(unmixed) >= 40 and max(unmixed) == 2


def test_only_files_of_plain_layers_are_mixed(base: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = base_file(base, tmp_path / "cache")
    assert plain_layers(file.path, file.names)
    untied = write_base(tmp_path / "untied", tie_word_embeddings=False)
    other = base_file(untied, tmp_path / "cache")
    assert plain_layers(other.path, other.names)
    assert not plain_layers(file.path, other.names)  # it lacks the output matrix
    gemma = replace(file.names, config=replace(base.config, architecture="gemma2"))
    assert not plain_layers(file.path, gemma)
    header = read_header(file.path)
    scaled = replace(header, shapes=header.shapes | {"blk.1.ffn_up.scale": (1,)})
    monkeypatch.setattr(gguf_module, "read_header", lambda _: scaled)
    assert not plain_layers(file.path, file.names)
