"""The catalogue: every word and metric that people meet, once. Screens, verbs and the docs take their words from it.

Pure, and standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from . import glossary, metrics
from .term import KINDS as KINDS, Kind as Kind, Term as Term

TERMS: tuple[Term, ...] = (
    *metrics.LEARNING_TERMS,
    *metrics.SAMPLING_TERMS,
    *metrics.BATCH_TERMS,
    *glossary.EVALUATION_TERMS,
    *glossary.MACHINE_TERMS,
    *glossary.GLOSSARY_TERMS,
    *glossary.OUTSIDE_TERMS,
)
"""Metrics of steps come first, in the order in which screens list them."""
NEAR = 0.6
"""How alike a word must be to be proposed, 0 to 1: one wrong letter in three."""


class UnknownTerm(LookupError):
    """No term has that name; ``near`` are those that look alike."""

    def __init__(self, word: str, near: tuple[Term, ...]) -> None:
        super().__init__(word)
        self.near = near


def _bare(word: str) -> str:
    """A word without what people may leave out."""
    return "".join(character for character in word.casefold() if character.isalnum() or character in "±@")


_KNOWN = {_bare(term.name): term for term in TERMS}
"""Every term by each of its names; its first name goes before another term's further names."""
for _term in TERMS:
    for _name in filter(None, (_term.key, *_term.old, *_term.names)):
        _KNOWN.setdefault(_bare(_name), _term)


def find_term(word: str) -> Term:
    """The term of that name, whether people or programs call it so. Raises ``UnknownTerm`` with the nearest.

    Case, spaces, hyphens, underscores and a plural do not count. A metric of a mixture has its component before it
    (``sums: epoch``), a key of a task file its table (``train.learning_rate``), and counts of groups by age their age
    behind them (``staleness_2``).
    """
    name = _bare(word.rpartition(": ")[2])
    singular = f"{name.removesuffix('ies')}y" if name.endswith("ies") else name.removesuffix("s")
    aged = re.sub(r"(?<=staleness)\d+$", "", name)
    for known in (name, singular, aged, _bare(word.rpartition(".")[2])):
        if known in _KNOWN:
            return _KNOWN[known]
    raise UnknownTerm(word, nearest_terms(word))


def nearest_terms(word: str, most: int = 5) -> tuple[Term, ...]:
    """Terms whose names are like a word, the most alike first; those that begin with it or contain it count, too."""
    from difflib import get_close_matches  # only a mistake or a search needs it

    name = _bare(word)
    if not name:
        return ()
    begins = [known for known in _KNOWN if known.startswith(name)]
    alike = get_close_matches(name, _KNOWN, n=2 * most, cutoff=NEAR)
    contains = [known for known in _KNOWN if len(name) > 2 and name in known]
    return tuple(dict.fromkeys(_KNOWN[known] for known in (*begins, *alike, *contains)))[:most]


# A term in paragraphs, for the terminal, the screen and the docs.


def sentence(text: str) -> str:
    """With a capital, unless it begins with code, and a full stop."""
    first = text[:1].upper() if text[:1].isalpha() else text[:1]
    return text and first + text[1:] + ("" if text[-1] in ".!?:" else ".")


def paragraphs(term: Term) -> list[tuple[str, str]]:
    """What there is to say of a term: labels with their texts, the first without a label."""
    older = "is an older name" if len(term.old) == 1 else "are older names"
    found = [
        ("", sentence(term.line)),
        ("healthy", sentence(term.healthy)),
        ("otherwise", sentence(term.otherwise)),
        ("formula", term.formula),
        ("source", term.source),
        ("in JSON", f"{term.key}; {', '.join(term.old)} {older}, deprecated" if term.old else term.key),
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


def search(text: str) -> tuple[Term, ...]:
    """Terms that a text may mean: those named so first, then those whose line has it. Without a text, all."""
    wanted = text.strip().casefold()
    if not wanted:
        return TERMS
    named = nearest_terms(text, len(TERMS))
    return tuple(dict.fromkeys((*named, *(term for term in TERMS if wanted in term.line.casefold()))))


# The names of figures in JSON, CSV and TensorBoard: today's, and older ones that programs may still read.
#
# The database keeps the names under which metrics were recorded first; what leaves the application has today's as well.

_RECORDED = {term.recorded: term.key for term in TERMS if term.kind == "metric" and term.old}
_KEYS = {old: term.key for term in TERMS for old in term.old}
_OTHERS = frozenset({"metrics", "metrics_before", "metrics_after", "parts", "config", "parameters"})
"""Tables within a row whose names are a person's or an environment's own."""


def new_key(name: str) -> str:
    """Today's name of a metric of steps; ``name`` is the one that the database has.

    The metrics of a mixture's component keep its name before theirs.
    """
    component, colon, own = name.rpartition(": ")
    return f"{component}{colon}{_RECORDED.get(own, own)}"


def with_new_keys(metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics under today's names, each that has an older one under that, too."""
    return {key: value for name, value in metrics.items() for key in (new_key(name), name)}


def with_new_names(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON has it: figures that have an older name under both, in rows within it, too."""
    named: dict[str, Any] = {}
    for name, value in row.items():
        own = value
        if isinstance(value, Mapping) and name not in _OTHERS:
            own = with_new_names(value)
        elif isinstance(value, list | tuple) and name not in _OTHERS:
            own = [with_new_names(item) if isinstance(item, Mapping) else item for item in value]
        if name in _KEYS:
            named.setdefault(_KEYS[name], own)
        named[name] = own
    return named
