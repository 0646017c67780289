"""llama.cpp's memory for conversations: it grows unnoticed, takes what was estimated, and is copied bit by bit."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.models.config import BaseConfig
from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.memory import BACKEND, GRAPHS, card_bytes, context_bytes, layers_on_card
from marlaas.engine.samplers.batching.context import Logits
from marlaas.engine.samplers.llama.context import LlamaContext
from marlaas.engine.samplers.llama.model import LlamaSampler, base_file, open_base
from tests.engine.rollout.contract.asking import State, alone, request
from tests.engine.rollout.random_base import write_base
from tests.seldom import seldom


def growing(base: BaseModel, folder: Path, weights: str = "f32", first: int = 2) -> LlamaSampler:
    """Begins with ``first`` conversations of 256 tokens; 24 are all that it may have."""
    return LlamaSampler(str(base.path), str(folder), 24, 2048, exact=True, weights=weights, first=first)


@pytest.fixture
async def sampler(base: BaseModel, state: State, tmp_path: Path) -> AsyncIterator[LlamaSampler]:
    sampler = growing(base, tmp_path)
    await sampler.load("v0", str(state(0)))
    yield sampler
    await sampler.close()


def room(sampler: LlamaSampler) -> tuple[int, int]:
    """Sequences and tokens of each that there is memory for."""
    context = sampler._context
    assert isinstance(context, LlamaContext)
    return context._room, context._reach


@pytest.mark.torch
@pytest.mark.parametrize("weights", ["f32", seldom("f16")])
async def test_a_second_task_with_longer_episodes_changes_no_bit(
    base: BaseModel, state: State, tmp_path: Path, weights: str
) -> None:
    """A deterministic conversation of many turns speaks while a second task asks for more and longer ones."""
    results, rooms = [], []
    for count in (24, 2):
        sampler = growing(base, tmp_path, weights, count)
        for version in range(2):
            await sampler.load(f"v{version}", str(state(version)))
        tokens, others = [5, 6, 7], []
        for turn in range(4):
            asked = request("first", tokens, max_tokens=40, seed=turn)
            first = asyncio.ensure_future(sampler.generate(asked))
            if turn in (1, 2):
                long = [
                    request(f"{turn} {n}", [n + 2] * (300 * turn), max_tokens=60, version="v1", seed=n)
                    for n in range(8)
                ]
                others += [asyncio.ensure_future(alone(sampler, each)) for each in long]
            result = await first
            results.append((result.tokens.tolist(), result.logprobs.tobytes()))
            tokens = [*tokens, *result.tokens.tolist(), 9]
        results += [(end.tokens.tolist(), end.logprobs.tobytes()) for end in await asyncio.gather(*others)]
        rooms.append(room(sampler))
        await sampler.close()
    assert results[: len(results) // 2] == results[len(results) // 2 :]
    (_, most), (sequences, reach) = rooms
    assert most == reach == 768 and 8 <= sequences <= 26


@pytest.mark.torch
async def test_memory_is_taken_for_what_is_asked(sampler: LlamaSampler) -> None:
    assert room(sampler) == (4, 256)
    await asyncio.gather(*(alone(sampler, request(f"{n}", [3, n + 1], max_tokens=20, seed=n)) for n in range(2)))
    assert room(sampler) == (4, 256)
    await asyncio.gather(*(alone(sampler, request(f"{n}", [3, n + 1], max_tokens=20, seed=n)) for n in range(9)))
    assert 11 <= room(sampler)[0] <= 14 and room(sampler)[1] == 256
    score = await sampler.score("v0", np.arange(1, 400, dtype=np.int32) % 40, 2, 1.0)
    assert len(score) == 397 and room(sampler)[1] == 512
    limits = await sampler.limits()
    assert (limits.sequences, limits.context) == (24, 2048)
    for n in range(24):  # none is released, as where environments are slow
        await sampler.generate(request(f"slow {n}", [3, n + 1], max_tokens=4, seed=n))
    assert room(sampler)[0] == 26


@pytest.mark.torch
async def test_a_small_base_serves_more_at_once(base: BaseModel, tmp_path: Path, state: State) -> None:
    """Its weights stay in the processor's cache, so that calls of more rows are still faster."""
    sampler = LlamaSampler(str(base.path), str(tmp_path), 200, 256, exact=True, first=2)
    await sampler.load("v0", str(state(0)))
    await asyncio.gather(*(alone(sampler, request(f"{n}", [3, n % 40], max_tokens=60, seed=n)) for n in range(140)))
    assert 120 <= room(sampler)[0] < 200
    await sampler.close()


