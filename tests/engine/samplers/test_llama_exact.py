"""llama.cpp's bits: rows of several adapters in a call, and which rows a call computes."""

import asyncio
import ctypes
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.weights import linear_shapes
from marlaas.engine.samplers.batching import context as batching_context
from marlaas.engine.samplers.batching.context import Arrays, Logits
from marlaas.engine.samplers.llama import context as context_module, mixing as mixing_module
from marlaas.engine.samplers.llama.context import LlamaContext
from marlaas.engine.samplers.llama.mixing import Ggml, Tensor, Unknown
from marlaas.engine.samplers.llama.model import BaseFile, LlamaSampler, base_file, open_base
from tests.engine.rollout.contract.asking import State, alone, request, same
from tests.seldom import often
from tools.random_base.make import make_base

PROMPT = 7
HELD = [(1, 4, 8.0), (2, 16, 16.0), (3, 3, 7.0), (4, 16, 0.0)]
"""Adapters: seed, rank and alpha."""


@pytest.fixture
def file(base: BaseModel, tmp_path: Path) -> BaseFile:
    return base_file(base, tmp_path / "cache")


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

WEIGHTS = ("f32", "f16", "q8_0")
DAILY = [
    ("f32", "lone rows", True),
    ("f32", "micro-batches", False),
    ("f16", "pairs", True),
    ("f16", "unequal", False),
    ("q8_0", "micro-batches", True),
]


@pytest.mark.parametrize(
    ("weights", "case", "exact"), often(DAILY, itertools.product(WEIGHTS, ROWS, (False, True)), several=True)
)
def test_mixed_rows_have_the_bits_of_calls_of_their_own(
    base: BaseModel, tmp_path: Path, weights: str, case: str, exact: bool
) -> None:
    compare(base_file(base, tmp_path, weights), base, *ROWS[case], exact)


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


@pytest.mark.parametrize("weights", often(["f32"], WEIGHTS))
def test_long_prompts_have_the_same_bits(base: BaseModel, tmp_path: Path, weights: str) -> None:
    """Of three micro-batches the first two have no row that is asked for."""
    said, file = [], base_file(base, tmp_path, weights)
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


def test_another_layout_of_tensors_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer(ctypes.Structure):
        _fields_ = [("new", ctypes.c_int64), *Tensor._fields_]

    monkeypatch.setattr(mixing_module, "Tensor", Longer)
    with pytest.raises(Unknown, match="another way"):
        Ggml()


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
    assert all(map(same, together, apart))
    await sampler.close()
    return calls


def no_form(*_: object) -> Ggml:
    raise Unknown("ggml has no function ggml_mul_mat.")


async def test_versions_share_each_reading_of_a_large_base(
    base: BaseModel, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight turns of four versions: a call for each token, where it was one for each token and version; an unknown
    library decodes one version a call."""
    mixed = await calls_of(base, state, tmp_path, monkeypatch, mixes=True)
    unmixed = await calls_of(base, state, tmp_path, monkeypatch, mixes=False)
    # turns that come after the first step begin a token later; they end later, too
    assert len(mixed) <= 12 and max(mixed) == 8
    assert len(unmixed) >= 40 and max(unmixed) == 2
    monkeypatch.setattr(mixing_module, "ggml", no_form)
    assert len(await calls_of(base, state, tmp_path, monkeypatch, mixes=True)) > 2 * len(mixed)
