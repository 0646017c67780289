"""The scheduler on contexts that compute nothing: shares by weight, and what sequences share is read once."""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from marlaas.engine.fairness.line import rollout_cost
from marlaas.engine.samplers.batching.context import BLOCK, PIECE, SPARE, Context, DecodeFailed, Handles, Ints, Logits
from marlaas.engine.samplers.batching.memory import PART
from marlaas.engine.samplers.batching.requests import Answer, Answers, Version, Versions
from marlaas.engine.samplers.batching.scheduler import BatchScheduler
from marlaas.engine.samplers.protocol import SampleRequest, SampleResult
from marlaas.engine.samplers.sampling import choose, uniforms

from ...examples import examples
from ...seldom import seldom

Kind = Literal["alone", "mixes", "joins"]
"""How a context takes rows: of one adapter, of several in a call of one token each, or any."""
kinds = pytest.mark.parametrize("kind", ["alone", "mixes", "joins"])
both = pytest.mark.parametrize("alike", [False, True])
VOCABULARY = 6


class Flat(Context):
    """Without a model: all tokens are equally likely. It notes the adapter of each row of its calls."""

    vocabulary, weights = VOCABULARY, 0

    def __init__(self, kind: Kind, sequences: int = 16, length: int = 64, rows: int = 4) -> None:
        self.sequences, self.length, self.rows = sequences + SPARE, length, rows
        self.mixes, self.joins = kind != "alone", kind == "joins"
        self.held: Ints = np.zeros(self.sequences, np.int32)
        self.calls: list[list[int]] = []
        self.adapters: Handles = np.empty(0, np.int64)

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        assert self.mixes or len(set(self.adapters.tolist())) == 1
        self.held[sequences] = positions + 1
        self.calls.append(np.broadcast_to(self.adapters, len(tokens)).tolist())
        return np.zeros((int(outputs.sum()), VOCABULARY), np.float32)

    def copy(self, source: int, targets: list[int], length: int) -> None:
        self.held[targets] = length

    def use(self, adapters: Handles, alike: bool = True) -> None:
        self.adapters = adapters


class Noting(Flat):
    """Its logits follow from the adapter and all tokens of the sequence. It notes what it reads: (adapter, number of
    tokens up to the row, their checksum) for each row of calls of several tokens of a sequence."""

    def __init__(self, kind: Kind = "joins", sequences: int = 16, length: int = 1024) -> None:
        super().__init__(kind, sequences, length)
        self.texts: list[list[int]] = [[] for _ in range(self.sequences)]
        """Checksums of the tokens up to each row, by sequence."""
        self.read: list[tuple[int, int, int]] = []
        self.fails = False

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        if self.fails:
            raise DecodeFailed("It failed.")
        self.calls.append(sequences.tolist())
        adapters = np.broadcast_to(self.adapters, len(tokens)).tolist()
        several = len(set(sequences.tolist())) < len(tokens)
        assert self.joins or not several or len(set(sequences.tolist())) == 1
        assert np.bincount(sequences).max() <= PIECE + 1  # what attention takes grows with the length alone
        logits = []
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
                logits.append(logits_of(adapter, rows[-1]))
        return np.array(logits, np.float32).reshape(-1, VOCABULARY)

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


def sampled_alone(request: SampleRequest) -> tuple[list[int], list[float]]:
    """The tokens and log-probabilities of a turn, without any sampler."""
    tokens, logprobs = request.tokens.tolist(), []
    start = len(tokens)
    for noise in uniforms(request.seed, start, start + request.max_tokens):
        logits = logits_of(int(request.version[1:]), checksum(tokens))[None]
        token, logprob = choose(logits, np.ones(1), np.array([noise]))
        tokens.append(int(token[0]))
        logprobs.append(float(logprob[0]))
    return tokens[start:], logprobs


class Known:
    """``Versions`` that are all there: v0, v1 and so on, whose handles are their numbers."""

    def __init__(self) -> None:
        self._versions: dict[str, Version] = {}

    def serving(self, name: str) -> Version:
        return self._versions.setdefault(name, Version(name, "", int(name[1:])))

    def leave(self, version: Version) -> None:
        version.users -= 1


Ended = list[tuple[SampleRequest, SampleResult]]


