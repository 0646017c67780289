"""The page about keys: all of the application's, by the place in which they act."""

from __future__ import annotations

from functools import cache

from marlaas.app.keymap import Key, known_keys

from .markdown import code, table

PLACES = {
    "Everywhere": ("app", "view"),
    "Lists and tables": ("list", "table", "filter"),
    "Queue": ("queue",),
    "Task": ("task", "metrics", "multiples", "chart", "configuration", "findings", "rates"),
    "Rollouts": ("rollouts", "pane"),
    "Environments": ("environments", "detail", "new"),
    "Adapters": ("adapters", "export", "exported"),
    "Chat": ("chat", "manner"),
    "Engine": ("engine",),
    "Logs": ("logs",),
    "API": ("api",),
    "Add a task": ("submit",),
    "The guide of an empty home": ("guide",),
    "Dialogs": ("reading", "ask", "choose", "confirm", "explain", "help"),
}
"""Titles of the page, each with the first words of its keys' names."""
SPELLED = {
    "asterisk": "*",
    "colon": ":",
    "equals_sign": "=",
    "escape": "esc",
    "left_square_bracket": "[",
    "minus": "-",
    "plus": "+",
    "question_mark": "?",
    "right_square_bracket": "]",
    "slash": "/",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "shift+left": "shift+←",
    "shift+right": "shift+→",
}
"""Keys as keyboards and these documents have them, by Textual's names."""

_HEAD = """# Keys

Written from the program; `?` in the application shows those of the view that you are in. Arrows and the keys of a
terminal, such as `home` and `end`, move wherever there is something to move in. `ctrl+p` opens the palette, like `:`.
To change a key, name it in [app.toml](../guides/application.md#looks).
"""


def page() -> str:
    """The Markdown of the page."""
    parts = [_HEAD]
    for title, scopes in PLACES.items():
        rows = [(" ".join(map(code, spelled(key))), key.what, code(key.name)) for key in keys_of(scopes) if key.what]
        parts.append(f"## {title}\n\n{table(('Key', 'Does', 'Name'), rows)}")
    return "\n".join(parts)


def keys_of(scopes: tuple[str, ...]) -> list[Key]:
    """All keys whose names begin with one of the words."""
    return [key for scope in scopes for key in _known() if key.name.partition(".")[0] == scope]


def spelled(key: Key) -> list[str]:
    """The keys as a person would write them."""
    return [SPELLED.get(name, name) for name in key.keys.split(",")]


@cache
def _known() -> list[Key]:
    return known_keys()
