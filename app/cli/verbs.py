"""What all verbs share in the parser: the options ``--home`` and ``--json``, and how a verb is added.

A verb module has ``register``, which adds its arguments, and functions that take the parsed arguments and return an
exit code. They import what they need when they run, so that ``--help`` costs nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias

from marlaas.engine.home import Home, check_folder, check_home, find_home

from .. import output

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
TASK = "a task's number or name"
"""The help of an argument that means a task."""
ADAPTER = "a task's number or name, or a version's name: 17, 17@12, where a task trains several policies 17/player@best"
"""The help of an argument that means an adapter."""
_WHOLE = 100_000
"""Cells of a line of help that is never broken."""
Run = Callable[[argparse.Namespace], int]


class CommandParser(argparse.ArgumentParser):
    """Says in one sentence what is wrong, and what is near to a verb or an option that there is not.

    Its help, too, can be plain.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if output.is_plain():
            self.formatter_class = partial(argparse.HelpFormatter, width=_WHOLE)
            self.color = False  # from Python 3.14 on

    def format_help(self) -> str:
        """The help, for ears where lines are."""
        if not output.is_plain():
            return super().format_help()
        from ..spoken import spoken

        return f"{spoken(super().format_help().rstrip())}\n"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        verbs = action.choices if isinstance(action, argparse._SubParsersAction) else None
        if action.choices is None or value in action.choices:
            return
        if verbs is None:
            from .usage import no_choice

            self._refuse(*no_choice(action, value))
        from .usage import near_verb

        meant = near_verb(str(value), verbs)
        output.complain(f"There is no verb {value!r}.", f"{meant} `{self.prog} --help` lists the verbs.".lstrip())
        self.exit(output.USAGE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and refuse at once what is not known: only this parser knows what its verb takes."""
        words = list(sys.argv[1:] if args is None else args)
        self._refuse_unknown([word for word in self._before_a_verb(words) if not self._knows(word)][:1], words)
        found, extra = super().parse_known_args(words, namespace)
        self._refuse_unknown(extra, words)
        return found, extra

    def _before_a_verb(self, words: Sequence[str]) -> Iterable[str]:
        """The long options that stand before a verb: a wrong one must not be taken for the verb's."""
        if not any(isinstance(action, argparse._SubParsersAction) for action in self._actions):
            return
        before = ""
        for word in words:
            takes = self._option_string_actions.get(before)
            if not word.startswith("-") and (takes is None or takes.nargs == 0):
                return
            if word.startswith("--"):
                yield word
            before = word

    def _knows(self, word: str) -> bool:
        return any(name.startswith(word.partition("=")[0]) for name in self._option_string_actions)

    def _refuse_unknown(self, extra: Sequence[str], words: Sequence[str]) -> None:
        if extra:
            from .usage import unknown

            self._refuse(*unknown(self.prog, self._actions, extra[0], words[words.index(extra[0]) + 1 :]))

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one sentence, and end."""
        from .usage import sentence

        self._refuse(sentence(message))

    def _refuse(self, says: str, meant: str = "") -> NoReturn:
        output.complain(says, f"{meant} `{self.prog} --help` shows what it takes.".lstrip())
        sys.exit(output.USAGE)


def add_verb(
    verbs: Verbs, name: str, run: Run, summary: str, *, json: bool = False, epilog: str | None = None
) -> argparse.ArgumentParser:
    """Add a verb; ``json`` gives it the option of that name."""
    parser = verbs.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=epilog)
    parser.set_defaults(run=run)
    add_home(parser)
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    return parser


def add_family(verbs: Verbs, name: str, summary: str) -> Verbs:
    """Add a verb that has verbs of its own; alone it prints its help."""
    parser = verbs.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    add_home(parser)

    def help_and_fail(args: argparse.Namespace) -> int:
        parser.print_help()
        return 2

    parser.set_defaults(run=help_and_fail)
    return parser.add_subparsers(title="verbs", metavar="VERB")


def add_home(parser: argparse.ArgumentParser, **more: Any) -> None:
    """Add ``--home`` and ``--plain``, which may stand before the verb or after it."""
    parser.add_argument(
        "--home", metavar="FOLDER", default=argparse.SUPPRESS, help="the state folder (else MARLAAS_HOME)", **more
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        default=argparse.SUPPRESS,
        help="lines of words for screen readers: no columns, no signs, nothing drawn anew",
    )


def home_of(args: argparse.Namespace) -> Home:
    """The home that the arguments mean.

    Raises ``ConfigError`` where ``--home`` names a folder that is none: it is mistyped, and must not become one. The
    default place, also that of ``MARLAAS_HOME``, need not be a home yet.
    """
    home = place_of(args)
    if home.root == find_home().root:
        check_folder(home)
    else:
        check_home(home)
        output.mean_home(str(home.root))
    return home


def place_of(args: argparse.Namespace) -> Home:
    """The home that the arguments mean, for a verb that makes one: nothing need be there."""
    return find_home(getattr(args, "home", None))


def task_word(text: str) -> int | str:
    """An argument that is a task's number or name; a name of digits is a number."""
    if not text.isascii() or not text.isdigit():
        if text.strip():
            return text
        raise argparse.ArgumentTypeError("a task has a number or a name; `marlaas list` shows them")
    if len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a task's number; `marlaas list` shows them")
    return int(text)
