"""``eval``: measures versions on held-out prompts, as a task of the queue that trains nothing."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import output
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from ...reading.home_reader import HomeReader


def register(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "eval",
        run,
        "measure versions, the base or exported adapters on any environment, as a task that trains nothing",
        json=True,
        epilog="What you leave out is as in the task of the first version: environment, configuration, rows, lengths.",
    )
    parser.add_argument(
        "versions", nargs="+", metavar="VERSION", help="17@best, 17@12, a version's name, base, or a folder (./DIR)"
    )
    parser.add_argument("--environment", metavar="NAME", default="", help="what to measure on")
    parser.add_argument(
        "--set",
        "--config",
        dest="config",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="parameters of the environment, as in digits=3",
    )
    parser.add_argument("--prompts", type=int, metavar="N", help="held-out instances (default 64)")
    parser.add_argument("--samples", type=int, metavar="K", help="episodes of each, for avg@k, pass@k and best@k")
    parser.add_argument("--split", choices=("eval", "test"), help="which instances (default eval)")
    parser.add_argument("--temperature", type=float, metavar="T", help="of sampling (default 0: the likeliest token)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="of one turn")
    parser.add_argument(
        "--agents",
        action="extend",
        nargs="+",
        default=[],
        metavar="AGENT=VERSION",
        help="who acts as an agent instead of the measured version, as in second=base",
    )
    parser.add_argument("--rotate", action="store_true", help="let the agents change places from prompt to prompt")
    parser.add_argument("--tenant", metavar="NAME", default="", help="whose task it is (default: the version's tenant)")
    parser.add_argument("--name", metavar="NAME", default="", help="what the task is called")
    parser.add_argument("--priority", type=int, metavar="N", help="among the tenant's tasks")
    parser.add_argument("--wait", action="store_true", help="wait for the scores and print them")
    parser.add_argument("--toml", action="store_true", help="print the task file instead: to change and submit")


def run(args: argparse.Namespace) -> int:
    """Put the task into the queue; with ``--wait`` print its scores when it has ended."""
    from marlaas.engine.submission import taskfile

    from ...home.evaluating import evaluation_table
    from ...home.submitting import enqueue
    from ...home.task_text import written
    from ...reading.opening import reading

    home = home_of(args)
    with reading(home) as reader:
        table = evaluation_table(_wish(args, reader), reader)
    text = written(table)
    submissions = taskfile.tasks_of(taskfile.table_of(text, "the evaluation"), "the evaluation", Path.cwd(), text)
    if args.toml:
        print(text, end="")
        return output.OK
    (number,) = enqueue(home, submissions, notice=output.talk)
    if args.wait:
        return _wait(args, number)
    if args.json:
        output.result_json({"ids": [number]})
        return output.OK
    output.result(f"task {number}: {_counted(len(args.versions))} to measure on {table['environment']}")
    output.talk(f"`marlaas wait {number}` waits for the scores, `marlaas show {number}` shows them.")
    return output.OK


def _wish(args: argparse.Namespace, reader: HomeReader | None) -> Any:
    from ...home.evaluating import Wish

    keys = ("prompts", "samples", "split", "temperature")
    measure = {key: getattr(args, key) for key in keys if getattr(args, key) is not None}
    agents = _pairs(args.agents, "--agents")
    measure |= {"agents": agents} if agents else {}
    measure |= {"rotate": True} if args.rotate else {}
    return Wish(
        args.versions,
        args.environment,
        _config(args, reader),
        args.tenant,
        args.name,
        measure,
        {"max_tokens": args.max_tokens} if args.max_tokens is not None else {},
        {"priority": args.priority} if args.priority is not None else {},
    )


def _config(args: argparse.Namespace, reader: HomeReader | None) -> dict[str, Any]:
    """The environment's parameters, each of the type that the environment declares."""
    from marlaas.engine.errors import EnvironmentMissing
    from marlaas.engine.submission import find_environment
    from marlaas.plugins.parameters import Parameter

    from ...home.evaluating import environment_of
    from ..env.config import typed

    rows = reader.environments() if reader and args.config else []
    try:
        known = find_environment(args.environment or environment_of(args.versions, reader), rows).parameters
    except EnvironmentMissing:
        known = ()
    return typed(args.config, [Parameter(**{**one, "choices": tuple(one.get("choices", ()))}) for one in known])


def _pairs(said: list[str], option: str) -> dict[str, str]:
    from marlaas.engine.errors import ConfigError

    pairs = {}
    for pair in said:
        name, equals, value = pair.partition("=")
        if not name or not equals or not value:
            raise ConfigError(f"{option} {pair!r} is no AGENT=VERSION.", "Write, for example, second=base.")
        pairs[name] = value
    return pairs


def _counted(versions: int) -> str:
    return "1 version" if versions == 1 else f"{versions} versions"


def _wait(args: argparse.Namespace, number: int) -> int:
    from marlaas.engine.daemon import control

    from ...home.progress import Follower, ways
    from ...reading.opening import find_task, reading
    from ...words.scores import measured_json, measured_table

    home = home_of(args)
    with reading(home) as reader:
        follower = Follower(
            read=lambda: [find_task(reader, number)],
            alive=lambda: control.alive(home),
            say=output.talk,
            **ways(output.is_plain()),
        )
        (task,) = follower.follow()
        assert reader is not None
        rows = {words: reader.evals(number, words) for words in task.trained}
    if args.json:
        output.result_json({"ids": [number], "state": task.state, "measured": measured_json(rows)})
    else:
        output.result_table(*measured_table(rows))
    if task.state != "done":
        output.complain(f"Task {number} is {task.state}: {task.reason}")
    return output.OK if task.state == "done" else output.FAILED
