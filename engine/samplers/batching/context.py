"""The interface of a backend that decodes many conversations, and what scoring needs of it."""

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
"""The first sequences of a context are for scores; conversations have the others."""
BLOCK = 64
"""Tokens of a block: fewer are computed about as fast as they are copied."""
PIECE = 256
"""Tokens of a block with reproducible last bits, which is how prompts are read. With half as many, large bases would
multiply more slowly; with twice as many, small ones would attend more slowly."""
CACHE = 16 << 20
"""Bytes of weights that are assumed to stay in a processor's cache."""


Key = tuple[int, bytes]
"""A number of tokens, and a hash over version, ``alike`` flag and these tokens."""


class DecodeFailed(CallFailed):
    """A decode call failed; clear its sequences to undo what it wrote."""


class Context:
    """Cached sequences of up to ``length`` tokens each, decoded in rows under adapters. Not thread-safe."""

    sequences: int
    length: int
    vocabulary: int
    weights: int
    """Bytes that every call reads."""
    mixes: bool = True
    """True if a call with one token for each of several sequences may hold rows of several adapters."""
    joins: bool = True
    """True if a call may hold several tokens of several sequences. Implies ``mixes``."""
    held: Ints
    """Tokens in the memory of each sequence, (sequences,)."""
    rows: int = 128
    """Most conversations that are decoded in one call."""

    @property
    def room(self) -> int:
        """Sequences that have memory."""
        return self.sequences

    @property
    def steps(self) -> int:
        """Tokens of the same conversations before others come: a large base is read from main memory for each."""
        return 1 if self.weights > CACHE else 4

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        """Run one call: one token of each of several sequences, or several tokens of one (of several if it ``joins``).

        All arguments are (n,), in the order of sequences. Returns float32 (outputs.sum(), V), valid until the next
        call. The last bits of a row depend only on its own sequence. Raises ``DecodeFailed``; the state of the call's
        sequences is then unknown.
        """
        raise NotImplementedError

    def cut(self, sequence: int, length: int) -> None:
        """Forget a sequence from position ``length`` on; 0 empties it, also after a failed call."""
        self.held[sequence] = min(self.held[sequence], length)

    def copy(self, source: int, targets: list[int], length: int) -> None:
        """Give ``targets``, which are empty, the first ``length`` tokens of ``source``."""
        raise NotImplementedError

    def grow(self, more: int, needed: bool) -> None:
        """Take memory for about so many further sequences; call it only when no logits are needed any more.

        Does nothing if memory is short, unless they are ``needed``: then it may raise ``MemoryError``.
        """

    def use(self, adapters: Handles, alike: bool = True) -> None:
        """Set the adapters of the following calls: (n,), one for each row; (1,), one for all; (0,), none.

        All are the same unless the context ``mixes``. Without ``alike`` a row's last bits may depend on other rows,
        for speed.
        """
        raise NotImplementedError

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        """Add an adapter (named as in state files) and return its handle. Raises ``AdapterError`` if it does not
        fit the base.
        """
        raise NotImplementedError

    def free_adapter(self, adapter: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Free everything. Adapters must have been freed before."""

    def choose(self, logits: Logits, temperatures: Floats, noise: Floats, cuts: Cuts | None) -> tuple[Tokens, Logprobs]:
        """One token for each row of logits (n, V), as ``sampling.choose``; leaves those of the last ``decode``."""
        return choose(logits, temperatures, noise, cuts)

    def draw(
        self,
        tokens: Ints,
        positions: Ints,
        sequences: Ints,
        temperatures: Floats,
        noise: Floats,
        cuts: Cuts | None,
    ) -> tuple[Tokens, Logprobs]:
        """``decode`` for one token of each of several sequences, then ``choose``."""
        outputs = np.ones(len(tokens), np.int8)
        return self.choose(self.decode(tokens, positions, sequences, outputs), temperatures, noise, cuts)


def score(
    context: Context, adapter: int, tokens: Tokens, start: int, temperature: float, count: int = 0, alike: bool = True
) -> tuple[Logprobs, Likeliest, Logits]:
    """Log-probabilities of ``tokens[start:]``, float32 (T-start,), with the ``count`` likeliest tokens at each place.

    Also returns the logits (V,) after all tokens. They are computed in the first sequence, in pieces, so that logits
    stay few. Raises ``CallFailed``, and ``ValueError`` unless 1 <= start <= T and all tokens fit.
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
    """Of each beginning of ``tokens`` that may be shared, the shortest first; the last is the whole.

    Blocks leave at least two tokens for the logits.
    """
    digest, size = blake2b(f"{version}\0{alike}".encode(), digest_size=16), PIECE if alike else BLOCK
    keys, begin = [], 0
    for end in (*range(size, len(tokens) - 1, size), len(tokens)):
        digest.update(tokens[begin:end].tobytes())
        keys.append((end, digest.digest()))
        begin = end
    return keys
