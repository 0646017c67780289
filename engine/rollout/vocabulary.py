"""The base model's tokenizer, with a wall between control tokens and text.

Text in which only the template may have written control tokens comes in, ids go out, and back. Whoever typed
``<|end|>`` into a message gets the letters, never the token: ``Guard`` breaks such strings with a mark before they go
through the template, and ``encode`` takes the marks out of the text again, after the control tokens have been found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import BaseModelError

PRIVATE = 0xF0000
"""First of Unicode's private characters that no one else has a use for."""


class Vocabulary:
    """Tokens of one base model."""

    def __init__(self, path: Path) -> None:
        """Read a ``tokenizer.json``. Raises ``BaseModelError``."""
        try:
            raw = json.loads(path.read_text("utf-8"))
            self._whole = Tokenizer.from_str(json.dumps(raw))
            added = [token for token in raw.get("added_tokens", []) if token["content"]]
            # Some models keep runs of spaces or line breaks as added tokens: those are text.
            control = [token for token in added if token["content"].strip()]
            plain = raw | {"added_tokens": [token for token in added if not token["content"].strip()]}
            self._plain = Tokenizer.from_str(json.dumps(plain))
        except OSError as error:
            raise BaseModelError(f"{path} cannot be read: {error.strerror}.") from error
        except Exception as error:  # the tokenizers package raises bare Exceptions
            raise BaseModelError(f"{path} is no tokenizer: {error}.") from error
        self.control = {str(token["content"]): int(token["id"]) for token in control}
        self._ids = frozenset(self.control.values())
        self._strips = {t["content"]: (t.get("lstrip", False), t.get("rstrip", False)) for t in control}
        longest_first = sorted(self.control, key=len, reverse=True)
        names = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._split = re.compile(f"({names})")
        self._anywhere = re.compile(f"(?s)(?=(?:{names}))(.)")

    def guard(self, texts: Iterable[str]) -> Guard:
        """A guard whose mark occurs in none of ``texts``."""
        present = set().union(*map(set, texts))
        free = (chr(code) for code in range(PRIVATE, PRIVATE + len(present) + 3))
        mark, reply = [character for character in free if character not in present][:2]
        return Guard(self._anywhere, mark, reply)

    def encode(self, text: str, mark: str = "") -> list[int]:
        """Ids of a rendered text; control tokens are found where they stand unbroken by ``mark``."""
        pieces = self._split.split(text)  # text and control tokens by turns
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            if number % 2:
                ids.append(self.control[piece])
                continue
            if number > 0 and self._strips[pieces[number - 1]][1]:
                piece = piece.lstrip()
            if number + 1 < len(pieces) and self._strips[pieces[number + 1]][0]:
                piece = piece.rstrip()
            ids.extend(self._encode_plain(piece.replace(mark, "") if mark else piece))
        return ids

    def encode_whole(self, text: str) -> list[int]:
        """Ids as the untouched tokenizer has them: what ``encode`` must agree with where no one cheats."""
        return list(self._whole.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Text of any ids, control tokens as their names; bytes that are no UTF-8 become U+FFFD."""
        return str(self._whole.decode(ids, skip_special_tokens=False))

    def _encode_plain(self, text: str) -> list[int]:
        if not text:
            return []
        ids = list(self._plain.encode(text, add_special_tokens=False).ids)
        if self._ids.isdisjoint(ids):
            return ids
        if len(text) == 1:  # a control token of one character: there is no other way to write it
            return []
        # Some models' vocabularies hold control tokens as words, too; they cannot be met across a cut.
        half = len(text) // 2
        return self._encode_plain(text[:half]) + self._encode_plain(text[half:])


class Guard:
    """Makes strings from outside safe to be put into a template."""

    def __init__(self, control: re.Pattern[str], mark: str, reply: str) -> None:
        self._control = control
        self.mark = mark
        """A character that stands in no text; it goes behind the first letter of what looks like a control token."""
        self.reply = reply
        """Another one, to stand for a reply."""

    def safe(self, value: Any) -> Any:
        """``value`` (JSON-like) with every string in it, keys included, broken where it spells a control token."""
        if isinstance(value, str):
            return self._control.sub(lambda found: found[1] + self.mark, well_formed(value))
        if isinstance(value, dict):
            return {self.safe(key): self.safe(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.safe(item) for item in value]
        return value


def well_formed(text: str) -> str:
    """``text`` without lone surrogates, which JSON can smuggle in and UTF-8 cannot express."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def strings(value: Any) -> list[str]:
    """All strings in a JSON-like value, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in strings(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in strings(item)]
    return []
