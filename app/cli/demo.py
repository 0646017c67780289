"""``demo``: three tenants learn at the same time, in a separate home.

Continues unfinished tasks, else submits three. Without a terminal or with ``--plain`` it prints a line per change, with
``--json`` one object at the end.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from typing import Any

from marlaas.engine.daemon import control
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home, check_folder, find_home
from marlaas.engine.queue.submission.taskfile import REAL_BASE
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import TaskRow

from .. import output
from ..operations.commands import Follower, ways
from ..operations.submitting import begin
from ..reading import find_task, opened
from ..text.format import duration, line, score
from ..text.tasks import newest_series
from ..text.terms import with_new_names
from .base import use_base
from .parser import Verbs, add_verb, arg, home_of, place_of
from .terminal import Waiting, has_terminal, open_application

SAMPLERS = ("torch", "llama.cpp")
_INTERRUPTED = "Interrupted; `marlaas demo` goes on from the last steps."


def demo_home(args: argparse.Namespace) -> Home:
    """The demo's default home, or the explicit one, made if missing.

    Raises ``ConfigError`` if the folder holds other things.
    """
    default = find_home().root
    if getattr(args, "home", None) or os.environ.get("MARLAAS_HOME"):
        home = place_of(args)
        try:
            free = not home.root.exists() or not any(home.root.iterdir())
        except OSError:  # a file, or what cannot be read
            free = False
        if home.root == default or not free:
            return home_of(args)
    else:
        parts = [default.name, "demo", "real" if getattr(args, "real", False) else "", getattr(args, "sampler", None)]
        home = Home(default.with_name("-".join(part for part in parts if part)))
    check_folder(home)
    output.mean_home(str(home.root))
    return home


def run(home: Home, args: argparse.Namespace) -> int:
    """Run the demo to its end, or until its application closes."""

    if args.real:
        control.create_database(home)
        use_base(home, REAL_BASE, yes=args.yes)
    if has_terminal() and not args.json and not output.is_plain():
        try:
            with Waiting(f"Starting the demo's engine in {home.root}") as waiting:
                begin(home, waiting.say, args.sampler, args.real)
        except KeyboardInterrupt:
            output.talk(_INTERRUPTED)
            _stop(home)
            return output.INTERRUPTED
        code = open_application(home, demo=True)
        with opened(home) as reader:
            unfinished = any(task.unfinished and task.state != "paused" for task in reader.tasks())
        if not unfinished and control.alive(home):
            _stop(home)
            output.talk("All tasks of the demo have ended, and its engine was stopped.")
        return code

    def say(text: str) -> None:
        (output.talk if args.json else output.result)(text)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run_in_lines(home, say, args)
    except KeyboardInterrupt:
        output.talk(_INTERRUPTED)
        return output.INTERRUPTED
    finally:
        _stop(home)


def _run_in_lines(home: Home, say: Callable[[str], None], args: argparse.Namespace) -> int:
    say(f"The demo's home is {home.root}.")
    ids = begin(home, say, args.sampler, args.real)
    memory: dict[str, int] = {}
    with opened(home) as reader:

        def read() -> list[TaskRow]:
            for worker in reader.workers():
                memory[worker.name] = max(memory.get(worker.name, 0), worker.rss or 0)
            return [find_task(reader, number) for number in ids]

        tasks = Follower.of(home, read, say=say, paused_ends=True, **ways(output.is_plain())).follow()
        report = [task_report(reader, task) for task in tasks]
    if args.json:
        output.result_json({"home": str(home.root), "tasks": report, "memory": memory})
    for entry in () if args.json else report:
        say(
            f"{line('/'.join((entry['tenant'], entry['name'])), 36)}: {entry['state']} after {entry['steps']} steps"
            f" and {duration(entry['seconds'])}, held-out {score(entry['eval_before'])} →"
            f" {score(entry['eval_after'])} (baseline {score(entry['floor'])})"
        )
    return output.OK if all(task.state == "done" for task in tasks) else output.FAILED


def task_report(reader: Reader, task: TaskRow) -> dict[str, Any]:
    """One task's result: learning, duration, agreement of sampler and trainer."""

    series = newest_series(reader.evals(task.id))
    first, last = (series[0], series[-1]) if series else (None, None)
    steps = reader.steps(task.id)
    report = {
        **{key: getattr(task, key) for key in ("id", "tenant", "name", "environment", "state", "reason")},
        "steps": task.step,
        "eval_before": first.score if first else None,
        "eval_after": last.score if last else None,
        "floor": task.floor,
        "seconds": task.seconds,
        "reward": task.reward,
        "tokens": task.tokens,
        "gap_max": max((row.metrics["gap_max"] for row in steps if "gap_max" in row.metrics), default=None),
        "metrics_before": first.metrics if first else {},
        "metrics_after": last.metrics if last else {},
    }
    return with_new_names(report)


def _stop(home: Home) -> None:
    try:
        control.stop(home, timeout=60.0)
    except MarlaasError as error:
        output.complain_of(error)


def register(verbs: Verbs) -> None:
    """Add the verb."""
    add_verb(
        verbs,
        "demo",
        run,
        "watch three tenants learn on one shared base, in a home of its own",
        arg(
            "--sampler",
            choices=SAMPLERS,
            help="what samples, in a home of its own for each; without it the faster one for the demo's base, torch",
        ),
        arg("--real", action="store_true", help="train a real model of 135 million parameters, SmolLM2"),
        arg("--yes", action="store_true", help="with --real: fetch the model without being asked"),
        json=True,
        home=demo_home,
    )
