"""All terms, and how one is found by what somebody typed."""

from __future__ import annotations

from . import glossary, glossary as evaluation, glossary as machine, glossary as outside, metrics
from .term import Term

TERMS: tuple[Term, ...] = (
    *metrics.LEARNING_TERMS,
    *metrics.SAMPLING_TERMS,
    *metrics.BATCH_TERMS,
    *evaluation.EVALUATION_TERMS,
    *machine.MACHINE_TERMS,
    *glossary.GLOSSARY_TERMS,
    *outside.OUTSIDE_TERMS,
)
"""Metrics of steps come first, in the order in which screens list them."""
NEAR = 0.6
"""How alike a word must be to be proposed, 0 to 1: one wrong letter in three."""


class UnknownTerm(LookupError):
    """No term has that name."""

    def __init__(self, word: str, near: tuple[Term, ...]) -> None:
        super().__init__(word)
        self.word, self.near = word, near


def find_term(word: str) -> Term:
    """The term of that name, whether people or programs call it so. Raises ``UnknownTerm`` with the nearest.

    Case, spaces, hyphens and underscores do not count. A metric of a mixture has its component before it
    (``sums: epoch``), and counts of groups by age their age behind them (``staleness_2``).
    """
    wanted = _bare(word.rpartition(": ")[2])
    key = _bare(word.rpartition(".")[2])  # of a task file: train.learning_rate
    found = _KNOWN.get(wanted) or _KNOWN.get(_singular(wanted)) or _aged(wanted) or _KNOWN.get(key)
    if found is None:
        raise UnknownTerm(word, nearest_terms(word))
    return found


def nearest_terms(word: str, most: int = 5) -> tuple[Term, ...]:
    """Terms whose names are like a word, the most alike first; those that begin with it or contain it count, too."""
    from difflib import get_close_matches

    wanted = _bare(word)
    if not wanted:
        return ()
    begins = [name for name in _KNOWN if name.startswith(wanted)]
    alike = get_close_matches(wanted, _KNOWN, n=2 * most, cutoff=NEAR)
    contains = [name for name in _KNOWN if len(wanted) > 2 and wanted in name]
    return tuple(dict.fromkeys(_KNOWN[name] for name in (*begins, *alike, *contains)))[:most]


def _aged(wanted: str) -> Term | None:
    """Counts of groups by age are of staleness."""
    return (
        _KNOWN["staleness"] if wanted.startswith("staleness") and wanted.removeprefix("staleness").isdigit() else None
    )


def _singular(wanted: str) -> str:
    return wanted.removesuffix("s") if not wanted.endswith("ies") else f"{wanted.removesuffix('ies')}y"


def _bare(word: str) -> str:
    """A word without what people may leave out."""
    return "".join(character for character in word.casefold() if character.isalnum() or character in "±@")


def _by_name() -> dict[str, Term]:
    """Every term by each of its names; its own name goes before another term's further names."""
    known = {_bare(term.name): term for term in TERMS}
    for term in TERMS:
        for name in (term.key, *term.old, *term.names):
            if name:
                known.setdefault(_bare(name), term)
    return known


_KNOWN = _by_name()
