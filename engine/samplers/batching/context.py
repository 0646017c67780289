"""A backend that decodes many conversations, and scoring."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ...errors import CallFailed
from ...models.memory import scored_rows
from ...trajectories import Logprobs, Tokens
from ..options import Likeliest, join
from ..sampling import Cuts, Floats, choose, likeliest, logprobs_under

Ints = NDArray[np.int32]
Logits = NDArray[np.float32]
Handles = NDArray[np.int64]
Arrays = dict[str, NDArray[np.float32]]

SPARE = 2
"""For scores."""
BLOCK = 64
"""Tokens: fewer are computed about as fast as copied."""
PIECE = 256
"""Tokens of a prompt's block. Half as many slow large bases' products, twice as many small ones' attention."""
CACHE = 16 << 20
"""Bytes of weights assumed in a processor's cache."""


Key = tuple[int, bytes]
"""Tokens, and a hash over version, ``alike`` and these."""


class DecodeFailed(CallFailed):
    """A decode call failed; clear its sequences to undo its writes."""


class Context:
    """Cached sequences of up to ``length`` tokens. Not thread-safe."""

    sequences: int
    length: int
    vocabulary: int
    weights: int
    """Bytes that every call reads."""
    mixes: bool = True
    """A call with one token per sequence may have several adapters."""
    joins: bool = True
    """A call may hold several tokens of several sequences. Implies ``mixes``."""
    held: Ints
    """In memory, (sequences,)."""
    rows: int = 128
    """Most in one call."""

    @property
    def room(self) -> int:
        """Sequences that have memory."""
        return self.sequences

    @property
    def steps(self) -> int:
        """Tokens before others come: a large base is read from main memory for each."""
        return 1 if self.weights > CACHE else 4

    @property
    def enough(self) -> int:
        """Running turns beyond which calls would hardly be faster."""
        return 64 if self.weights > CACHE else 128

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        """Run one token for each sequence, or several of one (of several if it ``joins``).

        Arguments are (n,), in the order of sequences. Returns float32 (outputs.sum(), V), valid until the next call.
        Last bits depend only on the row's sequence. Raises ``DecodeFailed``; the sequences' state is then unknown.
        """
        raise NotImplementedError

    def cut(self, sequence: int, length: int) -> None:
        """Forget a sequence from ``length`` on; 0 empties it, even after a failed call."""
        self.held[sequence] = min(self.held[sequence], length)

    def copy(self, source: int, targets: list[int], length: int) -> None:
        """``targets`` must be empty."""
        raise NotImplementedError

    def grow(self, more: int, needed: bool) -> None:
        """Take memory for about ``more`` sequences; invalidates logits.

        Raises ``MemoryError`` only if they are ``needed``.
        """

    def use(self, adapters: Handles, alike: bool = True) -> None:
        """Set the next calls' adapters: (n,), one per row; (1,), one for all; (0,), none.

        All are equal unless the context ``mixes``. Without ``alike`` last bits may depend on other rows, for speed.
        """
        raise NotImplementedError

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        """Names as in state files; returns a handle. Raises ``AdapterError`` if it does not fit."""
        raise NotImplementedError

    def free_adapter(self, adapter: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Free everything; free adapters before."""

    def choose(self, logits: Logits, temperatures: Floats, noise: Floats, cuts: Cuts | None) -> tuple[Tokens, Logprobs]:
        """As ``sampling.choose`` for (n, V); keeps the last ``decode``'s logits."""
        return choose(logits, temperatures, noise, cuts)


def score(
    context: Context, adapter: int, tokens: Tokens, start: int, temperature: float, count: int = 0, alike: bool = True
) -> tuple[Logprobs, Likeliest, Logits]:
    """Log-probabilities of ``tokens[start:]``, float32 (T-start,), with the ``count`` likeliest tokens at each place.

    Also the logits (V,) after all tokens. Raises ``CallFailed``, and ``ValueError`` unless 1 <= start <= T and all
    tokens fit.
    """
    if not 1 <= start <= len(tokens):
        raise ValueError(f"start is {start}; it must lie between 1 and the {len(tokens)} tokens.")
    if len(tokens) > context.length or tokens.min() < 0 or tokens.max() >= context.vocabulary:
        raise ValueError("The tokens do not fit the sampler's context or vocabulary.")
    context.use(np.array([adapter]), alike)
    logprobs, pieces, step = [np.empty(0, np.float32)], list[Likeliest](), scored_rows(context.vocabulary)
    try:
        for begin in range(0, len(tokens), step):
            given = tokens[begin : begin + step]
            positions = np.arange(begin, begin + len(given), dtype=np.int32)
            outputs = positions >= min(start - 1, len(tokens) - 1)
            logits = context.decode(given, positions, np.zeros_like(positions), outputs.astype(np.int8))
            scored = positions[outputs]
            targets = tokens[scored[scored < len(tokens) - 1] + 1]
            heats = np.full(len(targets), temperature)
            piece, totals = likeliest(logits[: len(targets)], heats, count)
            logprobs.append(logprobs_under(logits[: len(targets)], heats, totals, targets))
            pieces.append(piece)
        last = logits[-1].copy()
    finally:
        context.cut(0, 0)
    return np.concatenate(logprobs), join(pieces, count), last


def keys_of(version: str, alike: bool, tokens: Tokens) -> list[Key]:
    """Keys of shareable beginnings, shortest first; the last is the whole.

    Blocks leave two tokens or more for the logits.
    """
    digest, size = blake2b(f"{version}\0{alike}".encode(), digest_size=16), PIECE if alike else BLOCK
    keys, begin = [], 0
    for end in (*range(size, len(tokens) - 1, size), len(tokens)):
        digest.update(tokens[begin:end].tobytes())
        keys.append((end, digest.digest()))
        begin = end
    return keys
