"""The page about metrics: what each means and what to do about it, from the catalogue that the application uses."""

from __future__ import annotations

from collections.abc import Iterable

from marlaas.app.words.terms import TERMS, Kind, Term

from .markdown import code, sentence, table

_HEAD = """# Metrics

`marlaas explain NAME` says the same on the terminal, and `enter` on a metric in the task view. Names in bold say first
how a task is doing; the others help to find out why. JSON, CSV and TensorBoard have the names under *In JSON*. An older
name in brackets is deprecated: JSON and CSV still have it, beside the new one.
"""
_PARTS: tuple[tuple[Kind, str, str], ...] = (
    (
        "metric",
        "Of a step",
        "`marlaas show ID` prints the newest, `marlaas metrics ID` all of them, and the task view charts them. Those of"
        " a mixture's component have its name before theirs. `staleness_0`, `staleness_1` and so on count the groups of"
        " a step by their age in versions.",
    ),
    ("score", "Of an evaluation", "[What a score says](../guides/scores.md) has the rules."),
    ("machine", "Of the machine", "`marlaas stats` prints them, and the engine view shows them."),
)


def page() -> str:
    """The Markdown of the page."""
    parts = [_HEAD]
    for kind, title, about in _PARTS:
        terms = [term for term in TERMS if term.kind == kind]
        parts += [
            f"## {title}\n\n{about}\n",
            table(("Name", "In JSON", "Meaning", "What is healthy", "Otherwise"), map(_row, terms)),
        ]
    parts += ["## How they are computed\n", table(("Name", "Formula", "Source"), _computed())]
    return "\n".join(parts)


def _row(term: Term) -> tuple[str, ...]:
    name = f"**{term.name}**" if term.important else term.name
    older = f" ({', '.join(map(code, term.old))})" if term.old else ""
    said = (term.line, term.healthy, term.otherwise)
    return name, code(term.key) + older, *map(sentence, said)


def _computed() -> Iterable[tuple[str, ...]]:
    for term in TERMS:
        if term.kind != "word" and (term.formula or term.source):
            yield term.name, term.formula, term.source
