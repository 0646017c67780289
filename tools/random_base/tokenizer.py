"""The tokenizer's files of a random base: byte-level BPE with a family's pre-tokenizer, control tokens and template.

No normaliser, unlike Qwen's: every text comes back byte for byte.
"""

from __future__ import annotations

from pathlib import Path

from tools.random_base.families import Family, Settings
from tools.random_base.merges import Bpe, build

TEMPLATES = Path(__file__).parent / "templates"
BYTES = 256


def control_ids(family: Family, rows: int) -> dict[str, int]:
    """Each control token's id: the family's usual one, or at the end of a smaller embedding.

    Raises ``ValueError`` where the bytes and the control tokens alone need more rows.
    """
    first = min(family.first_control, rows - len(family.control))
    if first < BYTES:
        raise ValueError(f"An embedding of {rows} rows is too small: {BYTES + len(family.control)} is the least.")
    return {name: first + offset for offset, name in enumerate(family.control)}


def text_ids(family: Family, rows: int) -> list[int]:
    """The ids of tokens of text, in the order in which the vocabulary is made."""
    control = control_ids(family, rows)
    first, behind = min(control.values()), max(control.values()) + 1
    return [*range(first), *(range(behind, rows) if family.text_behind else ())]


def tokenizer(family: Family, rows: int) -> Settings:
    """The content of ``tokenizer.json``."""
    control, ids = control_ids(family, rows), text_ids(family, rows)
    bpe = build(len(ids), numbers=family.digits != r"\p{N}")
    vocabulary = dict(zip(bpe.tokens, ids, strict=True))
    if max(ids) > max(control.values()):  # else readers number added tokens on from the last of the vocabulary
        vocabulary |= control
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pieces(family)}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, **token} for number, token in _control(family, rows).items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": _post_processor(family, rows, byte_level),
        "decoder": byte_level | {"add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _model(bpe, vocabulary),
    }


def tokenizer_config(family: Family, rows: int, context: int) -> Settings:
    """The content of ``tokenizer_config.json``, chat template included."""
    control = _control(family, rows)
    return {
        "added_tokens_decoder": {str(number): token for number, token in control.items()},
        "add_prefix_space": False,
        "bos_token": family.bos,
        "chat_template": (TEMPLATES / f"{family.template}.jinja").read_text("utf-8"),
        "clean_up_tokenization_spaces": False,
        "eos_token": family.eos,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": context,
        "pad_token": family.pad,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def pieces(family: Family) -> str:
    """The regular expression by which text is cut before BPE: contractions, words, digits, signs, white space."""
    return "|".join(
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
            r"[^\r\n\p{L}\p{N}]?\p{L}+",
            family.digits,
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    )


def _control(family: Family, rows: int) -> dict[int, Settings]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        number: {"content": name, **plain, "special": name not in family.spoken}
        for name, number in control_ids(family, rows).items()
    }


def _model(bpe: Bpe, vocabulary: dict[str, int]) -> Settings:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": [" ".join(pair) for pair in bpe.merges],
    }


def _post_processor(family: Family, rows: int, byte_level: Settings) -> Settings:
    """The post-processor; Llama's puts its first token before every text, unless it is told not to."""
    if family.bos is None:
        return byte_level
    begin = {"SpecialToken": {"id": family.bos, "type_id": 0}}
    texts = [{"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB")]
    number = control_ids(family, rows)[family.bos]
    template = {
        "type": "TemplateProcessing",
        "single": [begin, texts[0]],
        "pair": [begin, texts[0], begin | {"SpecialToken": {"id": family.bos, "type_id": 1}}, texts[1]],
        "special_tokens": {family.bos: {"id": family.bos, "ids": [number], "tokens": [family.bos]}},
    }
    return {"type": "Sequence", "processors": [byte_level, template]}
