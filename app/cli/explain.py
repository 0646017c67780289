"""``explain``: what a word or a metric means, what is healthy, and what to do where it is not."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap

from .. import output
from .verbs import Verbs, add_verb

_WIDEST = 100
"""Cells of a line of text: longer ones are hard to read."""


def register(verbs: Verbs) -> None:
    """Add the verb."""
    explain = add_verb(verbs, "explain", run, "say what a word or a metric means; without one, list all", json=True)
    explain.add_argument("term", nargs="*", metavar="TERM", help="a word as a screen, a table or JSON has it: drift")


def run(args: argparse.Namespace) -> int:
    """Print one term, or the list of all."""
    from marlaas.engine.errors import ConfigError

    from ..words.terms import TERMS, UnknownTerm, find_term
    from ..words.terms.explaining import by_kind, heading, paragraphs, sentence, term_json

    wanted = " ".join(args.term)
    if not wanted.strip():
        if args.json:
            output.result_json([term_json(term) for term in TERMS])
            return output.OK
        for kind, terms in by_kind().items():
            output.result_table((f"{kind.upper()}", "MEANS"), [(term.name, sentence(term.line)) for term in terms])
            output.result("")
        output.talk("`marlaas explain TERM` says more of one.")
        return output.OK
    try:
        term = find_term(wanted)
    except UnknownTerm as error:
        near = ", ".join(f"`marlaas explain {term.name}`" for term in error.near[:3])
        hint = f"Did you mean {near}?" if near else "`marlaas explain` lists all."
        raise ConfigError(f"There is no term {wanted!r}.", hint) from error
    if args.json:
        output.result_json(term_json(term))
        return output.OK
    output.result(heading(term))
    width = min(_WIDEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else _WIDEST
    for label, text in paragraphs(term):
        if output.is_plain():
            output.fact(label or "means", text, 0)
            continue
        begin = f"  {label:<12}" if label else "  "
        for line in textwrap.wrap(text, width, initial_indent=begin, subsequent_indent=" " * len(begin)):
            output.result(line)
    return output.OK
