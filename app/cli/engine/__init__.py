"""``engine start | stop | drain | status | run``, and ``yield | resume`` from ``yielding``."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict

from ... import output
from ...words.format import duration, line, share, size
from ..verbs import Verbs, add_family, add_verb, home_of
from . import yielding

STOP_SECONDS = 60.0


def register(verbs: Verbs) -> None:
    """Add the family."""
    family = add_family(verbs, "engine", "start, stop and see the engine")
    add_verb(family, "start", start, "start an engine in the background; does nothing where one runs")
    add_verb(family, "stop", stop, "ask the engine to stop; tasks go on from their last step when one starts again")
    add_verb(family, "drain", drain, "have the engine finish the steps under way and stop; nothing begun is lost")
    yielding.register(family)
    add_verb(family, "status", status, "say whether an engine runs, and what its workers do", json=True)
    add_verb(family, "run", run, "run the engine in the foreground")


def start(args: argparse.Namespace) -> int:
    """Start an engine and wait until it serves."""
    from marlaas.engine.daemon import control

    from ...home.cluster.standing import last_event, warning_since
    from ...home.yielding import why_tasks_wait

    home = home_of(args)
    before = last_event(home)
    control.ensure_running(home, notice=output.talk)
    if sentence := warning_since(home, before):
        output.talk(line(sentence))
    output.talk(f"An engine serves {home.root}. Files dropped into {home.plugins} are served at once.")
    if waits := why_tasks_wait(home):
        output.talk(waits)
    return output.OK


def stop(args: argparse.Namespace) -> int:
    """Stop the engine and wait until it has ended."""
    from marlaas.engine.daemon import control

    home = home_of(args)
    if control.stop(home, STOP_SECONDS):
        output.talk("The engine has stopped; tasks go on from their last step when one starts again.")
    else:
        output.talk(f"No engine serves {home.root}.")
    return output.OK


def drain(args: argparse.Namespace) -> int:
    """Drain the engine and wait until it has ended; whoever breaks the wait off leaves it draining."""
    from marlaas.engine.daemon import control

    home = home_of(args)
    if control.drain(home, output.talk):
        output.talk("The engine has stopped between steps; tasks go on when one starts again.")
    else:
        output.talk(f"No engine serves {home.root}.")
    return output.OK


def run(args: argparse.Namespace) -> int:
    """Be the engine."""
    from marlaas.engine.daemon import main

    return main.run(home_of(args))


def status(args: argparse.Namespace) -> int:
    """Print the engine's state; exit 3 where none is alive."""
    from marlaas.engine.daemon import other_version

    from ...home.cluster.standing import unanswering
    from ...reading.opening import reading
    from ...words.tasks import liveness
    from ...words.yielding import yielding_of, yielding_text

    home = home_of(args)
    with reading(home) as reader:
        engine = reader.engine() if reader else None
        workers = reader.workers() if reader else []
        nodes = reader.nodes() if reader else []
    now = time.time()
    alive = liveness(engine, now)
    yielding = yielding_of(engine) if alive.alive else None
    if args.json:
        output.result_json(
            {
                "home": str(home.root),
                "alive": alive.alive,
                "state": alive.word,
                "engine": asdict(engine) if engine else None,
                "rest": asdict(yielding) if yielding else None,
                "workers": [asdict(worker) for worker in workers],
                "nodes": [asdict(node) | {"state": node.state} for node in nodes] if alive.alive else [],
            }
        )
        return output.OK if alive.alive else output.UNREACHABLE
    output.result(f"home    {home.root}")
    output.result(f"engine  {alive.text}")
    if engine is not None and alive.alive:
        output.result(f"        process {engine.pid}, incarnation {engine.incarnation}, base {line(engine.base)}")
        if other := other_version(engine):
            output.result(f"        {line(other)}")
        if engine.note:
            output.result(f"        {line(engine.note)}")
        if yielding is not None:
            output.result(f"        {yielding_text(yielding, now)}")
        if nodes:
            from ...words.machine.nodes import remarks, summary

            output.result(f"cluster {summary(nodes)}: `marlaas cluster status` lists them")
            for remark in (remark for node in nodes for remark in remarks(node)):
                output.result(f"        {line(remark)}")
        elif silent := unanswering(home):
            output.result(f"cluster {line(silent)} does not answer: this machine works alone")
        for number, reason in enumerate(engine.placement.splitlines()):
            output.result(f"{'' if number else 'placed':<8}{line(reason)}")
        output.result_table(
            ("WORKER", "STATE", "DEVICE", "PROCESS", "MEMORY", "BUSY", "UP"),
            [
                (
                    w.name,
                    w.state,
                    line(w.device),
                    str(w.pid),
                    size(w.rss or 0),
                    share(w.busy or 0),
                    duration(now - (w.started or now)),
                )
                for w in workers
            ],
            right=("PROCESS", "MEMORY", "BUSY"),
        )
    return output.OK if alive.alive else output.UNREACHABLE
