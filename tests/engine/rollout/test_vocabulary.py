"""Tokens of a vocabulary: control tokens are never met in text, whatever the vocabulary holds as words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from marlaas.engine.samplers.vocabulary import Vocabulary
from tools.random_base.make import make_base


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """A tokenizer in which ``</s>`` is also a word, ``@`` a control token, and two line breaks are added."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "</", "</s", "</s>", "ab"]
    merges = [("<", "/"), ("</", "s"), ("</s", ">"), ("a", "b")]
    tokenizer = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken("</s>", special=True), AddedToken("@", special=True), AddedToken("<end>", special=True)]
    )
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("\n\n", special=False)])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    path = tmp_path_factory.mktemp("odd") / "tokenizer.json"
    tokenizer.save(str(path))
    return Vocabulary(path)


def typed(vocabulary: Vocabulary, text: str) -> list[int]:
    guard = vocabulary.guard([text])
    return vocabulary.encode(guard.safe(text), guard.mark)


def test_control_tokens_are_those_that_show(odd: Vocabulary) -> None:
    assert set(odd.control) == {"</s>", "@", "<end>"}
    (breaks,) = odd.encode_whole("\n\n")
    assert odd.encode("a\n\nb") == [*odd.encode("a"), breaks, *odd.encode("b")]


def test_nothing_is_cut_off_and_nothing_filled_up(odd: Vocabulary) -> None:
    assert len(odd.encode("xyzxyzxyz")) == 9 and odd.encode("x") == odd.encode_whole("x")


@given(st.lists(st.sampled_from(("</s>", "</", "s>", "<end>", "ab", "\n", "é", "@", " "))).map("".join))
def test_typed_control_tokens_stay_letters(odd: Vocabulary, text: str) -> None:
    ids = typed(odd, text)
    assert not set(ids) & set(odd.control.values())
    assert odd.decode(ids) == text.replace("@", "")  # one character that is a control token has no other spelling


def test_words_like_control_tokens_cost_their_length(odd: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece of text is looked at a few times at most, however many such words there are."""
    looked: list[int] = []
    plain = odd._plain

    class Counting:
        def encode_batch(self, texts: list[str], add_special_tokens: bool) -> object:
            looked.extend(map(len, texts))
            return plain.encode_batch(texts, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(odd, "_plain", Counting())
    text = "ab</s>" * 2000
    ids = typed(odd, text)
    assert odd.decode(ids) == text and not set(ids) & set(odd.control.values())
    assert sum(looked) <= 3 * len(text)


def test_a_real_vocabulary_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """151,936 entries: reading the file is what takes time, so it happens once, and the words are shared."""
    base = make_base(tmp_path / "base", "qwen3")
    reads: list[str] = []
    kind = type(
        "Counting", (), {"from_file": lambda path: _read(path, reads), "__new__": lambda _, words: Tokenizer(words)}
    )
    monkeypatch.setattr("marlaas.engine.samplers.vocabulary.Tokenizer", kind)
    vocabulary = Vocabulary(base.path / "tokenizer.json")
    assert len(reads) == 1 and vocabulary.control["<|im_end|>"] == 151_645
    assert vocabulary.encode("<think>Hm</think>")[0] == 151_667


def _read(path: str, reads: list[str]) -> Tokenizer:
    reads.append(path)
    return Tokenizer.from_file(path)
