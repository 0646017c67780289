"""What sequences hold, on a context that says what it has read: each shared block is read once, and nothing else is
said than without sharing."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from marlaas.engine.samplers.batching.context import BLOCK, PIECE, SPARE, DecodeFailed, Ints, Logits
from marlaas.engine.samplers.batching.memory import PART
from marlaas.engine.samplers.batching.requests import Answer, Answers, Versions
from marlaas.engine.samplers.batching.scheduler import BatchScheduler
from marlaas.engine.samplers.protocol import SampleRequest, SampleResult
from marlaas.engine.samplers.sampling import choose, uniforms

from ....examples import examples
from .test_order import Flat, Kind, Known

VOCABULARY, LENGTH = 6, 1024
SYSTEM = 2000
"""Tokens of the system prompt of the issue."""


class Noting(Flat):
    """A ``Context`` whose logits follow from the adapter and all tokens of the sequence, and which notes what it reads:
    (adapter, number of tokens up to the row, their checksum) for each row of calls of several tokens of a sequence."""

    vocabulary = VOCABULARY

    def __init__(self, kind: Kind, sequences: int, length: int = LENGTH) -> None:
        super().__init__(kind)
        self.sequences, self.length = sequences + SPARE, length
        self.held: Ints = np.zeros(self.sequences, np.int32)
        self.texts: list[list[int]] = [[] for _ in range(self.sequences)]
        """Checksums of the tokens up to each row, by sequence."""
        self.read: list[tuple[int, int, int]] = []
        self.fails = False

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        if self.fails:
            raise DecodeFailed("It failed.")
        self.calls.append(sequences.tolist())
        adapters = np.broadcast_to(self._adapters, len(tokens)).tolist()
        several = len(set(sequences.tolist())) < len(tokens)
        assert self.joins or not several or len(set(sequences.tolist())) == 1
        assert np.bincount(sequences).max() <= PIECE + 1  # what attention takes grows with the length alone
        said = []
        for token, position, sequence, adapter, wanted in zip(
            tokens.tolist(), positions.tolist(), sequences.tolist(), adapters, outputs.tolist(), strict=True
        ):
            rows = self.texts[sequence]
            assert len(rows) == position == self.held[sequence]
            rows.append(checksum([token], rows[-1] if rows else 0))
            self.held[sequence] += 1
            if several:
                self.read.append((adapter, len(rows), rows[-1]))
            if wanted:
                said.append(logits_of(adapter, rows[-1]))
        return np.array(said, np.float32).reshape(-1, VOCABULARY)

    def cut(self, sequence: int, length: int) -> None:
        del self.texts[sequence][length:]
        self.held[sequence] = len(self.texts[sequence])

    def copy(self, source: int, targets: list[int], length: int) -> None:
        for target in targets:
            assert not self.texts[target] and len(self.texts[source]) >= length and source != target
            self.texts[target] = self.texts[source][:length]
            self.held[target] = length


def checksum(tokens: Sequence[int], before: int = 0) -> int:
    return zlib.crc32(np.array(tokens, np.int32).tobytes(), before)


def logits_of(adapter: int, tokens: int) -> NDArray[np.float32]:
    """Those of a model that has seen exactly the tokens of that checksum."""
    return np.random.default_rng((adapter, tokens)).normal(size=VOCABULARY).astype(np.float32)


def said_alone(request: SampleRequest) -> tuple[list[int], list[float]]:
    """The tokens and log-probabilities of a turn, without any sampler."""
    tokens, logprobs = request.tokens.tolist(), []
    start = len(tokens)
    for noise in uniforms(request.seed, start, start + request.max_tokens):
        logits = logits_of(int(request.version[1:]), checksum(tokens))[None]
        token, logprob = choose(logits, np.ones(1), np.array([noise]))
        tokens.append(int(token[0]))
        logprobs.append(float(logprob[0]))
    return tokens[start:], logprobs


@dataclass
class Machine:
    """A scheduler over a ``Noting`` context, and the turns that wait for their answers."""

    kind: Kind = "joins"
    sequences: int = 16
    length: int = LENGTH
    context: Noting = field(init=False)
    asked: list[tuple[SampleRequest, Answer[SampleResult]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context = Noting(self.kind, self.sequences, self.length)
        self.versions = Known()
        self.scheduler = BatchScheduler(self.context, cast(Versions, self.versions), self.length)
        self._answers = Answers()

    @property
    def kept(self) -> int:
        """Sequences that no conversation has, and that hold something."""
        return sum(map(bool, self.context.texts))

    def ask(self, name: str, tokens: Sequence[int], **changes: Any) -> SampleRequest:
        answer: Answer[SampleResult] = Answer(self._answers)
        settings: dict[str, Any] = {"version": "v0", "max_tokens": 3, "seed": len(self.asked), "alike": False} | changes
        request = SampleRequest(name, tokens=np.array(tokens, np.int32), temperature=1.0, stop=(), **settings)
        self.scheduler.submit(request, answer)
        self.asked.append((request, answer))
        return request

    async def answers(self, release: bool = True) -> list[tuple[SampleRequest, SampleResult]]:
        """Of all that were asked, in order; each conversation is forgotten at its end."""
        found: dict[str, tuple[SampleRequest, SampleResult]] = {}
        while self.scheduler.busy or len(found) < len(self.asked):
            self.scheduler.step()
            self._answers.flush()
            await asyncio.sleep(0)
            for request, answer in self.asked:
                if answer.future.done() and request.conversation not in found:
                    found[request.conversation] = request, answer.future.result()
                    if release:
                        self.scheduler.release(request.conversation)
        self.asked = []
        return [*found.values()]

    async def one(self, name: str, tokens: Sequence[int], **changes: Any) -> SampleResult:
        self.ask(name, tokens, **changes)
        return (await self.answers())[0][1]


def words(count: int, seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()
    return tokens


both = pytest.mark.parametrize("alike", [False, True])
kinds = pytest.mark.parametrize("kind", ["alone", "mixes", "joins"])


@kinds
@both
@pytest.mark.parametrize("together", [False, True])
async def test_a_system_prompt_is_read_once_per_version(kind: Kind, alike: bool, together: bool) -> None:
    """Four groups of three on two versions, at once and one after the other."""
    machine, system = Machine(kind, length=4096), words(SYSTEM, 0)
    read: Counter[str] = Counter()
    for group in range(4):
        for version in ("v0", "v1"):
            for member in range(3):
                tokens = system + words(50, 1 + group)
                machine.ask(f"{version} {group} {member}", tokens, version=version, alike=alike)
        if group == 3 or not together:
            for request, result in await machine.answers():
                read[request.version] += result.prefilled
    shared = SYSTEM // (PIECE if alike else BLOCK) * (PIECE if alike else BLOCK)
    assert read == {"v0": shared + 4 * (SYSTEM - shared + 50), "v1": shared + 4 * (SYSTEM - shared + 50)}
    assert machine.scheduler.stats().prefilled_tokens == read.total() == len(machine.context.read)


@both
async def test_turns_that_are_read_anew_find_what_was_said(alike: bool) -> None:
    """As in deterministic tasks: the conversation has another name with each turn."""
    machine, tokens, read = Machine(), words(300, 0), []
    for turn in range(3):
        result = await machine.one(f"turn {turn}", tokens, alike=alike, seed=turn)
        read.append(result.prefilled)
        tokens = tokens + result.tokens.tolist() + words(297, turn)
    assert read == ([300, 344, 388] if alike else [300, 344, 324])


async def test_a_fork_begins_with_what_was_said_elsewhere() -> None:
    machine, tokens = Machine(), words(70, 0)
    for turn in range(3):
        machine.ask("trunk", tokens, seed=turn, max_tokens=100)
        (_, result), *_ = await machine.answers(release=False)
        tokens = [*tokens, *result.tokens.tolist(), *words(30, turn)]
    machine.ask("fork", [*tokens[:420], 1, 2, 3])
    (request, result), *_ = await machine.answers()
    assert result.prefilled == 423 - 420 // BLOCK * BLOCK
    assert (result.tokens.tolist(), result.logprobs.tolist()) == said_alone(request)
    machine.scheduler.release("trunk")
    assert [len(rows) for rows in machine.context.texts if rows] == [BLOCK]  # of its prompt


async def test_a_late_member_holds_the_prompt_alone() -> None:
    """Not what the conversation that it is copied from has said since."""
    machine, prompt = Machine(), words(70, 0)
    machine.ask("early", prompt, max_tokens=100)
    (_, early), *_ = await machine.answers(release=False)
    machine.ask("late", prompt, max_tokens=1, seed=9)
    await machine.answers(release=False)
    machine.scheduler.release("early")
    machine.ask("fork", [*prompt, *early.tokens.tolist()])
    (request, result), *_ = await machine.answers()
    assert result.prefilled == 170 - BLOCK
    assert (result.tokens.tolist(), result.logprobs.tolist()) == said_alone(request)


async def test_a_block_that_is_alike_comes_of_alike_turns() -> None:
    machine, system = Machine(), words(600, 0)
    reads = [(await machine.one(f"{n}", [*system, n], alike=n > 1)).prefilled for n in range(4)]
    assert reads == [601, 601 - 9 * BLOCK, 601, 601 - 2 * PIECE]


async def test_borders_of_alike_pieces_depend_on_the_prompt_alone() -> None:
    """Whatever was found in memory: where others began is a border for all."""
    machine, tokens = Machine(), words(900, 0)
    for count in (900, 700, 900):
        await machine.one(f"{count}", tokens[:count] + [1] * 5, alike=True, max_tokens=1)
    sizes = [len(call) for call in machine.context.calls if len(call) > 1]
    assert sizes == [256, 256, 256, 137, 193, 137]


@pytest.mark.parametrize("count", [1, 2, 3, BLOCK, BLOCK + 1, BLOCK + 2, PIECE, PIECE + 1, PIECE + 2, 2 * PIECE + 2])
@both
async def test_prompts_of_any_length_are_read_twice_alike(count: int, alike: bool) -> None:
    machine, tokens = Machine(), words(count, 0)
    first, second = [await machine.one(name, tokens, alike=alike, seed=3) for name in "ab"]
    assert (first.tokens.tolist(), first.logprobs.tolist()) == (second.tokens.tolist(), second.logprobs.tolist())
    size = PIECE if alike else BLOCK
    assert first.prefilled - second.prefilled == len(range(size, count - 1, size)) * size


async def test_a_retired_version_keeps_nothing() -> None:
    machine = Machine()
    for version in ("v0", "v1"):
        await machine.one(version, words(200, 0), version=version)
    assert machine.kept == 2
    machine.scheduler.memory.retire("v0")
    assert machine.kept == 1
    machine.ask("late", words(200, 1), version="v1")
    machine.scheduler.step()
    machine.versions.serving("v1").retired = True
    machine.scheduler.memory.retire("v1")
    await machine.answers()
    assert machine.kept == 0 and machine.scheduler.memory.free == machine.sequences


async def test_a_failed_call_leaves_nothing_behind() -> None:
    machine = Machine()
    await machine.one("kept", words(200, 0))
    machine.ask("failing", [*words(300, 0), 1])
    machine.context.fails = True
    with pytest.raises(DecodeFailed):
        await machine.answers()
    machine.asked, machine.context.fails = [], False
    assert (await machine.one("again", [*words(300, 0), 1])).prefilled == 301 - 3 * BLOCK
    machine.scheduler.fail(RuntimeError("a bug"))
    assert machine.kept == 0 and machine.scheduler.memory.free == machine.sequences


async def test_what_is_kept_gives_way_to_conversations() -> None:
    """The one that was used longest ago goes first; the last one, where all are needed, becomes the conversation's."""
    machine = Machine(sequences=8)
    prompts = {name: words(200, seed) for seed, name in enumerate("ab")}
    for name in "aba":
        await machine.one(name, prompts[name] + [len(machine.context.calls) % VOCABULARY] * 2)
    assert machine.kept == 2 == machine.sequences // PART
    for member in range(7):
        machine.ask(f"{member}", words(20, 9))
    await machine.answers(release=False)
    assert machine.scheduler.memory.free == 1, "the one that is kept"
    assert (await machine.one("eighth", prompts["a"] + [5, 5])).prefilled == 202 - 3 * BLOCK
    for member in range(7):
        machine.scheduler.release(f"{member}")
    assert (await machine.one("other", prompts["b"] + [5, 5])).prefilled == 202


