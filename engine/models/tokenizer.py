"""A tokenizer as ``tokenizer.json`` and as fields of a GGUF file, both ways.

Byte-level BPE (``gpt2``), with splits from the models' own ``tokenizer.json``, and sentencepiece's BPE (``llama``),
with merges from scores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import BaseModelError
from .gguf import Fields, GgufHeader
from .templates import load_template, read_settings
from .weights import check_tokenizer, read_json

TEMPLATE = "tokenizer.chat_template"
FOLDER = "Take the model's folder in Hugging Face's layout."
KEY = "tokenizer.ggml."
LISTS = tuple(f"{KEY}{name}" for name in ("tokens", "token_type", "scores", "merges"))
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
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
"""By ``tokenizer.ggml.pre``."""
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken")
"""Take a word that is a token whole."""
COMPOSED = ("qwen2",)
"""Bring text into Unicode's composed form first."""
BEGINNING = ("llama-bpe", "llama3", "llama-v3")
"""Begin texts with the begin token by default."""
ENDINGS = ("<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>")
"""End a turn or a text, whatever the file names, as in llama.cpp."""


def tokenizer_files(header: GgufHeader) -> dict[str, Any]:
    """The contents of ``tokenizer.json`` and ``tokenizer_config.json``.

    Raises ``BaseModelError`` for an unknown tokenizer.
    """
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
        raise BaseModelError(f"the GGUF file's tokenizer {what}, which marlaas does not know.", FOLDER)
    fixed = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer["added_tokens"] = [
        {"id": number, "content": token, **fixed, "special": kinds[token] != USER_DEFINED}
        for token, number in vocabulary.items()
        if kinds.get(token) in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    begins = bool(header.fields.get(f"{KEY}add_bos_token", model == "llama" or pre in BEGINNING))
    named = {f"{name}_token": tokens[number] for name, number in special_ids(header).items()}
    bos = named.get("bos_token")
    if begins and bos is not None:
        start, number = {"SpecialToken": {"id": bos, "type_id": 0}}, vocabulary[bos]
        first, second = ({"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB"))
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [start, first],
            "pair": [start, first, {"SpecialToken": {"id": bos, "type_id": 1}}, second],
            "special_tokens": {bos: {"id": bos, "ids": [number], "tokens": [bos]}},
        }
    settings = {
        **named,
        "add_bos_token": begins,
        "add_eos_token": bool(header.fields.get(f"{KEY}add_eos_token")),
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return {"tokenizer.json": {"version": "1.0", **tokenizer}, "tokenizer_config.json": settings}


def tokens_of(header: GgufHeader) -> list[str]:
    """The tokens' texts. Raises ``BaseModelError`` without any."""
    tokens: list[str] = header.lists.get(LISTS[0]) or []
    if not tokens or header.fields.get(f"{KEY}model", "none") == "none":
        hint = "Take the file that the model was published as, not a part of it."
        raise BaseModelError("the GGUF file holds no tokenizer.", hint)
    return tokens


SPECIAL = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}


def special_ids(header: GgufHeader) -> dict[str, int]:
    """Numbers of the file's begin, end, fill and unknown tokens."""
    numbers = {name: header.fields.get(f"{KEY}{key}") for name, key in SPECIAL.items()}
    count = len(tokens_of(header))
    return {name: number for name, number in numbers.items() if isinstance(number, int) and number < count}


def end_ids(header: GgufHeader) -> list[int]:
    """Tokens that end a turn or a text; the file's end token first."""
    named = [header.fields.get(f"{KEY}{name}_token_id") for name in ("eos", "eot", "eom")]
    kinds = enumerate(zip(tokens_of(header), header.lists.get(LISTS[1]) or [], strict=False))
    usual = [number for number, (token, kind) in kinds if token in ENDINGS and kind == CONTROL]
    return list(dict.fromkeys(number for number in (*named, *usual) if isinstance(number, int)))


def _byte_level(header: GgufHeader, vocabulary: dict[str, int], pre: str) -> dict[str, Any]:
    splits = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False} for split in SPLITS[pre]
    ]
    as_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"ignore_merges": pre in WHOLE_WORDS, "vocab": vocabulary, "merges": header.lists.get(LISTS[3]) or []}
    return {
        "normalizer": {"type": "NFC"} if pre in COMPOSED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, as_bytes]},
        "decoder": as_bytes,
        "model": {"type": "BPE", **model},
    }


def _sentencepiece(header: GgufHeader, vocabulary: dict[str, int]) -> dict[str, Any]:
    """As in Llama 2's file: a space is ▁, also before a text. Merges: all splits into two tokens, in the order of
    scores."""
    scores = header.lists.get(LISTS[2]) or []
    merges = [
        (token[:middle], token[middle:])
        for token, number in vocabulary.items()
        for middle in range(1, len(token) if number < len(scores) else 0)
        if token[:middle] in vocabulary and token[middle:] in vocabulary
    ]
    first = [{"type": "Prepend", "prepend": "▁"}] if header.fields.get(f"{KEY}add_space_prefix", True) else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if first else []
    spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    marks = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    model = {
        "unk_token": tokens_of(header)[special_ids(header).get("unk", 0)],
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": vocabulary,
        "merges": sorted(merges, key=lambda pair: -scores[vocabulary["".join(pair)]]),
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*first, marks]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": {"type": "BPE", **model},
    }


