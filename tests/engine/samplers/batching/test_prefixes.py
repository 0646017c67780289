"""The trie of blocks, beside a list of what every sequence holds."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.samplers.batching.context import BLOCK, PIECE, Prefixes, blocks_of, common

from ....examples import examples

letters = st.lists(st.sampled_from([b"aaaa", b"bbbb"]), max_size=4)  # blocks of one token
families = st.sampled_from([("v0", True), ("v0", False), ("v1", True)])
changes = st.lists(
    st.tuples(st.sampled_from(["hold", "join", "cut"]), st.integers(0, 5), st.integers(0, 5), families, letters),
    max_size=30,
)


@settings(max_examples=examples(60))
@given(changes, families, letters)
def test_it_knows_who_holds_what(
    made: list[tuple[str, int, int, tuple[str, bool], list[bytes]]], family: tuple[str, bool], wanted: list[bytes]
) -> None:
    trie = Prefixes()
    held: dict[int, tuple[tuple[str, bool], list[bytes]]] = {}
    for what, sequence, other, theirs, blocks in made:
        if what == "cut":
            trie.cut(sequence, other)
            if sequence in held:
                held[sequence] = held[sequence][0], held[sequence][1][:other]
        elif what == "hold" and not (sequence in held and held[sequence][1]):
            trie.hold(sequence, theirs, blocks)
            held[sequence] = theirs, blocks
        elif what == "hold":
            owner, before = held[sequence]
            trie.hold(sequence, owner, before + blocks)
            held[sequence] = owner, before + blocks
        elif other in held and not (sequence in held and held[sequence][1]):
            trie.join(sequence, other)
            held[sequence] = held[other]
    source, tokens = trie.find(family, wanted)
    best = max((common(wanted, blocks) for owner, blocks in held.values() if owner == family), default=0)
    assert tokens == best
    assert source is None if not best else common(wanted, held[source or 0][1]) == best
    for sequence, (owner, blocks) in held.items():
        assert trie.tokens(sequence) == len(blocks)
        others = [each for other, each in held.items() if other != sequence and each[0] == owner]
        alone = bool(blocks) and all(common(blocks, theirs) < len(blocks) for _, theirs in others)
        assert trie.alone(sequence) == alone
    for sequence in held:
        trie.cut(sequence, 0)
    assert trie.find(family, wanted) == (None, 0) and not trie.__dict__["_roots"] and not trie.__dict__["_ends"]


@pytest.mark.parametrize(
    ("tokens", "alike", "blocks"),
    [
        (1, False, 0),
        (BLOCK + 1, False, 0),
        (BLOCK + 2, False, 1),
        (2 * BLOCK + 1, False, 1),
        (PIECE + 1, True, 0),
        (PIECE + 2, True, 1),
        (3 * PIECE, True, 2),
    ],
)
def test_two_tokens_are_left_to_read(tokens: int, alike: bool, blocks: int) -> None:
    prompt = np.arange(tokens, dtype=np.int32)
    found = blocks_of(prompt, alike)
    assert len(found) == blocks and prompt.tobytes().startswith(b"".join(found))
    assert {len(block) // 4 for block in found} <= {PIECE if alike else BLOCK}
