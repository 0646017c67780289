"""What all verbs share: the parser, its options and errors, arguments that mean tasks, how a verb is added.

A module of verbs has ``register``, which adds them, and a function for each, which takes the parsed arguments and
returns an exit code. What loads numpy, Textual or asyncio is imported inside these functions.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

from marlaas.engine.home.paths import Home, check_folder, check_home, find_home

from .. import output

if TYPE_CHECKING:
    from marlaas.engine.store.queries.reader import Reader
    from marlaas.engine.store.rows import TaskRow


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
            self._refuse(*no_choice(action, value))

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
            self._refuse(*unknown(self.prog, self._actions, extra[0], words[words.index(extra[0]) + 1 :]))

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one sentence, and end."""

        self._refuse(sentence(message))

    def _refuse(self, says: str, meant: str = "") -> NoReturn:
        output.complain(says, f"{meant} `{self.prog} --help` shows what it takes.".lstrip())
        sys.exit(output.USAGE)


Add = Callable[[argparse.ArgumentParser], object]
"""Adds one argument, or several, to the parser of a verb."""


def arg(*names: str, **options: Any) -> Add:
    """One argument or option, as argparse takes it."""
    return lambda parser: parser.add_argument(*names, **options)


def one_of(*arguments: Add) -> Add:
    """Options of which at most one may be given."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = cast("argparse.ArgumentParser", parser.add_mutually_exclusive_group())
        for argument in arguments:
            argument(group)

    return add


def add_verb(
    verbs: Verbs, name: str, run: Run, summary: str, *arguments: Add, json: bool = False, epilog: str | None = None
) -> argparse.ArgumentParser:
    """Add a verb with its arguments; ``json`` gives it the option of that name."""
    parser = verbs.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=epilog)
    parser.set_defaults(run=run)
    add_home(parser)
    for argument in (*arguments, *([_JSON] if json else [])):
        argument(parser)
    return parser


_JSON = arg("--json", action="store_true", help="print JSON on standard output")


def add_family(verbs: Verbs, name: str, summary: str, run: Run | None = None, json: bool = False) -> Verbs:
    """Add a verb that has verbs of its own; without one of them it does ``run``, or prints its help."""
    parser = add_verb(verbs, name, run or (lambda args: _help_and_fail(parser)), summary, json=json)
    return parser.add_subparsers(title="verbs", metavar="VERB")


def _help_and_fail(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return output.USAGE


def add_home(parser: argparse.ArgumentParser, **more: Any) -> None:
    """Add ``--home`` and ``--plain``, which may stand before the verb or after it."""
    parser.add_argument(
        "--home", metavar="FOLDER", default=argparse.SUPPRESS, help="the state folder (else MARLAAS_HOME)", **more
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        default=argparse.SUPPRESS,
        help="lines of words for screen readers: no columns, no signs",
    )


def home_of(args: argparse.Namespace) -> Home:
    """The home that the arguments mean.

    Raises ``ConfigError`` if ``--home`` names a folder that is none: it is mistyped, and must not become one. The
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


# What is wrong with a command line, in one sentence: argparse's words, and its list of all options, say it in many.

_SENTENCES = (
    (r"the following arguments are required: ([^,]+)", r"\1 is missing"),
    (r"the following arguments are required: (.+)", r"\1 are missing"),
    (r"one of the arguments (.+) is required", r"one of \1 is missing"),
    (r"argument (\S+): not allowed with argument (\S+)", r"\1 and \2 exclude each other"),
    (r"argument (\S+): expected (?:at least )?one argument", r"\1 needs a value"),
    (r"argument (\S+): expected (\d+) arguments", r"\1 needs \2 values"),
    (r"argument (\S+): ignored explicit argument (.+)", r"\1 takes no value, but has \2"),
    (r"argument (\S+): invalid int value: (.+)", r"\1 takes a whole number, not \2"),
    (r"argument (\S+): invalid float value: (.+)", r"\1 takes a number, not \2"),
    (r"ambiguous option: (\S+) could match (.+)", r"\1 may mean \2"),
    (r"argument [A-Z]\S*: (.+)", r"\1"),
    (r"argument (\S+): (.+)", r"\1: \2"),
)
"""What argparse says, and what we say."""


def sentence(message: str) -> str:
    """What argparse found wrong, as one sentence."""
    for pattern, words in _SENTENCES:
        if found := re.fullmatch(pattern, message, re.DOTALL):
            message = found.expand(words)
            break
    return _capital(message.rstrip(".")) + "."


def near_verb(said: str, verbs: Mapping[str, argparse.ArgumentParser]) -> str:
    """The verb that is meant by one that there is not: one of the same name in a family, else one that looks alike."""
    inner = [f"{name} {said}" for name, parser in verbs.items() if said in _verbs_of(parser)]
    return _meant(said, list(verbs), inner[:1])


def _verbs_of(parser: argparse.ArgumentParser) -> Collection[str]:
    families = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return [verb for choices in families for verb in choices]


def no_choice(action: argparse.Action, value: object) -> tuple[str, str]:
    """(what is wrong with a value that an option does not have, which is meant)."""
    choices = [str(choice) for choice in action.choices or ()]
    says = f"{name_of(action)} is one of {', '.join(choices)}, not {str(value)!r}."
    return says, _meant(str(value), choices)


