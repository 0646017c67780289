"""The made vocabulary is a working byte-level BPE: every token is reached, English takes few, any bytes come back."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from tools.random_base.families import COMMON, build


def whole(size: int, numbers: bool) -> Tokenizer:
    """The bare model: no cutting into words before it."""
    tokens, merges = build(size, numbers)
    return Tokenizer(BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=list(merges)))


@pytest.mark.parametrize(("size", "numbers"), [(256, False), (257, True), (1000, False), (30_000, True)])
def test_every_token_is_what_bpe_makes_of_its_own_bytes(size: int, numbers: bool) -> None:
    tokens = build(size, numbers)[0]
    assert len(set(tokens)) == len(tokens) == size
    encoded = whole(size, numbers).encode_batch(list(tokens))
    assert [encoding.ids for encoding in encoded] == [[number] for number in range(size)]


def test_a_smaller_vocabulary_is_the_beginning_of_a_larger() -> None:
    small, large = build(5000, False), build(9000, False)
    assert large[0][:5000] == small[0]
    assert large[1][: len(small[1])] == small[1]


def test_common_words_with_and_without_a_space_are_tokens() -> None:
    tokens = set(build(60_000, False)[0])
    words = COMMON.split()
    assert len(words) > 1000
    for word in words:
        assert {f"Ġ{word}", f"Ġ{word.capitalize()}", word, word.capitalize()} <= tokens, word