def tokenizer_fields(folder: Path, rows: int) -> Fields:
    """A GGUF's fields for the tokenizer and the chat templates in ``folder``; ``rows``: of the embedding.

    Undoes ``tokenizer_files``. Raises ``BaseModelError`` for a tokenizer that llama.cpp does not know.
    """
    from tokenizers import Tokenizer

    path, template = folder / "tokenizer.json", load_template(folder)
    check_tokenizer(folder, rows)
    original, content = Tokenizer.from_file(str(path)), read_json(path)
    model, added = content["model"], {token["id"]: token for token in content["added_tokens"]}
    unknown = BaseModelError("llama.cpp does not know the kind of the base's tokenizer.", where=str(folder))
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model.get("merges", ())]
    if model.get("type", "BPE") != "BPE" or not merges:
        raise unknown
    numbers = model["vocab"] | {token["content"]: number for number, token in added.items()}
    texts = {number: text for text, number in numbers.items()}

    def kind(number: int) -> int:
        text = texts.get(number)
        if text is None:
            return UNUSED
        if model.get("byte_fallback") and text == model.get("unk_token"):
            return UNKNOWN
        if number in added:
            return CONTROL if added[number]["special"] else USER_DEFINED
        return BYTE if model.get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", text) else NORMAL

    tokens = ((f"{KEY}{key}", template.tokens.get(f"{name}_token")) for name, key in SPECIAL.items())
    fields: dict[str, Any] = {
        LISTS[0]: [texts.get(number, f"[PAD{number}]") for number in range(rows)],
        LISTS[1]: [kind(number) for number in range(rows)],
        **{f"{TEMPLATE}.{name}".rstrip("."): source for name, source in template.sources.items()},
        **{key: numbers[text] for key, text in tokens if text in numbers},
    }
    declared = read_settings(folder, "generation_config.json").get("eos_token_id")
    for end in declared if isinstance(declared, list) else [declared]:
        if end in texts and end != fields.setdefault(f"{KEY}eos_token_id", end):
            fields[f"{KEY}eot_token_id"] = end
    ids = original.encode("a").ids
    fields[f"{KEY}add_bos_token"] = ids[:1] == [fields.get(f"{KEY}bos_token_id")]
    fields[f"{KEY}add_eos_token"] = ids[-1:] == [fields.get(f"{KEY}eos_token_id")]
    for candidate in _sentencepiece_fields(merges, numbers, rows) if model.get("byte_fallback") else _splits(content):
        whole = fields | {LISTS[3]: [" ".join(pair) for pair in merges]} | candidate
        header = GgufHeader(whole, {}, 0, {}, whole)
        made = Tokenizer.from_str(json.dumps(tokenizer_files(header)["tokenizer.json"]))
        if all(
            made.encode(text, add_special_tokens=False).ids == original.encode(text, add_special_tokens=False).ids
            for text in PROBES
        ):
            return whole
    raise unknown


def _splits(content: dict[str, Any]) -> list[Fields]:
    """One ``pre`` for each way to split; first those whose expressions are in the file."""
    ways: dict[Any, str] = {}
    for pre, splits in SPLITS.items():
        ways.setdefault((splits, pre in WHOLE_WORDS, pre in COMPOSED), pre)
    written = json.dumps(content["pre_tokenizer"])
    names = sorted(ways.values(), key=lambda pre: any(json.dumps(split)[1:-1] not in written for split in SPLITS[pre]))
    return [{f"{KEY}model": "gpt2", f"{KEY}pre": pre} for pre in names]


def _sentencepiece_fields(merges: list[tuple[str, ...]], numbers: dict[str, int], rows: int) -> Iterator[Fields]:
    """llama.cpp merges by the scores of the results: the earlier a merge, the higher."""
    scores = [-float(len(merges))] * rows
    for rank, pair in reversed([*enumerate(merges)]):
        scores[numbers["".join(pair)]] = -float(rank)
    for prefix in (True, False):
        yield {f"{KEY}model": "llama", LISTS[2]: scores, LISTS[3]: [], f"{KEY}add_space_prefix": prefix}


PROBES = (
    "Hello, how are you?  It's 12345.67 dollars (or 3,000 €)!\n\n\tdef f(x):\n        return x+1\n",
    "Ünïcödé, naïve, 日本語の文章, русский текст, हिन्दी, 😀👍🏽.",
    "We'll DON'T I'M camelCase snake_case https://example.org/a?b=1&c=2#d {\"age\": 41}",
    "   leading, trailing   \r\n \n\n end",
)
"""In Unicode's composed form."""
