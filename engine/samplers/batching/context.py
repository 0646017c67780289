"""A context that decodes many conversations: its interface, slots of sequences, shared prefixes, prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ...errors import CallFailed
from ...trajectories import Logprobs, Tokens
from ..sampling import Cuts, Floats

# The interface of a backend: cached sequences, decoded in rows under adapters. Not thread-safe.

Ints = NDArray[np.int32]
Logits = NDArray[np.float32]
Handles = NDArray[np.int64]
Arrays = dict[str, NDArray[np.float32]]


class DecodeFailed(CallFailed):
    """A decode call failed; clear its sequences to undo what it wrote."""


class Context(Protocol):
    """``sequences`` conversations of up to ``length`` tokens each."""

    sequences: int
    length: int
    vocabulary: int
    weights: int
    """Bytes that every call reads."""
    mixes: bool
    """True if a call with one token for each of several sequences may hold rows of several adapters. The last bits
    are those of separate calls."""
    joins: bool
    """True if a call may hold several tokens of several sequences, without neighbours, with the last bits of
    separate calls. Implies ``mixes``."""
    held: Ints
    """Tokens in the memory of each sequence, (sequences,)."""

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        """Run one call: one token of each of several sequences, or several tokens of one (of several if it ``joins``).

        All arguments are (n,); the tokens of a sequence are neighbours. Returns float32 (outputs.sum(), V), valid
        until the next call. The last bits of a row depend only on its own sequence. Raises ``DecodeFailed``; the state
        of the call's sequences is then unknown.
        """

    def cut(self, sequence: int, length: int) -> None:
        """Forget a sequence from position ``length`` on; 0 empties it, also after a failed call."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Give ``target``, which is empty, the first ``length`` tokens of ``source``."""

    def grow(self, sequences: int, needed: bool) -> bool:
        """Allocate memory for the sequences before this one; call it only when no logits are needed any more.

        False if memory is short. If the sequences are ``needed``, it tries anyway and may raise ``MemoryError``.
        """

    def use(self, adapters: Handles, alike: bool = True) -> None:
        """Set the adapters of the following calls: (n,), one for each row; (1,), one for all; (0,), none.

        All are the same unless the context ``mixes``. Without ``alike`` a row's last bits may depend on other rows,
        for speed.
        """

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        """Add an adapter (named as in state files) and return its handle. Raises ``AdapterError`` if it does not
        fit the base.
        """

    def free_adapter(self, adapter: int) -> None:
        """Free an adapter's memory."""

    def close(self) -> None:
        """Free everything. Adapters must have been freed before."""


@runtime_checkable
class DrawingContext(Protocol):
    """A context that also draws tokens: as ``sampling.choose``, but with other last bits."""

    def draw(
        self,
        tokens: Ints,
        positions: Ints,
        sequences: Ints,
        temperatures: Floats,
        noise: Floats,
        cuts: Cuts | None,
    ) -> tuple[Tokens, Logprobs]:
        """``Context.decode`` for one token of each of several sequences, then ``choose``; all are (n,)."""

    def choose(self, logits: Logits, temperatures: Floats, noise: Floats, cuts: Cuts | None) -> tuple[Tokens, Logprobs]:
        """One token for each row of logits (n, V); does not change those of the last ``decode``."""


# Assigns sequence ids to conversations, and rows to decode calls. Pure.
#
# llama.cpp computes a micro-batch of one sequence with another kernel, with other last bits. So a call must hold at
# least two neighbouring ids: ids are assigned in aligned pairs of one version, and a single id gets its twin as a
# filler row.

ASIDE = ""
BRIDGE = 1
"""Holes of up to this many ids are filled unless the ``pace`` has a larger number."""


class Slots:
    """The sequence ids 0 … count-1, each free or held under a version; later up to ``most``. Both are even."""

    def __init__(self, count: int, most: int = 0) -> None:
        self._holder: list[str | None] = [None] * count
        self.free = count
        self.most = max(count, most)

    @property
    def count(self) -> int:
        return len(self._holder)

    def widen(self, count: int) -> None:
        more = count - self.count
        self._holder += [None] * more
        self.free += more

    def take(self, version: str, count: int = 1) -> list[int]:
        """Free ids: the shortest sufficient run of free pairs, else the longest runs.

        A single id is preferably the twin of one of the same version; twins of other versions come last. Raises
        ``LookupError`` when fewer are free.
        """
        if count > self.free:
            raise LookupError(f"{count} sequences are wanted, {self.free} are free.")
        taken: list[int] = []
        while len(taken) < count:
            run = self._best_run(version, count - len(taken))
            for slot in run[: count - len(taken)]:
                self._holder[slot] = version
                taken.append(slot)
        self.free -= count
        return taken

    def set_aside(self, slot: int) -> int:
        above = [other for other in range(slot + 1, len(self._holder)) if self._holder[other] is None]
        place = above[-1] if above else slot
        self._holder[slot] = None
        self._holder[place] = ASIDE
        return place

    def give_back(self, slot: int) -> None:
        self._holder[slot] = None
        self.free += 1

    def _best_run(self, version: str, wanted: int) -> list[int]:
        runs: list[list[int]] = []
        twins: list[int] = []
        lone: list[int] = []
        for slot in range(0, len(self._holder), 2):
            one, other = self._holder[slot : slot + 2]
            if one is None and other is None:
                if runs and runs[-1][-1] == slot - 1:
                    runs[-1] += [slot, slot + 1]
                else:
                    runs.append([slot, slot + 1])
            elif one is None or other is None:
                (twins if version in (one, other) else lone).append(slot if one is None else slot + 1)
        if twins and (wanted == 1 or not runs):
            return twins[:1]
        fitting = [run for run in runs if len(run) >= wanted]
        if fitting:
            return min(fitting, key=len)
        return max(runs, key=len) if runs else lone[:1]


def rows_with_fillers(active: NDArray[np.int32], bridge: int = BRIDGE) -> NDArray[np.int32]:
    """Sorted ids for a decode call: the active ones (sorted, unique), fillers in small holes, a twin for single ids."""
    holes = np.diff(active) - 1
    small = np.flatnonzero((holes > 0) & (holes <= bridge))
    fillers = [np.arange(active[i] + 1, active[i + 1], dtype=np.int32) for i in small]
    rows = np.union1d(active, np.concatenate(fillers)) if fillers else active
    steps = np.diff(rows, prepend=-2, append=rows[-1:] + 2)
    lone = rows[(steps[:-1] > 1) & (steps[1:] > 1)]
    return np.union1d(rows, lone ^ 1) if len(lone) else rows


# The beginnings of prompts as a trie of token blocks. Pure.
#
# All tokens up to its end identify a block, so its keys and values are the same for every prompt. The cache with
# least-recently-used eviction is RadixAttention's (SGLang, arXiv 2312.07104).

BLOCK = 64
"""Tokens of a block: fewer are computed about as fast as they are copied."""
PIECE = 256
"""Tokens of a block with reproducible last bits. With half as many, large bases would multiply more slowly; with
twice as many, small ones would attend more slowly."""

Family = tuple[str, bool]
"""Version, and the ``alike`` flag; families share nothing."""


def blocks_of(tokens: Tokens, alike: bool) -> tuple[bytes, ...]:
    """The whole blocks at the beginning of ``tokens``, int32 (T,); at least two tokens are left for the logits."""
    size = PIECE if alike else BLOCK
    return tuple(tokens[begin : begin + size].tobytes() for begin in range(0, len(tokens) - 1 - size, size))


def common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """The number of tokens in the common beginning, in whole blocks."""
    tokens = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        tokens += _tokens(a)
    return tokens


class _Node:
    def __init__(self, above: _Node | None = None, block: bytes = b"") -> None:
        self.above, self.block = above, block
        self.tokens: int = above.tokens + _tokens(block) if above else 0
        self.below: dict[bytes, _Node] = {}
        self.holders: dict[int, None] = {}


class Prefixes:
    """All blocks that some sequence holds."""

    def __init__(self) -> None:
        self._roots: dict[Family, _Node] = {}
        self._ends: dict[int, _Node] = {}

    def find(self, family: Family, blocks: Sequence[bytes]) -> tuple[int | None, int]:
        """The sequence with the longest part of ``blocks``, and its tokens; (None, 0) without any."""
        node = self._roots.get(family)
        if node is None:
            return None, 0
        for block in blocks:
            if block not in node.below:
                break
            node = node.below[block]
        return (next(iter(node.holders)), node.tokens) if node.tokens else (None, 0)

    def hold(self, sequence: int, family: Family, blocks: Sequence[bytes]) -> None:
        if not blocks:
            return
        node = self._roots.setdefault(family, _Node())
        for block in blocks:
            if block not in node.below:
                node.below[block] = _Node(node, block)
            node = node.below[block]
            node.holders[sequence] = None
        self._ends[sequence] = node

    def join(self, sequence: int, source: int) -> None:
        node = self._ends.get(source)
        if node is not None:
            self._ends[sequence] = node
        while node is not None and node.above is not None:
            node.holders[sequence] = None
            node = node.above

    def cut(self, sequence: int, tokens: int) -> None:
        node = self._ends.pop(sequence, None)
        while node is not None and node.above is not None and node.tokens > tokens:
            del node.holders[sequence]
            if not node.holders:
                del node.above.below[node.block]
            node = node.above
        if node is not None and node.above is not None:
            self._ends[sequence] = node
        elif node is not None and not node.below:
            self._roots = {family: root for family, root in self._roots.items() if root is not node}

    def tokens(self, sequence: int) -> int:
        return self._ends[sequence].tokens if sequence in self._ends else 0

    def alone(self, sequence: int) -> bool:
        return sequence in self._ends and len(self._ends[sequence].holders) == 1


def _tokens(block: bytes) -> int:
    return len(block) // 4  # int32


# Computed first prompts that some sequence still holds: later episodes of a group copy them.

Key = tuple[str, bool, bytes]
"""Version, the ``alike`` flag, and tokens."""


@dataclass(eq=False)
class Prompt:
    """A computed prompt, for as long as a sequence holds it."""

    key: Key
    logits: Logits
    """float32 (V,): those for the first token, a copy."""
    holders: set[int] = field(default_factory=set)
    """Sequences that begin with it."""

    @property
    def tokens(self) -> int:
        return len(self.key[2]) // 4  # int32
