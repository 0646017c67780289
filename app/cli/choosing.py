"""Which tasks a verb is about: their numbers or names, or the members of a sweep by its name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .verbs import TASK, task_word

if TYPE_CHECKING:
    from marlaas.engine.store import TaskRow

    from ..reading.home_reader import HomeReader


def add_task(parser: argparse.ArgumentParser, about: str = TASK, *, optional: bool = False) -> None:
    """Add one task, by number or name."""
    parser.add_argument("task", type=task_word, nargs="?" if optional else None, metavar="TASK", help=about)


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """Add numbers and names of tasks, ``--family`` and ``--tenant``."""
    parser.add_argument("tasks", type=task_word, nargs="*", metavar="TASK", help="numbers or names of tasks")
    sweep = "all tasks of the newest sweep of that name"
    parser.add_argument("--family", action="append", default=[], metavar="NAME", help=sweep)
    parser.add_argument("--tenant", metavar="NAME", help="whose sweep, where several tenants have one of that name")


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add ``--policy``."""
    parser.add_argument(
        "--policy", metavar="NAME", help="of this policy, where a task trains several (default: the first of its file)"
    )


def policy_of(args: argparse.Namespace, task: TaskRow) -> str | None:
    """The policy that ``--policy`` names, if any. Raises ``ConfigError`` for one that the task does not train."""
    from marlaas.engine.errors import ConfigError
    from marlaas.engine.spec import ONLY, nearest

    wanted: str | None = args.policy
    trained = task.trained or (ONLY,)
    if wanted is None or wanted in trained:
        return wanted
    raise ConfigError(f"Task {task.id} trains no policy {wanted!r}.", nearest(wanted, trained))


def adapter_of(args: argparse.Namespace) -> tuple[str, str | None]:
    """Whose versions are meant and which, from 17/player@best or from ``--version``; None: it is not said which.

    Raises ``ConfigError`` where both say it.
    """
    from marlaas.engine.errors import ConfigError

    adapter, _, which = str(args.adapter).partition("@")
    if which and args.version is not None:
        raise ConfigError(f"{args.adapter!r} says which version, and so does --version.", "Leave one of them out.")
    return adapter, which or args.version


def faces(args: argparse.Namespace, task: TaskRow) -> list[tuple[str, TaskRow]]:
    """The policy that was named, or each that a task trains, with the task's row as that policy sees it.

    The name is empty where a task has only one policy. Raises as ``policy_of``.
    """
    wanted = policy_of(args, task)
    own = (policy for policy in task.policies if policy.trained and wanted in (None, policy.name))
    return [(policy.name, task.seen_by(policy)) for policy in own] or [("", task)]


def chosen(args: argparse.Namespace, reader: HomeReader | None) -> list[int]:
    """The numbers of the tasks that exist, each once. Raises ``ConfigError`` or ``UnknownTask``."""
    from marlaas.engine.errors import ConfigError

    if not args.tasks and not args.family:
        raise ConfigError("No task is given.", "Give numbers or names, or a sweep's name with --family.")
    numbers = named(args, reader)
    for name in args.family:
        numbers += _members(reader, name, args.tenant)
    return list(dict.fromkeys(numbers))


def named(args: argparse.Namespace, reader: HomeReader | None) -> list[int]:
    """The numbers of the tasks that are given one by one. Raises as ``find_task``."""
    from ..reading.opening import find_task

    return [find_task(reader, said).id for said in args.tasks]


def _members(reader: HomeReader | None, name: str, tenant: str | None) -> list[int]:
    from marlaas.engine.errors import ConfigError, UnknownTask
    from marlaas.engine.spec import nearest
    from marlaas.engine.submission import family_of

    known = [task for task in (reader.known_tasks() if reader else ()) if tenant in (None, task.tenant)]
    owners = sorted({task.tenant for task in known if task.family == name})
    if not owners:
        families = sorted({task.family for task in known if task.family})
        raise UnknownTask(f"There is no sweep {name!r}.", nearest(name, families))
    if len(owners) > 1:
        raise ConfigError(f"Several tenants have a sweep {name!r}: {', '.join(owners)}.", "Give one with --tenant.")
    return [task.id for task in family_of(known, name)]
