"""What prompts begin with, as a trie of blocks of tokens, and which sequences hold each block. Pure.

Prompts of one version often share their first tokens: a system prompt, the descriptions of tools, examples. A block is
known by all tokens up to its end, so keys and values computed for one prompt are those of every prompt that has it.
That keys and values are kept so, and given up by least recent use, is RadixAttention's (SGLang, arXiv 2312.07104).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...trajectories import Tokens

BLOCK = 64
"""Tokens of a block: fewer are computed about as fast as they are copied."""
PIECE = 256
"""Tokens of a block whose last bits must be the same whoever computed it: as many as a call computes (``prefill``).
With half as many large bases would multiply more slowly, with twice as many small ones would attend more slowly."""

Family = tuple[str, bool]
"""Version, and whether the last bits are ``alike``; families share nothing."""


def blocks_of(tokens: Tokens, alike: bool) -> tuple[bytes, ...]:
    """The whole blocks that ``tokens``, int32 (T,), begin with; two tokens at least are left, which are computed for
    the logits."""
    size = PIECE if alike else BLOCK
    return tuple(tokens[begin : begin + size].tobytes() for begin in range(0, len(tokens) - 1 - size, size))


def common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """How many tokens both begin with, in whole blocks."""
    tokens = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        tokens += _tokens(a)
    return tokens


class _Node:
    """A block, after those above it; the root is none."""

    def __init__(self, above: _Node | None = None, block: bytes = b"") -> None:
        self.above, self.block = above, block
        self.tokens: int = above.tokens + _tokens(block) if above else 0
        """Up to its end."""
        self.below: dict[bytes, _Node] = {}
        self.holders: dict[int, None] = {}


class Prefixes:
    """All blocks that some sequence holds."""

    def __init__(self) -> None:
        self._roots: dict[Family, _Node] = {}
        self._ends: dict[int, _Node] = {}
        """The last block of each sequence that holds any."""

    def find(self, family: Family, blocks: Sequence[bytes]) -> tuple[int | None, int]:
        """A sequence that holds most of ``blocks``, and how many tokens these have; (None, 0) where none holds any."""
        node = self._roots.get(family)
        if node is None:
            return None, 0
        for block in blocks:
            if block not in node.below:
                break
            node = node.below[block]
        return (next(iter(node.holders)), node.tokens) if node.tokens else (None, 0)

    def hold(self, sequence: int, family: Family, blocks: Sequence[bytes]) -> None:
        """A sequence begins with these blocks; those that it held before are the first of them."""
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
        """A sequence, which holds no block yet, begins with those of ``source``."""
        node = self._ends.get(source)
        if node is not None:
            self._ends[sequence] = node
        while node is not None and node.above is not None:
            node.holders[sequence] = None
            node = node.above

    def cut(self, sequence: int, tokens: int) -> None:
        """A sequence holds nothing any more from position ``tokens`` on; blocks that none holds are forgotten."""
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
        """How many tokens the blocks of a sequence have."""
        return self._ends[sequence].tokens if sequence in self._ends else 0

    def alone(self, sequence: int) -> bool:
        """Whether it holds a block that no other sequence holds."""
        return sequence in self._ends and len(self._ends[sequence].holders) == 1


def _tokens(block: bytes) -> int:
    return len(block) // 4  # int32
