"""Tokenizers that belong to other weights are found by their numbers, and the advice for a missing one works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.weights import check_tokenizer, token_ids
from tools.random_base.families import FAMILIES
from tools.random_base.make import make_base

from ...seldom import often


def test_the_advice_for_a_folder_without_tokenizer_works(tmp_path: Path) -> None:
    """Byte-level BPE as vocab.json and merges.txt: what transformers then writes is a tokenizer."""
    from transformers import AutoTokenizer

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(BaseModelError, match=r"vocab\.json and merges\.txt"):
        token_ids(tmp_path)
    AutoTokenizer.from_pretrained(str(tmp_path)).save_pretrained(str(tmp_path))
    assert max(token_ids(tmp_path)) >= 3


@pytest.mark.parametrize("family", often(["llama3"], FAMILIES))
def test_real_vocabularies_fit_their_padded_embeddings(tmp_path: Path, family: str) -> None:
    base = make_base(tmp_path, family)
    check_tokenizer(base.path, base.config.vocab_size)
    with pytest.raises(BaseModelError, match="does not match its embedding"):
        check_tokenizer(base.path, 200_000)


def test_the_tokenizer_of_a_smaller_vocabulary_is_found(tmp_path: Path) -> None:
    qwen, llama = make_base(tmp_path / "qwen", "qwen3"), make_base(tmp_path / "llama", "llama3")
    (qwen.path / "tokenizer.json").write_bytes((llama.path / "tokenizer.json").read_bytes())
    with pytest.raises(BaseModelError, match=r"it knows 128,256 tokens, but the embedding has 151,936 rows"):
        check_tokenizer(qwen.path, qwen.config.vocab_size)
