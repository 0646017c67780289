"""How much of each choice was streamed, so that what pieces left out is told at the choice's end."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..wire import Choice, Piece


@dataclass
class StreamedChoice:
    """What pieces have told of one choice."""

    text: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    tokens: int = 0
    offset: int = 0
    """Characters of the tokens, for the offsets of completions."""

    def add(self, piece: Piece) -> None:
        """Note a piece."""
        self.text.append(piece.text)
        self.thinking.append(piece.thinking)
        self.tokens += len(piece.tokens)

    def rest(self, choice: Choice) -> Piece:
        """What of the choice no piece has told. Where pieces told something else than the choice (it holds calls of
        tools, which were streamed as text, say), nothing is added."""
        return Piece(
            choice.id,
            choice.choice,
            text=_rest("".join(self.text), choice.text),
            thinking=_rest("".join(self.thinking), choice.thinking),
            tokens=choice.tokens[self.tokens :],
        )


def _rest(told: str, whole: str) -> str:
    return whole[len(told) :] if whole.startswith(told) else ""