class Machine:
    """A scheduler, and the turns that wait for their answers."""

    def __init__(self, context: Flat) -> None:
        self.scheduler = BatchScheduler(context, cast(Versions, Known()), context.length)
        self.asked: list[tuple[SampleRequest, Answer[SampleResult]]] = []
        self._answers, self._seeds = Answers(), itertools.count()

    def ask(self, name: str, tokens: Sequence[int], **changes: Any) -> None:
        answer: Answer[SampleResult] = Answer(self._answers)
        usual: dict[str, Any] = {"version": "v0", "max_tokens": 3, "seed": next(self._seeds), "alike": False}
        request = SampleRequest(name, tokens=np.array(tokens, np.int32), temperature=1.0, stop=(), **usual | changes)
        self.scheduler.submit(request, answer)
        self.asked.append((request, answer))

    async def step(self, release: bool = True) -> Ended:
        """Returns the turns that have ended, whose conversations are then released."""
        self.scheduler.step()
        self._answers.flush()
        await asyncio.sleep(0)
        ended = [(request, answer.future.result()) for request, answer in self.asked if answer.future.done()]
        self.asked = [(request, answer) for request, answer in self.asked if not answer.future.done()]
        for request, _ in ended if release else ():
            self.scheduler.release(request.conversation)
        return ended

    async def answers(self, release: bool = True) -> Ended:
        """Of all that were asked, in the order of their ends."""
        ended: Ended = []
        while self.asked:
            ended += await self.step(release)
        assert not self.scheduler.busy
        return ended

    async def answer(self, name: str, tokens: Sequence[int], release: bool = True, **changes: Any) -> SampleResult:
        self.ask(name, tokens, **changes)
        return (await self.answers(release))[0][1]


