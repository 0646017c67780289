"""``completion``: what a shell needs to complete marlaas's words, tasks and environments with the tab key.

shtab makes the script from the parser; what only a home knows the script asks of this verb, with ``--words``.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .. import output
from ..words.format import line
from .verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from ..reading.home_reader import HomeReader

SHELLS = ("bash", "zsh", "fish")
KINDS = ("tasks", "environments", "tenants", "families", "terms", "keys")
FOLDERS = ("DIR", "FOLDER")
"""Metavars of arguments that are folders."""


def register(verbs: Verbs) -> None:
    """Add the verb."""
    completion = add_verb(
        verbs,
        "completion",
        run,
        "print the script with which a shell completes commands, task numbers and names",
        epilog="In ~/.bashrc: source <(marlaas completion bash). In ~/.zshrc, after compinit:"
        " source <(marlaas completion zsh). For fish: marlaas completion fish >"
        " ~/.config/fish/completions/marlaas.fish.",
    )
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", nargs="?", help=", ".join(SHELLS))
    completion.add_argument("--words", choices=KINDS, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Print a script, or the words of a kind."""
    from marlaas.engine.errors import ConfigError

    if args.words:
        return _print_words(args)
    if args.shell is None:
        raise ConfigError("No shell is given.", f"Known are {', '.join(SHELLS)}: `marlaas completion bash`.")
    import shtab

    from .main import build_parser

    parser = build_parser()
    _mark(parser, ())
    output.result(shtab.complete(parser, shell=args.shell, preamble=_PREAMBLES.get(args.shell, "")))
    return output.OK


def _print_words(args: argparse.Namespace) -> int:
    """Print one word a line; nothing where the home cannot be read, because no one wants an error from the tab key."""
    from marlaas.engine.errors import MarlaasError

    from ..reading.opening import reading
    from ..words.terms import TERMS

    if args.words == "terms":
        for term in TERMS:
            output.result(term.name.replace(" ", "-"))
        return output.OK
    try:
        with reading(home_of(args)) as reader:
            for word in dict.fromkeys(_words(args.words, reader) if reader else ()):
                output.result(word)
    except MarlaasError:
        return output.FAILED
    return output.OK


def _words(kind: str, reader: HomeReader) -> Iterator[str]:
    """The words that a shell can take as they are: others would have to be quoted, differently in each shell."""
    if kind == "tasks":
        known = reader.known_tasks()
        yield from (str(task.id) for task in reversed(known))
        times = Counter(task.name for task in known)
        names = [name for name, count in times.items() if count == 1 and not name.isdigit()]
    elif kind == "environments":
        names = [name for row in reader.environments() for name in (row.name, row.name.rpartition("/")[2])]
    elif kind == "keys":
        names = [key.prefix for key in reader.api_keys() if key.revoked is None]
    else:
        names = [task.tenant if kind == "tenants" else task.family for task in reader.known_tasks()]
    yield from (
        name for name in names if name and all(c.isalnum() or c in "_./-+" for c in line(name)) and name == line(name)
    )


def _mark(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> None:
    """Tell shtab what completes each argument, judged by the argument's name."""
    from ..lists.filters import FIELDS, STATES

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
    if metavar.startswith(("ID", "TASK")):
        return _asked("tasks")
    if metavar == "TERM":
        return _asked("terms")
    if dest == "tenant" or (path == ("tenants", "set") and dest == "name"):
        return _asked("tenants")
    if path == ("api", "key", "revoke") and dest == "prefix":
        return _asked("keys")
    if dest == "family":
        return _asked("families")
    if path[:1] == ("env",) and path != ("env", "new") and dest == "name":
        return _asked("environments")
    if metavar in FOLDERS:
        return shtab.DIRECTORY
    return shtab.FILE if metavar == "FILE" else {}


def _asked(kind: str) -> dict[str, str]:
    function = f"_marlaas_{kind}"
    return {"bash": function, "zsh": function, "fish": f"(marlaas completion --words {kind} 2>/dev/null)"}


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
