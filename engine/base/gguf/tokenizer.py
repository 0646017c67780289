"""The tokenizer of a GGUF file as Hugging Face's ``tokenizer.json`` and ``tokenizer_config.json``. Pure.

Two kinds are known: byte-level BPE (``gpt2``), whose splits of text llama.cpp knows by name, and the BPE of
sentencepiece (``llama``), whose merges follow from the scores. A split is that of the models' own ``tokenizer.json``.
``convert`` compares the ids with llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import BaseModelError
from .file import GgufHeader

KEY = "tokenizer.ggml."
LISTS = tuple(f"{KEY}{name}" for name in ("tokens", "token_type", "scores", "merges"))
UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5
"""Types of tokens in llama.h."""
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "pixtral"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), (_QWEN2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), (r"\p{N}", WORDS)),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "jais", "mpt"), (WORDS,)),
    "tekken": (_TEKKEN,),
}
"""Regular expressions by which text is split before it is merged, by ``tokenizer.ggml.pre``."""
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken")
"""Those where a word that is a token is not merged from its parts."""
COMPOSED = ("qwen2",)
"""Those whose text is brought into Unicode's composed form first."""
BEGINNING = ("llama-bpe", "llama3", "llama-v3")
"""Those that begin a text with the begin token where the file does not say."""
ENDINGS = ("<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>")
"""Control tokens that end a turn or a text, whatever the file names, as in llama.cpp."""


def tokenizer_files(header: GgufHeader) -> dict[str, Any]:
    """The contents of the JSON files, by name. Raises ``BaseModelError`` for a tokenizer that is not known."""
    tokens, types = tokens_of(header), header.lists.get(LISTS[1]) or []
    kinds = dict(zip(tokens, types, strict=False))  # the last of equal texts, as in Hugging Face's vocabulary
    vocabulary = {token: number for number, token in enumerate(tokens) if kinds.get(token) != UNUSED}
    model, pre = header.fields.get(f"{KEY}model"), str(header.fields.get(f"{KEY}pre", ""))
    if model == "llama":
        tokenizer = _sentencepiece(header, vocabulary)
    elif model == "gpt2" and pre in SPLITS:
        tokenizer = _byte_level(header, vocabulary, pre)
    else:
        what = f"splits text as {pre or 'nothing that it names'!r}" if model == "gpt2" else f"is of the kind {model!r}"
        raise BaseModelError(
            f"the GGUF file's tokenizer {what}, which marlaas does not know.",
            "Take the model's folder in Hugging Face's layout.",
        )
    added = [token for token in vocabulary if kinds.get(token) in (UNKNOWN, CONTROL, USER_DEFINED)]
    fixed = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer["added_tokens"] = [
        {"id": vocabulary[token], "content": token, **fixed, "special": kinds[token] != USER_DEFINED} for token in added
    ]
    begins = bool(header.fields.get(f"{KEY}add_bos_token", model == "llama" or pre in BEGINNING))
    named = {f"{name}_token": tokens[number] for name, number in special_ids(header).items()}
    if begins and "bos_token" in named:
        tokenizer["post_processor"] = _beginning(named["bos_token"], vocabulary[named["bos_token"]])
    settings = {
        **named,
        "add_bos_token": begins,
        "add_eos_token": bool(header.fields.get(f"{KEY}add_eos_token")),
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return {"tokenizer.json": {"version": "1.0", **tokenizer}, "tokenizer_config.json": settings}


def tokens_of(header: GgufHeader) -> list[str]:
    """The texts of the tokens, by number. Raises ``BaseModelError`` if the file has none."""
    tokens: list[str] = header.lists.get(LISTS[0]) or []
    if not tokens or header.fields.get(f"{KEY}model", "none") == "none":
        raise BaseModelError(
            "the GGUF file holds no tokenizer.", "Take the file that the model was published as, not a part of it."
        )
    return tokens


def special_ids(header: GgufHeader) -> dict[str, int]:
    """The numbers of the tokens that begin, end and fill texts, and of the unknown one, as far as the file has them."""
    keys = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}
    numbers = {name: header.fields.get(f"{KEY}{key}") for name, key in keys.items()}
    count = len(tokens_of(header))
    return {name: number for name, number in numbers.items() if isinstance(number, int) and number < count}


def end_ids(header: GgufHeader) -> list[int]:
    """The numbers of all tokens that end a turn or a text; that of the file's own end token is the first."""
    own = [header.fields.get(f"{KEY}{name}_token_id") for name in ("eos", "eot", "eom")]
    types = header.lists.get(LISTS[1]) or []
    known = [
        number
        for number, (token, kind) in enumerate(zip(tokens_of(header), types, strict=False))
        if token in ENDINGS and kind == CONTROL
    ]
    return list(dict.fromkeys(number for number in (*own, *known) if isinstance(number, int)))


def _byte_level(header: GgufHeader, vocabulary: dict[str, int], pre: str) -> dict[str, Any]:
    splits = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False} for split in SPLITS[pre]
    ]
    bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": {"type": "NFC"} if pre in COMPOSED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, bytes_alone]},
        "decoder": bytes_alone,
        "model": {
            "type": "BPE",
            "ignore_merges": pre in WHOLE_WORDS,
            "vocab": vocabulary,
            "merges": header.lists.get(LISTS[3]) or [],
        },
    }


def _sentencepiece(header: GgufHeader, vocabulary: dict[str, int]) -> dict[str, Any]:
    """As in Llama 2's own file: a space is written as ▁, also before a text."""
    scores = header.lists.get(LISTS[2]) or []
    ranked = sorted(_merges(vocabulary, scores), key=lambda pair: -scores[vocabulary["".join(pair)]])
    first = [{"type": "Prepend", "prepend": "▁"}] if header.fields.get(f"{KEY}add_space_prefix", True) else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if first else []
    spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*first, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
        },
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": {
            "type": "BPE",
            "unk_token": tokens_of(header)[special_ids(header).get("unk", 0)],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocabulary,
            "merges": ranked,
        },
    }


def _merges(vocabulary: dict[str, int], scores: list[float]) -> Iterator[tuple[str, str]]:
    """Every way in which a token consists of two others."""
    for token, number in vocabulary.items():
        for middle in range(1, len(token) if number < len(scores) else 0):
            if token[:middle] in vocabulary and token[middle:] in vocabulary:
                yield token[:middle], token[middle:]


def _beginning(token: str, number: int) -> dict[str, Any]:
    def sequence(name: str, kind: int) -> list[dict[str, Any]]:
        return [
            {"SpecialToken": {"id": token, "type_id": kind}},
            {"Sequence": {"id": name, "type_id": kind}},
        ]

    return {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": [*sequence("A", 0), *sequence("B", 1)],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }
