"""A byte-level BPE vocabulary made by rule: which merges, in which order, make ``size`` tokens.

Nothing is trained. Common English words come first, then all short combinations of letters, the characters of other
scripts, and longer combinations until there are enough. Byte-level BPE: Radford et al., "Language Models are
Unsupervised Multitask Learners" (2019), section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product

from tokenizers.pre_tokenizers import ByteLevel

from tools.random_base.words import ENDINGS, SIGNS, SUFFIXES, words

LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
"""The commonest first: that is also the order in which pairs are merged."""
VOWELS = "eaoiuy"
CONSONANTS = "tnshrdlcmwfgpbvkjxqz"
SHAPES = (
    (CONSONANTS, VOWELS, CONSONANTS, VOWELS),
    (VOWELS, CONSONANTS, VOWELS, CONSONANTS),
    (CONSONANTS, VOWELS, VOWELS, CONSONANTS),
    (CONSONANTS, VOWELS, CONSONANTS, CONSONANTS),
    (LETTERS,) * 4,
)
"""Longer combinations, the pronounceable ones first; the last has more than any vocabulary can take."""
TWO_BYTES = range(0xC2, 0xE0)
"""First bytes of the Latin, Greek, Cyrillic, Hebrew and Arabic characters in UTF-8."""
THREE_BYTES = range(0xE3, 0xEA)
"""First bytes of the Japanese and Chinese characters."""
FOLLOWING = range(0x80, 0xC0)


@dataclass(frozen=True)
class Bpe:
    """Tokens as byte-level BPE files write them: bytes as printable characters."""

    tokens: tuple[str, ...]
    """The 256 bytes, then what the merges make, in order."""
    merges: tuple[tuple[str, str], ...]
    """The earlier come first when text is tokenised."""


@lru_cache(maxsize=4)
def build(size: int, numbers: bool) -> Bpe:
    """``size`` tokens, at least 256; ``numbers``: also those of two and three digits. Takes about a second."""
    names = byte_characters()
    made = dict.fromkeys(sorted(names))
    if size < len(made):
        raise ValueError(f"A byte-level vocabulary has at least {len(made)} tokens, not {size}.")
    ranks: dict[tuple[str, str], int] = {}
    for wanted in _wanted(numbers):
        if len(made) == size:
            break
        pieces = _merged([names[byte] for byte in wanted], ranks)
        while len(pieces) > 1 and len(made) < size:
            pair = pieces[0], pieces[1]
            ranks.setdefault(pair, len(ranks))
            pieces[:2] = ["".join(pair)]
            made[pieces[0]] = None
    return Bpe(tuple(made), tuple(ranks))


def byte_characters() -> list[str]:
    """The printable character by which byte-level BPE files write each of the 256 bytes."""
    alphabet = sorted(ByteLevel.alphabet())  # printable bytes as themselves, then a character for each other byte
    shown = [ord(character) for character in alphabet if ord(character) < 256]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [character for _, character in sorted(zip(shown + hidden, alphabet, strict=True))]


def _merged(pieces: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Apply the merges to ``pieces``, in place."""
    never = len(ranks)
    while len(pieces) > 1:
        order = [ranks.get(pair, never) for pair in pairwise(pieces)]
        best = min(order)
        if best == never:
            break
        at = order.index(best)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces


def _wanted(numbers: bool) -> Iterator[bytes]:
    """Tokens by importance, as UTF-8; some are parts of characters."""
    for text in _texts(numbers):
        yield text.encode()
    for first, second in product(TWO_BYTES, FOLLOWING):
        yield bytes((first, second))
    for first, second, third in product(THREE_BYTES, FOLLOWING, FOLLOWING):
        yield bytes((first, second, third))
    for shape in SHAPES:
        for letters in product(*shape):
            yield "".join(letters).encode()


def _texts(numbers: bool) -> Iterator[str]:
    common = words()
    yield from (" " + letter for letter in LETTERS)
    yield from (" " + word for word in common)
    yield from ("\n" * count for count in range(2, 5))
    yield from (" " * count for count in range(2, 17))
    for sign in SIGNS.split():
        yield from (sign, " " + sign, sign + "\n")
    if numbers:
        yield from map("".join, product("0123456789", repeat=2))
        yield from map("".join, product("0123456789", repeat=3))
    yield from ENDINGS.split()
    for word in common:
        yield from (" " + word.capitalize(), word.capitalize(), word)
    for word in common:
        yield from (" " + word + suffix for suffix in SUFFIXES)
    for count in (2, 3):
        for letters in map("".join, product(LETTERS, repeat=count)):
            yield from (letters, " " + letters)
        for letters in map("".join, product(LETTERS, repeat=count)):
            yield from (letters.capitalize(), letters.upper())
