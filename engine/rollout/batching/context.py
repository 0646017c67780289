"""What a backend implements for the batch scheduler: sequences with memory, decoded in rows under adapters.

Knows sequences by number and adapters by handle; nothing of conversations, versions or sampling. Not safe for threads.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ...errors import CallFailed
from ...trajectories import Logprobs, Tokens
from ..sampling import Cuts, Floats

Ints = NDArray[np.int32]
Logits = NDArray[np.float32]
Handles = NDArray[np.int64]
Arrays = dict[str, NDArray[np.float32]]


class DecodeFailed(CallFailed):
    """A decode call failed; what it wrote is undone by clearing its sequences."""


class Context(Protocol):
    """``sequences`` conversations of up to ``length`` tokens each."""

    sequences: int
    length: int
    vocabulary: int
    weights: int
    """Bytes that every call reads."""
    mixes: bool
    """Whether a call of one token of each of several sequences may hold rows of several adapters, with the last bits of
    calls of their own."""
    joins: bool
    """Whether a call may hold several tokens of several sequences, and need not hold neighbours, with the last bits of
    calls of their own; it mixes then."""
    held: Ints
    """How many tokens the memory of each sequence holds, (sequences,)."""

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        """Run one call: one token of each of several sequences, or several tokens of one (of several if it ``joins``).

        All arguments are (n,); the tokens of a sequence are neighbours. Returns float32 (outputs.sum(), V), valid until
        the next call. The last bits of a row depend on its own sequence alone, as long as calls are made as the batch
        scheduler makes them. Raises ``DecodeFailed``; the sequences of the call are then in an unknown state.
        """

    def cut(self, sequence: int, length: int) -> None:
        """Forget what a sequence holds from position ``length`` on; 0 empties it, also after a failed call."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Give ``target``, which is empty, the first ``length`` tokens of ``source``."""

    def grow(self, sequences: int, needed: bool) -> bool:
        """Have memory for the sequences before this one, and for those for scores; what they hold stays.

        Called only between two calls of which no logits are wanted any more. Returns whether it was done: not where the
        machine is short of memory, unless they are ``needed``; then it raises ``MemoryError`` if there is none.
        """

    def use(self, adapters: Handles, alike: bool = True) -> None:
        """Set the adapters of the following calls: (n,), one for each row; (1,), one for all; (0,), none.

        All are the same unless the context ``mixes``. Without ``alike`` a row's last bits may depend on the others,
        where that is faster.
        """

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        """Take an adapter in (named as in state files) and return its handle. Raises ``AdapterError`` if it does not
        fit the base."""

    def free_adapter(self, adapter: int) -> None:
        """Give an adapter's memory back."""

    def close(self) -> None:
        """Free everything; the object cannot be used afterwards. Adapters must have been freed before."""


@runtime_checkable
class DrawingContext(Protocol):
    """A context that draws tokens itself, too: as ``sampling.choose``, but for the last bits."""

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
        """One token for each row of logits (n, V); leaves those of the last ``decode`` as they are."""
