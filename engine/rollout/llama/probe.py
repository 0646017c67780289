"""Prints the cards that llama.cpp reaches, and what they hold, as a line of JSON.

On CUDA asking for the memory would take some of the card's, and NVIDIA's own library answers it better.
"""

from __future__ import annotations

import json

from .cards import cards, memory_of


def main() -> None:
    """Print them. Raises ``ConfigError`` where llama.cpp cannot be loaded."""
    lines = []
    for card in cards():
        free, total = memory_of(card) if card.kind != "cuda" else (0, 0)
        facts = {"name": card.name, "description": card.description, "kind": card.kind}
        lines.append({**facts, "free": free, "memory": total})
    print(json.dumps({"library": "llama.cpp", "cards": lines}), flush=True)


if __name__ == "__main__":
    main()
