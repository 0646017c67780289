"""Shared by all verbs.

A module of verbs has ``register`` and a function per verb: home and parsed arguments in, exit code out. These functions
import numpy, Textual and asyncio inside.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

from marlaas.engine.errors import ConfigError, UnknownTask
from marlaas.engine.home.paths import Home, check_folder, check_home, find_home

from .. import output
from ..spoken import spoken

if TYPE_CHECKING:
    from marlaas.engine.store.queries.reader import Reader
    from marlaas.engine.store.rows import TaskRow


Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
TASK = "a task's number or name"
ADAPTER = "a task's number or name, or a version's name: 17, 17@12, where a task trains several policies 17/player@best"
_WHOLE = 100_000
"""Cells of a help line that is never broken."""
Run = Callable[[Home, argparse.Namespace], int]

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


class CommandParser(argparse.ArgumentParser):
    """Reports errors in one sentence, with the nearest verb or option; its help can be plain."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if output.is_plain():
            self.formatter_class = partial(argparse.HelpFormatter, width=_WHOLE)
            self.color = False  # from Python 3.14 on

    def format_help(self) -> str:
        text = super().format_help()
        return f"{spoken(text.rstrip())}\n" if output.is_plain() else text

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            inner = [f"{name} {value}" for name, parser in action.choices.items() if value in _verbs_of(parser)]
            self._refuse(f"There is no verb {value!r}.", _meant(value, inner or names), "lists the verbs")
        option = max(action.option_strings, key=len, default="") or str(action.metavar or action.dest)
        self._refuse(f"{option} is one of {', '.join(names)}, not {str(value)!r}.", _meant(str(value), names))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown words at once: only this parser knows its verb."""
        found, extra = super().parse_known_args(args, namespace)
        if extra and not extra[0].startswith("-"):
            self._refuse(f"{extra[0]!r} is one word too many for `{self.prog}`.")
        if extra:
            option = extra[0].partition("=")[0]
            options = [name for name in self._option_string_actions if name.startswith("--")]
            self._refuse(f"`{self.prog}` has no option {option!r}.", _meant(option, options))
        return found, extra

    def error(self, message: str) -> NoReturn:
        for pattern, words in _SENTENCES:
            if match := re.fullmatch(pattern, message, re.DOTALL):
                message = match.expand(words)
                break
        self._refuse(f"{message if message.startswith('-') else message[:1].upper() + message[1:]}".rstrip(".") + ".")

    def _refuse(self, says: str, meant: str = "", does: str = "shows what it takes") -> NoReturn:
        output.complain(says, f"{meant} `{self.prog} --help` {does}.".lstrip())
        sys.exit(output.USAGE)


def _verbs_of(parser: argparse.ArgumentParser) -> list[str]:
    families = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return [verb for choices in families for verb in choices]


def _meant(word: str, names: Sequence[str]) -> str:
    from difflib import get_close_matches  # only a mistake needs it

    near = [name for name in names if name.endswith(f" {word}")] or get_close_matches(word, names, n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


Add = Callable[[argparse.ArgumentParser], object]


def arg(*names: str, **options: Any) -> Add:
    """One argument or option, as argparse takes it."""
    return lambda parser: parser.add_argument(*names, **options)


def one_of(*arguments: Add) -> Add:
    """Mutually exclusive options."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = cast("argparse.ArgumentParser", parser.add_mutually_exclusive_group())
        for argument in arguments:
            argument(group)

    return add


def whole(low: int, high: int) -> Callable[[str], int]:
    """Argument type: a whole number from ``low`` to ``high``."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 18 or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {low:,} to {high:,}")
        return int(text)

    return read


_JSON = arg("--json", action="store_true", help="print JSON on standard output")


def place_of(args: argparse.Namespace) -> Home:
    """The home's place, for a verb that makes one or needs none: it need not exist."""
    return find_home(getattr(args, "home", None))


def home_of(args: argparse.Namespace) -> Home:
    """The home that the arguments mean.

    Raises ``ConfigError`` if ``--home`` names a folder that is no home: a typo must not become one. The default place,
    also of ``MARLAAS_HOME``, may be empty.
    """
    home = place_of(args)
    if home.root == find_home().root:
        check_folder(home)
    else:
        check_home(home)
        output.mean_home(str(home.root))
    return home


