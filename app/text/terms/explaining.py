"""A term of the catalogue in paragraphs, for the terminal, the screen and the docs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from . import KINDS, TERMS, Term, nearest_terms


def sentence(text: str) -> str:
    """With a capital, unless it begins with code, and a full stop."""
    first = text[:1].upper() if text[:1].isalpha() else text[:1]
    return text and first + text[1:] + ("" if text[-1] in ".!?:" else ".")


def paragraphs(term: Term) -> list[tuple[str, str]]:
    """What there is to say of a term: labels with their texts, the first without a label."""
    found = [
        ("", sentence(term.line)),
        ("healthy", sentence(term.healthy)),
        ("otherwise", sentence(term.otherwise)),
        ("formula", term.formula),
        ("source", term.source),
        ("in JSON", _in_json(term)),
        ("also called", ", ".join(term.names)),
    ]
    return [(label, text) for label, text in found if text]


def heading(term: Term) -> str:
    """The name, and what kind of thing it is."""
    kind = f"important {KINDS[term.kind]}" if term.important else KINDS[term.kind]
    return term.name if term.kind == "word" else f"{term.name} ({kind})"


def term_json(term: Term) -> dict[str, Any]:
    """A term as in ``explain --json``; ``deprecated`` are older names in JSON."""
    table = asdict(term)
    return table | {"deprecated": table.pop("old")}


def by_kind(terms: Sequence[Term] = TERMS) -> dict[str, list[Term]]:
    """Terms by what their kind is called, in the catalogue's order; glossary words by name."""
    found = {words: [term for term in terms if term.kind == kind] for kind, words in KINDS.items()}
    found[KINDS["word"]].sort(key=lambda term: term.name.casefold())
    return {words: own for words, own in found.items() if own}


def _in_json(term: Term) -> str:
    if not term.old:
        return term.key
    older = "an older name" if len(term.old) == 1 else "older names"
    return f"{term.key}; {', '.join(term.old)} {'is' if len(term.old) == 1 else 'are'} {older}, deprecated"


def search(text: str) -> tuple[Term, ...]:
    """Terms that a text may mean: those named so first, then those whose line has it. Without a text, all."""
    wanted = text.strip().casefold()
    if not wanted:
        return TERMS
    named = nearest_terms(text, len(TERMS))
    return tuple(dict.fromkeys((*named, *(term for term in TERMS if wanted in term.line.casefold()))))