asks = st.lists(
    st.tuples(
        st.integers(0, 2),  # system prompt
        st.sampled_from([0, 1, 2, 63, 100, 300]),  # tokens after it; no prompt ends with a block
        st.integers(0, 3),  # what they are
        st.integers(0, 1),  # version
        st.booleans(),  # alike
        st.integers(1, 5),  # members
        st.booleans(),  # whether others are asked before it has ended
        st.booleans(),  # whether conversations go on being remembered
    ),
    min_size=1,
    max_size=14,
)
SYSTEMS = [words(count, 99 + count) for count in (BLOCK - 3, 3 * BLOCK, 2 * PIECE + 40)]


@kinds
@settings(max_examples=examples(20), deadline=None)
@given(asked=asks, sequences=st.sampled_from([2, 6, 60]))
def test_sharing_changes_nothing_that_is_said(kind: Kind, asked: list[Any], sequences: int) -> None:
    async def play() -> None:
        machine = Machine(kind, sequences)
        remembered: list[SampleRequest] = []
        blocks: Counter[tuple[bool, int, int, int]] = Counter()
        for number, (system, count, seed, version, alike, members, more, remember) in enumerate(asked):
            tokens = [*SYSTEMS[system], *words(count, seed)]
            for member in range(members):
                machine.ask(f"{number} {member}", tokens, version=f"v{version}", alike=alike)
            size = PIECE if alike else BLOCK
            ends = range(size, len(tokens) - 1, size)
            blocks.update({(alike, version, end, checksum(tokens[:end])): 1 for end in ends})
            if more and number + 1 < len(asked):
                continue
            remember = remember and len(remembered) + len(machine.asked) + 5 <= sequences
            answered = await machine.answers(release=not remember)
            for request, result in answered:
                said, logprobs = said_alone(request)
                assert result.tokens.tolist() == said
                np.testing.assert_array_equal(result.logprobs, np.array(logprobs, np.float32))
            if remember:
                remembered += [request for request, _ in answered]
        for request in remembered:
            machine.scheduler.release(request.conversation)
        assert machine.kept <= max(1, sequences // PART)
        for version in ("v0", "v1"):
            machine.scheduler.memory.retire(version)
        assert machine.scheduler.memory.free == sequences and not any(machine.context.texts)
        if sequences == 60:  # all blocks can be kept
            read = Counter(machine.context.read)
            by_rows = Counter(block[1:] for block in blocks)
            assert all(1 <= read[block] <= times for block, times in by_rows.items() if block[1] % PIECE == 0)

    asyncio.run(play())