@pytest.mark.torch
async def test_short_memory_makes_turns_wait_rather_than_fail(
    sampler: LlamaSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlaas.engine.samplers.llama.context.available_memory", lambda: 1)
    asked = [request(f"{n}", [3, n + 1], max_tokens=20, seed=n) for n in range(20)]
    ends = await asyncio.gather(*(alone(sampler, each) for each in asked))
    assert len(ends) == 20 and room(sampler)[0] < 22
    for n in range(22):  # held by conversations that wait: nothing would continue without more
        await sampler.generate(request(f"waiting {n}", [3, n + 1], max_tokens=4, seed=n))
    assert room(sampler)[0] >= 24


@pytest.mark.torch
async def test_two_sequences_are_tried_if_more_do_not_fit(
    sampler: LlamaSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, make = sampler._context, LlamaContext._make
    assert isinstance(context, LlamaContext)

    def refused(self: LlamaContext, count: int, reach: int) -> bool:
        if count > 6:
            self._context = None
            return False
        return make(self, count, reach)

    monkeypatch.setattr(LlamaContext, "_make", refused)
    for needed, expected in ((False, 4), (True, 6)):
        context.grow(8, needed)
        assert room(sampler) == (expected, 256)
    with pytest.raises(MemoryError, match="there is none for 8 x 256 tokens"):
        context.grow(8, needed=True)
    assert room(sampler) == (6, 256)


CHILD = """
import json, sys
from pathlib import Path
import numpy as np
from marlaas.engine.models.find import load_base
from marlaas.engine.samplers.llama.model import base_file
from marlaas.engine.samplers.llama.model import open_base

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

folder, sequences, length, exact = json.loads(sys.argv[1])
base = load_base(folder)
file = base_file(base, Path(folder).with_name("cache"))
before = anonymous()
context = open_base(file, sequences, length, 1, exact).context
def decode(count, prompt, wanted):
    row = np.arange(count, dtype=np.int32)
    places, sequence = (row, row * 0) if prompt else (row * 0, row)
    context.decode(row % 100, places, sequence, wanted)
    for each in range(sequences):
        context.cut(each, 0)
decode(length, True, (np.arange(length) >= length - 128).astype(np.int8))
decode(sequences, False, np.ones(sequences, np.int8))
print(anonymous() - before)
"""


@pytest.mark.torch
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's own count")
@pytest.mark.parametrize(
    ("vocabulary", "sequences", "length", "exact"),
    [
        (60_000, 160, 256, True),
        seldom(2_000, 8, 4096, True),
        seldom(60_000, 4, 512, False),
    ],
)
def test_the_estimate_is_what_is_taken(
    tmp_path: Path, vocabulary: int, sequences: int, length: int, exact: bool
) -> None:
    base = write_base(
        tmp_path / "base", vocab_size=vocabulary, num_attention_heads=8, head_dim=32, max_position_embeddings=4096
    )
    argument = json.dumps([str(base.path), sequences, length, exact])
    out = subprocess.run([sys.executable, "-P", "-c", CHILD, argument], check=True, capture_output=True, text=True)
    taken, estimate = int(out.stdout), context_bytes(base.config, sequences, length, exact)
    assert taken < estimate < 1.1 * taken + GRAPHS


HALF_BILLION = BaseConfig("qwen3", 1024, 3072, 28, 16, 8, 128, 151_936, 40_960, 1e-6, 1e6, tie_word_embeddings=True)


def test_a_card_holds_all_that_is_on_it() -> None:
    weights = 1_200_000_000
    everything = card_bytes(HALF_BILLION, weights, 130, 2048, False, 29)
    memory = 28 * 2 * 8 * 128 * 2 * 130 * 2048
    assert everything > weights + memory + BACKEND  # the tied output matrix is copied to the card
    assert everything < 1.2 * (weights + memory + BACKEND)
    assert layers_on_card(HALF_BILLION, weights, 130, 2048, False, everything) == 29


LENGTH = 512


def opened(base: BaseModel, folder: Path, exact: bool = True) -> LlamaContext:
    return open_base(base_file(base, folder / "cache"), 6, LENGTH, exact=exact).context


def fill(context: LlamaContext, sequence: int, tokens: int, first: int = 0) -> None:
    row = np.arange(tokens, dtype=np.int32)
    context.decode((row * 3 + first) % 50, row, row * 0 + sequence, (row >= tokens - 2).astype(np.int8))


def step(context: LlamaContext, *sequences: int) -> Logits:
    ids = np.array(sequences, np.int32)
    return context.decode(ids * 0 + 5, context.held[ids].copy(), ids, np.ones(len(ids), np.int8)).copy()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("tokens", [2, 256, LENGTH - 2])
def test_copies_go_on_with_the_bits_of_their_source(base: BaseModel, tmp_path: Path, tokens: int, exact: bool) -> None:
    context = opened(base, tmp_path, exact)
    fill(context, 0, tokens)
    for target in (1, 2, 3):
        context.copy(0, [target], tokens)
    assert len({row.tobytes() for row in step(context, 0, 1, 2, 3)}) == 1
    context.close()


@pytest.mark.parametrize("tokens", [40, LENGTH - 2])
def test_a_copy_of_a_copy_needs_no_call_between(base: BaseModel, tmp_path: Path, tokens: int) -> None:
    """A conversation is kept, and goes on from there in its old place: at any length."""
    context = opened(base, tmp_path)
    fill(context, 1, 30)
    fill(context, 0, tokens)
    context.copy(0, [3], 30)
    context.cut(0, 0)
    context.copy(3, [0], 30)
    copied, source = step(context, 0, 1)
    np.testing.assert_allclose(copied, source, atol=1e-3)  # prompts of another length are other products
    context.close()
