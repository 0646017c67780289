"""The catalogue: every word and metric that people meet, once. Screens, verbs and the docs take their words from it.

Pure, and standard library only.
"""

from __future__ import annotations

from .catalogue import TERMS, UnknownTerm, find_term, nearest_terms
from .json_names import new_key, with_new_keys, with_new_names
from .term import KINDS, Kind, Term

__all__ = [
    "KINDS",
    "TERMS",
    "Kind",
    "Term",
    "UnknownTerm",
    "find_term",
    "nearest_terms",
    "new_key",
    "with_new_keys",
    "with_new_names",
]
