"""The page about words: those that people meet, from the catalogue that the application uses."""

from __future__ import annotations

from marlaas.app.words.terms import KINDS, Term
from marlaas.app.words.terms.explaining import by_kind

from .markdown import sentence, table

_HEAD = """# Words

`marlaas explain WORD` says the same on the terminal, and `?` and then `w` in the application.
[Metrics](metrics.md) have a page of their own.
"""


def page() -> str:
    """The Markdown of the page."""
    rows = [(term.name, " ".join(_said(term)), ", ".join(term.names)) for term in by_kind()[KINDS["word"]]]
    return f"{_HEAD}\n{table(('Word', 'Means', 'Also called'), rows)}"


def _said(term: Term) -> list[str]:
    healthy = f"Healthy: {term.healthy}" if term.healthy else ""
    otherwise = f"Otherwise: {term.otherwise}" if term.otherwise else ""
    source = f"See {term.source}" if term.source else ""
    return [sentence(text) for text in (term.line, healthy, otherwise, source) if text]
