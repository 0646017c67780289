"""A made tokenizer has the family's control tokens, cuts text as the family does and gives every text back."""

from functools import cache

import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer

from tools.random_base.families import FAMILIES, control_ids, text_ids, tokenizer

ROWS = 151_936


@cache
def built_of(family: str) -> Tokenizer:
    return Tokenizer.from_str(tokenizer(FAMILIES[family], ROWS).to_str())


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    return request.param, built_of(request.param)


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_every_text_comes_back(made: tuple[str, Tokenizer], text: str) -> None:
    ids = made[1].encode(text, add_special_tokens=False).ids
    assert made[1].decode(ids, skip_special_tokens=False) == text


def test_control_tokens_have_the_ids_of_the_published_models(made: tuple[str, Tokenizer]) -> None:
    name, built = made
    expected = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
    if name in ("qwen2.5", "qwen3"):
        expected |= {"<tool_call>": 151657, "</tool_call>": 151658, "<|file_sep|>": 151664}
    if name == "qwen3":
        expected |= {"<tool_response>": 151665, "</tool_response>": 151666, "<think>": 151667, "</think>": 151668}
    if name == "llama3":
        expected = {
            **{"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|finetune_right_pad_id|>": 128004},
            **{"<|start_header_id|>": 128006, "<|end_header_id|>": 128007, "<|eom_id|>": 128008},
            **{"<|eot_id|>": 128009, "<|python_tag|>": 128010, "<|reserved_special_token_247|>": 128255},
        }
    assert {token: built.token_to_id(token) for token in expected} == expected
    for token, number in expected.items():
        assert built.encode(f"a{token}b", add_special_tokens=False).ids[1] == number


def test_text_is_cut_as_the_family_does() -> None:
    digits = {"qwen2.5": ["1", "2", "3", "4"], "llama3": ["123", "4"]}
    for name, expected in digits.items():
        built = built_of(name)
        assert built.encode("1234", add_special_tokens=False).tokens == expected
        assert [text for text, _ in built.pre_tokenizer.pre_tokenize_str("I'LL  go!\n x")] == [
            *("I", "'LL", "Ġ", "Ġgo", "!Ċ", "Ġx")
        ]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("rows", [600, 128_256, ROWS, 200_000])
def test_ids_lie_within_the_rows_and_none_twice(name: str, rows: int) -> None:
    family = FAMILIES[name]
    control, text = control_ids(family, rows), text_ids(family, rows)
    ids = [*control.values(), *text]
    assert len(set(ids)) == len(ids)
    assert min(ids) == 0
    assert max(ids) < rows
    if name == "llama3":
        assert len(ids) == rows
    elif rows >= ROWS:
        assert len(ids) == 151_643 + len(control)