def words(count: int, seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()
    return tokens


async def costs(kind: Kind, asking: dict[str, tuple[float, int, int, int]], steps: int, since: int) -> Counter[str]:
    """What accounts (weight, prompt's length, number of turns, first step) have had from the step ``since`` on."""
    machine, cost, numbers = Machine(Flat(kind)), Counter[str](), itertools.count()

    def ask(account: str) -> None:
        number, (weight, length, _, _) = next(numbers), asking[account]
        options: dict[str, Any] = {"version": f"v{number % 3}", "account": account, "weight": weight, "alike": True}
        machine.ask(f"{number}", [n % 4 for n in range(length)], max_tokens=8, **options)

    for step in range(steps):
        for account, (_, _, turns, begin) in asking.items():
            for _ in range(turns if begin == step else 0):
                ask(account)
        for request, result in await machine.step():
            if step >= since:
                cost[request.account] += rollout_cost(result.prefilled, len(result.tokens))
            ask(request.account)
    return cost


@pytest.mark.parametrize(
    ("kind", "weight", "prompts"), [("joins", 1.0, (2, 40)), ("alone", 3.0, (5, 5)), seldom("mixes", 3.0, (5, 5))]
)
async def test_accounts_that_always_ask_have_shares_by_weight(
    kind: Kind, weight: float, prompts: tuple[int, int]
) -> None:
    """More turns wait than sequences hold, and more run than a call takes."""
    asking = {"many": (weight, prompts[0], 30, 0), "few": (1.0, prompts[1], 20, 0)}
    cost = await costs(kind, asking, steps=300, since=101)
    assert cost["many"] / cost["few"] == pytest.approx(weight, rel=0.1)


async def test_an_account_that_was_away_has_saved_nothing_up() -> None:
    cost = await costs("mixes", {"busy": (1.0, 5, 30, 0), "late": (1.0, 5, 30, 200)}, steps=400, since=200)
    assert cost["late"] / cost["busy"] == pytest.approx(1, rel=0.15)


async def test_versions_share_a_call_where_the_context_can() -> None:
    """Decoded tokens where it mixes them; prompts, too, where it joins them."""
    calls = {}
    several: tuple[Kind, ...] = ("joins", "mixes")
    for kind in several:
        context = Flat(kind, rows=8)
        machine = Machine(context)
        for number in range(8):
            machine.ask(f"{number}", [1] * 5, account="abcd"[number % 4], version=f"v{number}", max_tokens=9)
        await machine.step()
        calls[kind] = context.calls
    every = list(range(8))
    assert [sorted(set(call)) for call in calls["joins"]] == [every] * 5
    assert calls["mixes"] == [[number] * 5 for number in every] + [every] * 4


@pytest.mark.parametrize(
    ("kind", "alike", "together"),
    [("alone", False, True), ("mixes", True, False), ("joins", False, False), ("joins", True, True)],
)
async def test_a_system_prompt_is_read_once_per_version(kind: Kind, alike: bool, together: bool) -> None:
    """Four groups of three on two versions, at once and one after the other."""
    context, size, system = Noting(kind, length=4096), 2000, words(2000, 0)
    machine, read = Machine(context), Counter[str]()
    for group in range(4):
        for version in ("v0", "v1"):
            for member in range(3):
                tokens = system + words(50, 1 + group)
                machine.ask(f"{version} {group} {member}", tokens, version=version, alike=alike)
        if group == 3 or not together:
            for request, result in await machine.answers():
                read[request.version] += result.prefilled
    shared = size // (PIECE if alike else BLOCK) * (PIECE if alike else BLOCK)
    assert read == {"v0": shared + 4 * (size - shared + 50), "v1": shared + 4 * (size - shared + 50)}
    assert machine.scheduler.stats().prefilled_tokens == read.total() == len(context.read)


async def test_a_fork_begins_with_what_was_said_elsewhere() -> None:
    context = Noting()
    machine, tokens = Machine(context), words(70, 0)
    for turn in range(3):
        result = await machine.answer("trunk", tokens, release=False, seed=turn, max_tokens=100)
        tokens = [*tokens, *result.tokens.tolist(), *words(30, turn)]
    machine.ask("fork", [*tokens[:420], 1, 2, 3])
    (request, result), *_ = await machine.answers()
    assert result.prefilled == 423 - 420 // BLOCK * BLOCK
    assert (result.tokens.tolist(), result.logprobs.tolist()) == sampled_alone(request)
    machine.scheduler.release("trunk")
    assert [len(rows) for rows in context.texts if rows] == [BLOCK]  # of its prompt


async def test_a_failed_call_leaves_nothing_behind() -> None:
    context = Noting()
    machine = Machine(context)
    await machine.answer("before", words(200, 0))
    context.fails = True
    with pytest.raises(DecodeFailed):
        await machine.answer("failing", [*words(300, 0), 1])
    machine.asked, context.fails = [], False
    assert (await machine.answer("again", [*words(300, 0), 1])).prefilled == 301 - 3 * BLOCK
    machine.scheduler.fail(RuntimeError("a bug"))
    assert not any(context.texts) and machine.scheduler.memory.free == 16


async def test_what_ended_turns_hold_gives_way_to_conversations() -> None:
    """The one that was used longest ago goes first; the last one, where all are needed, becomes the conversation's."""
    context = Noting(sequences=8)
    machine, prompts = Machine(context), {name: words(200, seed) for seed, name in enumerate("ab")}
    for name in "aba":
        await machine.answer(name, prompts[name] + [len(context.calls) % VOCABULARY] * 2)
    assert sum(map(bool, context.texts)) == 2 == 8 // PART
    for member in range(7):
        machine.ask(f"{member}", words(20, 9))
    await machine.answers(release=False)
    assert machine.scheduler.memory.free == 1, "the one that holds a prompt"
    assert (await machine.answer("eighth", prompts["a"] + [5, 5])).prefilled == 202 - 3 * BLOCK
    for member in range(7):
        machine.scheduler.release(f"{member}")
    assert (await machine.answer("other", prompts["b"] + [5, 5])).prefilled == 202


asks = st.lists(
    st.tuples(
        st.integers(0, 2),  # system prompt
        st.sampled_from([0, 1, 2, 63, 100, 300]),  # tokens after it; no prompt ends with a block
        st.integers(0, 3),  # what they are
        st.integers(0, 1),  # version
        st.booleans(),  # alike
        st.integers(1, 5),  # members
        st.booleans(),  # whether others are asked before it has ended
        st.booleans(),  # whether conversations stay
    ),
    min_size=1,
    max_size=14,
)
SYSTEMS = [words(count, 99 + count) for count in (BLOCK - 3, 3 * BLOCK, 2 * PIECE + 40)]


@kinds
@settings(max_examples=examples(8), deadline=None)
@given(asked=asks, sequences=st.sampled_from([2, 6, 60]))
def test_sharing_changes_nothing_that_is_sampled(kind: Kind, asked: list[Any], sequences: int) -> None:
    async def run() -> None:
        context = Noting(kind, sequences)
        machine, staying = Machine(context), list[str]()
        blocks: Counter[tuple[bool, int, int, int]] = Counter()
        for number, (system, count, seed, version, alike, members, more, stays) in enumerate(asked):
            tokens = [*SYSTEMS[system], *words(count, seed)]
            for member in range(members):
                machine.ask(f"{number} {member}", tokens, version=f"v{version}", alike=alike)
            size = PIECE if alike else BLOCK
            ends = range(size, len(tokens) - 1, size)
            blocks.update({(alike, version, end, checksum(tokens[:end])): 1 for end in ends})
            if more and number + 1 < len(asked):
                continue
            stays = stays and len(staying) + len(machine.asked) + 5 <= sequences
            answered = await machine.answers(release=not stays)
            for request, result in answered:
                sampled, logprobs = sampled_alone(request)
                assert result.tokens.tolist() == sampled
                np.testing.assert_array_equal(result.logprobs, np.array(logprobs, np.float32))
            staying += [request.conversation for request, _ in answered if stays]
        for conversation in staying:
            machine.scheduler.release(conversation)
        memory = machine.scheduler.memory
        assert sum(map(bool, context.texts)) <= max(1, sequences // PART)
        for version in ("v0", "v1"):
            memory.retire(version)
        assert memory.free == sequences and not any(context.texts)
        if sequences == 60:  # all blocks can stay in memory
            read = Counter(context.read)
            by_rows = Counter(block[1:] for block in blocks)
            assert all(1 <= read[block] <= times for block, times in by_rows.items() if block[1] % PIECE == 0)

    asyncio.run(run())
