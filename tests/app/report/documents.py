"""Documents that tests write."""

from __future__ import annotations

from marlaas.app.chart.plot import Curve, Point
from marlaas.app.report.telling import Chart, Code, Document, Line, Piece, Section, Table, Text, Transcript


def document(words: str) -> Document:
    """Every kind of piece, with the same words in each place."""
    curve = Curve([1, 2, 3], [0.1, 0.2, 0.4], [0.0, 0.1, 0.2], [0.2, 0.3, 0.9])
    pieces: list[Piece] = [
        Text(words),
        Table((words, "n"), [(words, "1"), ("", words)], ("n",)),
        Chart("one", words, words, [Line(words, curve)], [Point(2, 0.5, 0.1)], 0.3, unit=True, large=True),
        Chart("two", words, words, [Line(words, curve), Line(words, Curve([1], [5.0], place=1))]),
        Transcript(words, [("user", words), (words, "x")]),
        Code(words, words, "toml"),
    ]
    return Document(words, words, [Section(words, pieces), Section(words, (), 3)])
