"""``explain``, ``keys`` and ``completion``."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict

from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader

from .. import output
from ..lists.filters import FIELDS, STATES
from ..reading import reading
from ..text.format import line
from ..text.terms import TERMS, UnknownTerm, by_kind, find_term, heading, paragraphs, sentence, term_json
from ..tui.frame.preferences import preferences_file, read_preferences
from .main import build_parser
from .parser import Verbs, add_verb, arg, place_of

_WIDEST = 100


def run_explain(home: Home, args: argparse.Namespace) -> int:
    """Print one term or metric, or the list of all."""
    name = " ".join(args.term)
    if not name.strip():
        if args.json:
            return output.result_json([term_json(term) for term in TERMS])
        for kind, terms in by_kind().items():
            output.result_table((f"{kind.upper()}", "MEANS"), [(term.name, sentence(term.line)) for term in terms])
            output.result("")
        return output.done("`marlaas explain TERM` says more of one.")
    try:
        term = find_term(name)
    except UnknownTerm as error:
        near = ", ".join(f"`marlaas explain {term.name}`" for term in error.near[:3])
        hint = f"Did you mean {near}?" if near else "`marlaas explain` lists all."
        raise ConfigError(f"There is no term {name!r}.", hint) from error
    if args.json:
        return output.result_json(term_json(term))
    output.result(heading(term))
    width = min(_WIDEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else _WIDEST
    for label, text in paragraphs(term):
        if output.is_plain():
            output.fact(label or "means", text, 0)
            continue
        begin = f"  {label:<12}" if label else "  "
        for row in textwrap.wrap(text, width, initial_indent=begin, subsequent_indent=" " * len(begin)):
            output.result(row)
    return output.OK


def run_keys(home: Home, args: argparse.Namespace) -> int:
    """Print each key with its configurable name."""
    from ..keymap import known_keys

    chosen = read_preferences().keys
    keys = known_keys()
    if args.json:
        return output.result_json([asdict(key) | {"keys": chosen.get(key.name, key.keys)} for key in keys])
    rows = [[chosen.get(key.name, key.keys), key.what, key.name] for key in keys]
    output.result_table(["KEY", "DOES", "NAME"], rows)
    return output.done(f"Others are set under [keys] in {preferences_file()}.")


# ``completion``: shtab makes the script from the parser; the script asks this verb (``--words``) for a home's names.

SHELLS = ("bash", "zsh", "fish")
KINDS = ("tasks", "environments", "tenants", "families", "terms", "keys")


def run_completion(home: Home, args: argparse.Namespace) -> int:
    """Print a script, or the words of a kind."""

    if args.words:
        return _print_words(home, args.words)
    if args.shell is None:
        raise ConfigError("No shell is given.", f"Known are {', '.join(SHELLS)}: `marlaas completion bash`.")
    import shtab

    parser = build_parser()
    _mark(parser, ())
    return output.result(shtab.complete(parser, shell=args.shell, preamble=_PREAMBLES.get(args.shell, "")))


def _print_words(home: Home, kind: str) -> int:
    """Nothing for an unreadable home: the tab key must print no error."""
    try:
        with reading(home) as reader:
            for word in dict.fromkeys(_words(kind, reader)):
                output.result(word)
    except MarlaasError:
        return output.FAILED
    return output.OK


def _words(kind: str, reader: Reader | None) -> list[str]:
    tasks = reader.known_tasks() if reader else []
    match kind:
        case "terms":
            return [term.name.replace(" ", "-") for term in TERMS]
        case "tasks":
            times = Counter(task.name for task in tasks)
            numbers = [str(task.id) for task in reversed(tasks)]
            names = numbers + [name for name, count in times.items() if count == 1 and not name.isdigit()]
        case "environments":
            rows = reader.environments() if reader else []
            names = [name for row in rows for name in (row.name, row.name.rpartition("/")[2])]
        case "keys":
            names = [key.prefix for key in (reader.api_keys() if reader else ()) if key.revoked is None]
        case _:
            names = [task.tenant if kind == "tenants" else task.family for task in tasks]
    return [name for name in names if name and all(c.isalnum() or c in "_./-+" for c in name) and name == line(name)]


def _mark(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> None:
    """Tell shtab what completes each argument, judged by its name."""

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, verb in action.choices.items():
                _mark(verb, (*path, name))
        elif path == ("list",) and action.dest in ("state", "sort"):
            action.choices = STATES if action.dest == "state" else FIELDS
        elif complete := _completed_by(action, path):
            action.complete = complete  # type: ignore[attr-defined]


def _completed_by(action: argparse.Action, path: tuple[str, ...]) -> Mapping[str, object]:
    import shtab

    metavar, dest = str(action.metavar or ""), action.dest
    kinds = {
        "tasks": metavar.startswith(("ID", "TASK")),
        "terms": metavar == "TERM",
        "tenants": dest == "tenant" or (path == ("tenants", "set") and dest == "name"),
        "keys": path == ("api", "key", "revoke") and dest == "prefix",
        "families": dest == "family",
        "environments": path[:1] == ("env",) and path != ("env", "new") and dest == "name",
    }
    for kind, asked in kinds.items():
        if asked:
            function = f"_marlaas_{kind}"
            return {"bash": function, "zsh": function, "fish": f"(marlaas completion --words {kind} 2>/dev/null)"}
    return shtab.DIRECTORY if metavar in ("DIR", "FOLDER") else shtab.FILE if metavar == "FILE" else {}


_BASH = "\n".join(
    f"""_marlaas_{kind}() {{
  compgen -W "$(marlaas completion --words {kind} 2>/dev/null)" -- "$1"
}}"""
    for kind in KINDS
)
_ZSH = "\n".join(
    f"""_marlaas_{kind}() {{
  compadd -V {kind} -- ${{(f)"$(marlaas completion --words {kind} 2>/dev/null)"}}
}}"""
    for kind in KINDS
)
_PREAMBLES = {"bash": _BASH, "zsh": _ZSH}
"""Functions that the scripts call; fish calls the program itself."""


def register(verbs: Verbs) -> None:
    """Add the verbs."""
    add_verb(
        verbs,
        "explain",
        run_explain,
        "say what a word or a metric means; without one, list all",
        arg("term", nargs="*", metavar="TERM", help="a word as a screen, a table or JSON has it: drift"),
        json=True,
        home=place_of,
    )
    add_verb(
        verbs,
        "keys",
        run_keys,
        "list the keys of the application, and how to change them",
        json=True,
        home=place_of,
        epilog="To change one, name it in app.toml in your folder for settings: [keys], then \"task.pause\" = 'f5'.",
    )
    add_verb(
        verbs,
        "completion",
        run_completion,
        "print the script with which a shell completes commands, task numbers and names",
        arg("shell", choices=SHELLS, metavar="SHELL", nargs="?", help=", ".join(SHELLS)),
        arg("--words", choices=KINDS, help=argparse.SUPPRESS),
        home=place_of,
        epilog="In ~/.bashrc: source <(marlaas completion bash). In ~/.zshrc, after compinit:"
        " source <(marlaas completion zsh). For fish: marlaas completion fish >"
        " ~/.config/fish/completions/marlaas.fish.",
    )