def add_verb(
    verbs: Verbs,
    name: str,
    run: Run,
    summary: str,
    *arguments: Add,
    json: bool = False,
    epilog: str | None = None,
    home: Callable[[argparse.Namespace], Home] = home_of,
) -> argparse.ArgumentParser:
    """Add a verb with its arguments; ``json`` adds ``--json``, ``home`` finds the home."""
    parser = verbs.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=epilog)
    parser.set_defaults(run=lambda args: run(home(args), args))
    add_home(parser)
    for argument in (*arguments, *([_JSON] if json else [])):
        argument(parser)
    return parser


def add_family(verbs: Verbs, name: str, summary: str, run: Run | None = None, json: bool = False) -> Verbs:
    """Add a verb with subverbs; without one it does ``run``, or prints its help."""

    def fail(home: Home, args: argparse.Namespace) -> int:
        parser.print_help()
        return output.USAGE

    parser = add_verb(verbs, name, run or fail, summary, json=json)
    return parser.add_subparsers(title="verbs", metavar="VERB")


def add_home(parser: argparse.ArgumentParser) -> None:
    """Add ``--home`` and ``--plain``, valid before and after a verb."""
    parser.add_argument(
        "--home", metavar="FOLDER", default=argparse.SUPPRESS, help="the state folder (else MARLAAS_HOME)"
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        default=argparse.SUPPRESS,
        help="lines of words for screen readers: no columns, no signs",
    )


def task_word(text: str) -> int | str:
    """A task's number or name; a name of digits is a number."""
    if not text.strip():
        raise argparse.ArgumentTypeError("a task has a number or a name; `marlaas list` shows them")
    if not text.isascii() or not text.isdigit():
        return text
    if len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a task's number; `marlaas list` shows them")
    return int(text)


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


POLICY = arg(
    "--policy", metavar="NAME", help="of this policy, where a task trains several (default: the first of its file)"
)


@contextmanager
def reading_task(home: Home, args: argparse.Namespace) -> Iterator[tuple[Reader, TaskRow]]:
    """A reader, and the named task. Raises as ``find_task``."""
    from ..reading import find_task, reading

    with reading(home) as reader:
        task = find_task(reader, args.task)
        assert reader is not None, "it has a task"
        yield reader, task


@contextmanager
def reading_tasks(home: Home, args: argparse.Namespace) -> Iterator[tuple[Reader, list[TaskRow]]]:
    """A reader, and the named tasks, each once. Raises ``ConfigError`` or ``UnknownTask``."""

    from ..reading import find_task, reading

    if not args.tasks and not args.family:
        raise ConfigError("No task is given.", "Give numbers or names, or a sweep's name with --family.")
    with reading(home) as reader:
        numbers = [find_task(reader, word).id for word in args.tasks]
        for name in args.family:
            numbers += _members(reader, name, args.tenant)
        assert reader is not None, "it has tasks"
        yield reader, [find_task(reader, number) for number in dict.fromkeys(numbers)]


def _members(reader: Reader | None, name: str, tenant: str | None) -> list[int]:
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


def policy_of(args: argparse.Namespace, task: TaskRow) -> str | None:
    """The policy of ``--policy``, if any. Raises ``ConfigError`` if the task does not train it."""
    from marlaas.engine.spec.task import ONLY
    from marlaas.engine.spec.validation import nearest

    policy: str | None = args.policy
    trained = task.trained or (ONLY,)
    if policy is not None and policy not in trained:
        raise ConfigError(f"Task {task.id} trains no policy {policy!r}.", nearest(policy, trained))
    return policy


def faces(args: argparse.Namespace, task: TaskRow) -> list[tuple[str, TaskRow]]:
    """The named policy, or each of the task's, with the task's row as it sees it.

    Empty name: the task has one policy. Raises as ``policy_of``.
    """
    chosen = policy_of(args, task)
    policies = (policy for policy in task.policies if policy.trained and chosen in (None, policy.name))
    return [(policy.name, task.seen_by(policy)) for policy in policies] or [("", task)]


def adapter_of(args: argparse.Namespace) -> tuple[str, str | None]:
    """Adapter name and version, from 17/player@best or ``--version``; None: no version.

    Raises ``ConfigError`` if both give it.
    """

    adapter, _, version = str(args.adapter).partition("@")
    if version and args.version is not None:
        raise ConfigError(f"{args.adapter!r} says which version, and so does --version.", "Leave one of them out.")
    return adapter, version or args.version
