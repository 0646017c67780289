"""The page about the command line: from the parser itself."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from marlaas.app.cli.main import build_parser

from .markdown import code, sentence, table

_HEAD = """# Verbs

`marlaas VERB --help` says the same on the terminal. Every verb takes `--home FOLDER`, before or after it. Verbs that
read take `--json`. Results go to standard output, messages to standard error.
"""
_EVERYWHERE = {"help", "home", "json"}


def page() -> str:
    """The Markdown of the page."""
    parser = build_parser()
    verbs = list(_leaves(parser))
    parts = [
        _HEAD,
        sentence(parser.epilog or ""),
        table(("Verb", "What it does"), ((_link(verb.prog), verb.description or "") for verb in verbs)),
        "## marlaas",
        sentence(parser.description or ""),
        _arguments(parser),
    ]
    for verb in verbs:
        parts += [f"## {verb.prog}", verb.description or "", f"```text\n{_usage(verb)}\n```", _arguments(verb)]
        parts.append(verb.epilog or "")
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                if not _is_family(verb) or _options(verb):
                    yield verb
                yield from _leaves(verb)


def _is_family(parser: argparse.ArgumentParser) -> bool:
    return any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    hidden = (argparse._SubParsersAction, argparse._HelpAction)
    return [
        action
        for action in parser._actions
        if not isinstance(action, hidden) and action.help != argparse.SUPPRESS and action.dest != "home"
    ]


def _link(prog: str) -> str:
    return f"[`{prog}`](#{prog.replace(' ', '-')})"


def _usage(parser: argparse.ArgumentParser) -> str:
    """The usage on one line, whatever the width of the terminal, and without the options that every verb has."""
    words = " ".join(parser.format_usage().removeprefix("usage: ").split())
    return re.sub(r" \[(-h|--home FOLDER|--json)\]", "", words)


def _arguments(parser: argparse.ArgumentParser) -> str:
    rows = [(_name(action), sentence(_help(action))) for action in _options(parser) if action.dest not in _EVERYWHERE]
    return table(("Argument", "Meaning"), rows) if rows else ""


def _name(action: argparse.Action) -> str:
    shown = action.metavar or action.dest.upper()
    value = " ".join(shown) if isinstance(shown, tuple) else shown
    if action.choices:
        value = "\u2009|\u2009".join(map(str, action.choices))
    if not action.option_strings:
        return code(value)
    words = ", ".join(action.option_strings)
    return code(words if action.nargs == 0 else f"{words} {value}")


def _help(action: argparse.Action) -> str:
    """The help of an argument, its placeholders filled in."""
    given = {name: getattr(action, name) for name in ("default", "metavar", "dest", "const")}
    return (action.help or "") % given