def unknown(prog: str, actions: Sequence[argparse.Action], word: str, rest: Sequence[str]) -> tuple[str, str]:
    """(what is wrong with a word that a verb does not take, what is meant); ``actions``: what it takes; ``rest``: the
    words behind it."""
    if not word.startswith("-"):
        return f"{word!r} is one word too many for `{prog}`.", ""
    option, _, value = word.partition("=")
    value = value or next((one for one in rest[:1] if not one.startswith("-")), "")
    options = [name for action in actions for name in action.option_strings if name.startswith("--")]
    placed = {str(action.dest): action for action in actions if not action.option_strings and action.metavar}
    says = f"`{prog}` has no option {option!r}."
    if near := _near(option.lstrip("-"), list(placed), 0.8):
        return says, f"Write the {near[0]} without it: `{prog} {value or name_of(placed[near[0]])}`."
    return says, _meant(option, options)


def name_of(action: argparse.Action) -> str:
    """An option as one writes it, or the name of what has a place."""
    return max(action.option_strings, key=len, default="") or str(action.metavar or action.dest)


def _near(word: str, names: Sequence[str], cutoff: float = 0.6) -> list[str]:
    from difflib import get_close_matches  # only a mistake needs it

    return get_close_matches(word, names, n=1, cutoff=cutoff)


def _meant(word: str, names: Sequence[str], near: Sequence[str] = ()) -> str:
    near = near or _near(word, names)
    return f"Did you mean {near[0]!r}?" if near else ""


def _capital(text: str) -> str:
    return text if text.startswith("-") else text[:1].upper() + text[1:]


# Which tasks a verb is about: their numbers or names, or the members of a sweep by its name.


def add_task(parser: argparse.ArgumentParser, about: str = TASK, *, optional: bool = False) -> None:
    """Add one task, by number or name."""
    parser.add_argument("task", type=task_word, nargs="?" if optional else None, metavar="TASK", help=about)


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """Add numbers and names of tasks, ``--family`` and ``--tenant``."""
    parser.add_argument("tasks", type=task_word, nargs="*", metavar="TASK", help="numbers or names of tasks")
    parser.add_argument(
        "--family", action="append", default=[], metavar="NAME", help="all tasks of the newest sweep of that name"
    )
    parser.add_argument("--tenant", metavar="NAME", help="whose sweep, where several tenants have one of that name")


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add ``--policy``."""
    parser.add_argument(
        "--policy", metavar="NAME", help="of this policy, where a task trains several (default: the first of its file)"
    )


def policy_of(args: argparse.Namespace, task: TaskRow) -> str | None:
    """The policy that ``--policy`` names, if any. Raises ``ConfigError`` for one that the task does not train."""
    from marlaas.engine.errors import ConfigError
    from marlaas.engine.spec.task import ONLY
    from marlaas.engine.spec.validation import nearest

    wanted: str | None = args.policy
    trained = task.trained or (ONLY,)
    if wanted is None or wanted in trained:
        return wanted
    raise ConfigError(f"Task {task.id} trains no policy {wanted!r}.", nearest(wanted, trained))


def adapter_of(args: argparse.Namespace) -> tuple[str, str | None]:
    """Whose versions are meant and which, from 17/player@best or from ``--version``; None: it is not said which.

    Raises ``ConfigError`` if both say it.
    """
    from marlaas.engine.errors import ConfigError

    adapter, _, which = str(args.adapter).partition("@")
    if which and args.version is not None:
        raise ConfigError(f"{args.adapter!r} says which version, and so does --version.", "Leave one of them out.")
    return adapter, which or args.version


def faces(args: argparse.Namespace, task: TaskRow) -> list[tuple[str, TaskRow]]:
    """The policy that was named, or each that a task trains, with the task's row as that policy sees it.

    The name is empty if a task has only one policy. Raises as ``policy_of``.
    """
    wanted = policy_of(args, task)
    own = (policy for policy in task.policies if policy.trained and wanted in (None, policy.name))
    return [(policy.name, task.seen_by(policy)) for policy in own] or [("", task)]


def chosen(args: argparse.Namespace, reader: Reader | None) -> list[int]:
    """The numbers of the tasks that exist, each once. Raises ``ConfigError`` or ``UnknownTask``."""
    from marlaas.engine.errors import ConfigError

    if not args.tasks and not args.family:
        raise ConfigError("No task is given.", "Give numbers or names, or a sweep's name with --family.")
    numbers = named(args, reader)
    for name in args.family:
        numbers += _members(reader, name, args.tenant)
    return list(dict.fromkeys(numbers))


def named(args: argparse.Namespace, reader: Reader | None) -> list[int]:
    """The numbers of the tasks that are given one by one. Raises as ``find_task``."""
    from ..reading import find_task

    return [find_task(reader, said).id for said in args.tasks]


def _members(reader: Reader | None, name: str, tenant: str | None) -> list[int]:
    from marlaas.engine.errors import ConfigError, UnknownTask
    from marlaas.engine.queue.submission.references import family_of
    from marlaas.engine.spec.validation import nearest

    known = [task for task in (reader.known_tasks() if reader else ()) if tenant in (None, task.tenant)]
    owners = sorted({task.tenant for task in known if task.family == name})
    if not owners:
        families = sorted({task.family for task in known if task.family})
        raise UnknownTask(f"There is no sweep {name!r}.", nearest(name, families))
    if len(owners) > 1:
        raise ConfigError(f"Several tenants have a sweep {name!r}: {', '.join(owners)}.", "Give one with --tenant.")
    return [task.id for task in family_of(known, name)]
