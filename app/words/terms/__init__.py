"""The catalogue: every word and metric that people meet, once. Screens, verbs and the docs take their words from it.

Pure, and standard library only.
"""

from __future__ import annotations

from .catalogue import TERMS, UnknownTerm, find_term, nearest_terms, new_key, with_new_keys
from .term import Kind, Term

__all__ = ["TERMS", "Kind", "Term", "UnknownTerm", "find_term", "nearest_terms", "new_key", "with_new_keys"]
