"""The page about metrics: what each means and what is normal, from the words that the application itself uses."""

from __future__ import annotations

from marlaas.app.words.metrics import known

from .markdown import code, sentence, table

_HEAD = """# Metrics

Each step of a policy has these. `marlaas show ID` prints the newest, `marlaas metrics ID` all of them, and the task
view charts them. Values that an environment logs stand beside them under their own names.
"""


def page() -> str:
    """The Markdown of the page."""
    rows = [
        (words.title, code(name), sentence(words.meaning), sentence(words.normal)) for name, words in known().items()
    ]
    return f"{_HEAD}\n{table(('On screen', 'Name', 'Meaning', 'What is normal'), rows)}"
