"""The base's tokenizer; only the template can write control tokens.

``Guard`` breaks ``<|end|>`` in a message with a mark, which ``encode`` removes. Added tokens that are not special
(``<think>``, ``<tool_call>``) are text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from ..errors import BaseModelError

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would gain nothing, and it warns at forks
PRIVATE = 0xF0000
"""Unicode's first supplementary private character; these are marks."""


class Vocabulary:
    """Tokens of one base model."""

    def __init__(self, path: Path, structure: Collection[str] = ()) -> None:
        """Raises ``BaseModelError``. ``structure``: control tokens that the file does not mark special."""
        try:
            path.open("rb").close()
            self._whole = Tokenizer.from_file(str(path))
        except OSError as error:
            raise BaseModelError(f"cannot be read: {error.strerror}.", where=str(path)) from error
        except Exception as error:  # the tokenizers package raises bare Exceptions
            raise BaseModelError(f"is no tokenizer: {error}.", where=str(path)) from error
        self._whole.no_truncation()  # some files keep a truncation from training
        self._whole.no_padding()
        added = {number: token for number, token in self._whole.get_added_tokens_decoder().items() if token.content}
        self.added = {str(token.content): int(number) for number, token in added.items()}
        # Added tokens of spaces or line breaks are text, special or not.
        control = {
            number: token
            for number, token in added.items()
            if token.content.strip() and (token.special or token.content in structure)
        }
        kept = {number: token for number, token in added.items() if number not in control}
        self._plain, self._renamed = _without_control(self._whole, kept)
        self.control = {str(token.content): int(number) for number, token in control.items()}
        self._ids = frozenset(self.control.values())
        self._strips = {token.content: (token.lstrip, token.rstrip) for token in control.values()}
        longest_first = sorted(self.control, key=len, reverse=True)
        names = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._split = re.compile(f"({names})")
        self.longest = max(map(len, self._whole.get_vocab(with_added_tokens=True)), default=1)
        """Most characters of a token."""
        self.beginning = tuple(self._whole.encode("", add_special_tokens=True).ids)
        """The tokenizer's prefix of a separate text; in conversations the template writes it."""
        self._anywhere = re.compile(f"(?s)(?=(?:{names}))(.)")

    def guard(self, texts: Iterable[str], replies: int = 1) -> Guard:
        present = set().union(*map(set, texts))
        needed = 1 + 2 * replies
        free = (chr(code) for code in range(PRIVATE, PRIVATE + len(present) + needed))
        marks = [character for character in free if character not in present][:needed]
        return Guard(self._break, marks[0], tuple(marks[1 : replies + 1]), tuple(marks[replies + 1 :]))

    def _break(self, text: str, mark: str) -> str:
        if not self._split.search(text):  # true for most texts, and much faster
            return text
        return self._anywhere.sub(lambda found: mark if found[1] in self.control else found[1] + mark, text)

    def pieces(self, text: str) -> list[str]:
        return self._split.split(text)

    def encode(self, text: str, mark: str = "") -> list[int]:
        pieces = self.pieces(text)
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            if number % 2:
                ids.append(self.control[piece])
                continue
            if number > 0 and self._strips[pieces[number - 1]][1]:
                piece = piece.lstrip()
            if number + 1 < len(pieces) and self._strips[pieces[number + 1]][0]:
                piece = piece.rstrip()
            self._encode_plain(piece.replace(mark, "") if mark else piece, ids)
        return ids

    def encode_whole(self, text: str) -> list[int]:
        return list(self._whole.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Control tokens as their names. Invalid UTF-8 becomes U+FFFD; padded rows without a token nothing."""
        return str(self._whole.decode(ids, skip_special_tokens=False))

    def _encode_plain(self, text: str, ids: list[int]) -> None:
        """A word that became a control token is cut after its first character, and the pieces encoded again."""
        waiting = [text]
        while waiting:
            piece = waiting.pop()
            if not piece:
                continue
            # unlike a single text, a batch of one lets other threads run
            (encoding,) = self._plain.encode_batch([piece], add_special_tokens=False)
            found = [self._renamed.get(token, token) for token in encoding.ids] if self._renamed else encoding.ids
            if self._ids.isdisjoint(found):
                ids.extend(found)
                continue
            if len(piece) == 1:  # a control token of one character: there is no other way to write it
                continue
            met = (start for (start, _), token in zip(encoding.offsets, found, strict=True) if token in self._ids)
            cuts = sorted({min(start + 1, len(piece) - 1) for start in met})
            bounds = pairwise([0, *cuts, len(piece)])
            waiting.extend(reversed([piece[start:stop] for start, stop in bounds]))


class Guard:
    """Makes strings from outside safe for a template."""

    def __init__(
        self, breaks: Callable[[str, str], str], mark: str, answers: tuple[str, ...], thoughts: tuple[str, ...]
    ) -> None:
        self._breaks = breaks
        self.mark = mark
        """A character that occurs in no text; breaks strings that look like a control token."""
        self.answers = answers
        """One character for each reply's answer."""
        self.thoughts = thoughts
        """One character for each reply's thought."""

    def safe(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._breaks(well_formed(value), self.mark)
        if isinstance(value, dict):
            return {self.safe(key): self.safe(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.safe(item) for item in value]
        return value


def well_formed(text: str) -> str:
    """``text`` without lone surrogates, which JSON can contain and UTF-8 cannot express."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def strings(value: Any) -> list[str]:
    """All strings in a JSON-like value, including keys."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in strings(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in strings(item)]
    return []


def _without_control(whole: Tokenizer, kept: dict[int, AddedToken]) -> tuple[Tokenizer, dict[int, int]]:
    plain = Tokenizer(whole.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if getattr(whole, part) is not None:
            setattr(plain, part, getattr(whole, part))
    plain.add_tokens(list(kept.values()))
    renamed = {plain.token_to_id(token.content): number for number, token in kept.items()}
    return plain, {own: number for own, number in renamed.items() if own is not None}
