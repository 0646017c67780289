"""``engine`` and ``cluster``: start, stop and show the engine, yield the machine, join nodes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from marlaas.engine.daemon import control
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.yielding.decision import state
from marlaas.engine.store.queries import machine
from marlaas.engine.store.queries.machine import NodeRow
from marlaas.engine.store.rows import YIELDED, EngineRow, WorkerRow, Yielding

from .. import output
from ..operations.commands import leave as leave_to_engine, why_tasks_wait
from ..reading import reading
from ..text.format import duration, line, seconds, share, size
from ..text.machine import headers, join_line, remarks, row, summary, yielding_of, yielding_text
from ..text.tasks import liveness
from .parser import Verbs, add_family, add_verb, arg

LONGEST = 8192
"""Most characters read of a token's file."""


def run_status(home: Home, args: argparse.Namespace) -> int:
    """Print the engine's state; exit 3: none alive."""
    with reading(home) as reader:
        engine = reader.engine() if reader else None
        workers = reader.workers() if reader else []
        nodes = machine.nodes(reader) if reader else []
    now = time.time()
    alive = liveness(engine, now)
    if args.json:
        yielding = yielding_of(engine) if alive.alive else None
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
    else:
        output.result(f"home    {home.root}")
        output.result(f"engine  {alive.text}")
        if engine is not None and alive.alive:
            _print_engine(home, engine, nodes, now)
            headings = ("WORKER", "STATE", "DEVICE", "PROCESS", "MEMORY", "BUSY", "UP")
            output.result_table(headings, [_worker(worker, now) for worker in workers], headings[3:6])
    return output.OK if alive.alive else output.UNREACHABLE


def _print_engine(home: Home, engine: EngineRow, nodes: Sequence[NodeRow], now: float) -> None:
    from ..operations.cluster import unanswering  # loads psutil

    yielding = yielding_of(engine)
    notes = [
        f"process {engine.pid}, incarnation {engine.incarnation}, base {engine.shown_base}",
        *(
            engine.precision,
            control.other_version(engine),
            engine.note,
            yielding_text(yielding, now) if yielding else "",
        ),
    ]
    for note in filter(None, notes):
        output.result(f"        {line(note)}")
    if nodes:
        output.result(f"cluster {summary(nodes)}: `marlaas cluster status` lists them")
        for remark in (remark for node in nodes for remark in remarks(node)):
            output.result(f"        {line(remark)}")
    elif silent := unanswering(home):
        output.result(f"cluster {line(silent)} does not answer: this machine works alone")
    for number, reason in enumerate(engine.placement.splitlines()):
        output.result(f"{'' if number else 'placed':<8}{line(reason)}")


def _worker(worker: WorkerRow, now: float) -> tuple[str, ...]:
    """Memory, busy share of the last second, age; blank without a process."""
    shown = (worker.name, worker.state, line(worker.device))
    if worker.pid is None:
        return (*shown, "", "", "", "")
    age = duration(now - (worker.started or now))
    return (*shown, str(worker.pid), size(worker.rss or 0), share(worker.busy or 0), age)


def leave_machine(home: Home, args: argparse.Namespace) -> int:
    """Yield, and wait until the workers have ended. Without an engine the next one yields."""
    now = time.time()
    until = None if args.span is None else now + seconds(args.span)
    yielding = Yielding(YIELDED, until)
    if leave_to_engine(home, "yield", until=until):
        return output.done(yielding_text(yielding, now))
    output.talk(f"No engine serves {home.root}, so it holds nothing of the machine.")
    return output.done(f"The next one begins {state(yielding, now)}; `marlaas engine resume` takes that back.")


def take_back(home: Home, args: argparse.Namespace) -> int:
    """End a yield."""
    if not leave_to_engine(home, "resume_engine"):
        return output.done(f"No engine serves {home.root}; the next one yields nothing.")
    return output.done(why_tasks_wait(home) or "The engine has the machine; tasks go on from their last commit.")


def start(home: Home, args: argparse.Namespace) -> int:
    """Start an engine and wait until it serves."""

    from ..operations.cluster import last_event, warning_since

    before = last_event(home)
    control.ensure_running(home, notice=output.talk)
    serves = f"An engine serves {home.root}. Files dropped into {home.plugins} are served at once."
    for sentence in filter(None, (line(warning_since(home, before)), serves, why_tasks_wait(home))):
        output.talk(sentence)
    return output.OK


def stop(home: Home, args: argparse.Namespace) -> int:
    """Stop the engine and wait until it has ended."""

    stopped = control.stop(home, timeout=60.0)
    said = "The engine has stopped; tasks go on from their last step when one starts again."
    return output.done(said if stopped else f"No engine serves {home.root}.")


def drain(home: Home, args: argparse.Namespace) -> int:
    """Drain the engine and wait for its end; interrupting the wait leaves it draining."""

    said = "The engine has stopped between steps; tasks go on when one starts again."
    return output.done(said if control.drain(home, output.talk) else f"No engine serves {home.root}.")


def run(home: Home, args: argparse.Namespace) -> int:
    """Be the engine."""
    from marlaas.engine.daemon import main

    return main.run(home)


def status(home: Home, args: argparse.Namespace) -> int:
    """Print the nodes; exit 3: not in a cluster."""
    from ..operations.cluster import cluster_state

    found = cluster_state(home)
    if args.json:
        output.result_json(
            {
                "address": found and found.address,
                "engine": bool(found and found.engine),
                "own": asdict(found.own) if found and found.own else None,
                "nodes": [asdict(node) | {"state": node.state} for node in found.nodes] if found else [],
            }
        )
    elif found is None:
        output.result("cluster  none: this machine works alone")
        output.talk("`marlaas cluster join` begins one, `marlaas cluster join ADDRESS` joins one.")
    else:
        output.result(f"cluster  {line(found.address)}")
        rows = [row(node, found.engine) for node in found.nodes]
        output.result_table(headers(found.engine), rows, ("CORES", "MEMORY"))
        for remark in (remark for node in found.nodes for remark in remarks(node)):
            output.result(f"  {line(remark)}")
        if found.own is not None and found.own.is_head:
            output.talk(f"Another machine joins with: {join_line(found.address, found.own.ip, found.token)}")
        if not found.engine:
            output.talk(
                "No engine works over it here, so cores and cards are not known: `marlaas engine start` starts one."
            )
    return output.OK if found else output.UNREACHABLE


def steer(kind: str, home: Home, args: argparse.Namespace) -> int:
    """Have the engine move everything off a node, or use it again."""
    from ..operations.cluster import steer_node

    name, waits = steer_node(home, kind, args.node)
    if kind == "undrain_node":
        return output.done(f"{line(name)} may work again{', once an engine runs' if waits else ''}.")
    if waits:
        return output.done(f"No engine runs; the next one gives {line(name)} nothing.")
    return output.done(f"{line(name)} gets nothing new; its workers move when the steps under way are committed.")


def join(home: Home, args: argparse.Namespace) -> int:
    """Start Ray here; report how others join, or the head's progress."""
    from ..operations import cluster

    given = (_token(args.token), args.ip, args.name, output.talk)
    joined = cluster.join(home, args.address, *given) if args.address else cluster.become_head(home, *given)
    node = joined.node
    for note in joined.notes:
        output.talk(line(note))
    if args.json:
        known = {"name": node.name, "address": node.head, "ip": node.ip, "head": node.is_head}
        token = joined.token and str(joined.token)
        return output.result_json(known | {"token": token, "milliseconds": joined.milliseconds, "notes": joined.notes})
    if not node.is_head:
        away = f"{joined.milliseconds or 0:.1f} ms away"
        return output.result(f"{line(node.name)} has joined the cluster at {node.head}, {away}.")
    output.result(f"{line(node.name)} is the head of a cluster at {node.head}.")
    output.talk("Another machine joins with this line, typed there:")
    output.result(f"  {join_line(node.head, node.ip, joined.token)}")
    return output.done("`marlaas engine start` here trains over all of them; `marlaas cluster status` lists them.")


def _token(given: str | None) -> str | None:
    """The token from a file or standard input. Raises ``ConfigError``."""
    if given is None or given == "-":
        return given and sys.stdin.read(LONGEST)
    try:
        with open(given, encoding="utf-8") as file:
            return file.read(LONGEST)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"The token cannot be read: {why}.", where=given) from error


def leave(home: Home, args: argparse.Namespace) -> int:
    """End this machine's Ray."""
    from ..operations.cluster import leave as leave_cluster

    node = leave_cluster(home, args.force)
    if not node.pid:
        return output.done(f"This machine's Ray had ended; the cluster at {line(node.head)} is forgotten.")
    if node.is_head:
        return output.done(f"The cluster at {node.head} has ended; its other machines notice within a minute.")
    return output.done(f"{line(node.name)} has left the cluster at {node.head}.")


def register(verbs: Verbs) -> None:
    """Add the verbs."""
    family = add_family(verbs, "engine", "start, stop and see the engine")
    add_verb(family, "start", start, "start an engine in the background; does nothing where one runs")
    add_verb(family, "stop", stop, "ask the engine to stop; tasks go on from their last step when one starts again")
    add_verb(family, "drain", drain, "have the engine finish the steps under way and stop; nothing begun is lost")
    add_verb(
        family,
        "yield",
        leave_machine,
        "free cards and memory within seconds and keep them free; running tasks wait at their last commit",
        arg(
            "--for",
            dest="span",
            metavar="TIME",
            help="90s, 30m, 2h, 1d (else until `marlaas engine resume`)",
        ),
        epilog="Another `yield` sets another end. It outlives the engine: one that starts meanwhile yields as well.",
    )
    add_verb(family, "resume", take_back, "take the machine back that was yielded; tasks go on from their last commit")
    add_verb(family, "status", run_status, "say whether an engine runs, and what its workers do", json=True)
    add_verb(family, "run", run, "run the engine in the foreground")
    family = add_family(verbs, "cluster", "join several machines, over which tasks then train")
    add_verb(
        family,
        "join",
        join,
        "join the cluster whose head is at ADDRESS; without one, become the head of a new one",
        arg("address", nargs="?", metavar="ADDRESS", help="the head's: 192.168.1.10:6379"),
        arg("--token", metavar="FILE", help="the cluster's token, which is kept in this home; - reads it"),
        arg("--ip", metavar="IP", default="", help="this machine's address, where it has several"),
        arg("--name", metavar="NAME", default="", help="what to call this machine (its host name)"),
        json=True,
        epilog="Ray runs in the background until `marlaas cluster leave`; [cluster] of marlaas.toml has its settings.",
    )
    add_verb(
        family,
        "leave",
        leave,
        "take this machine out of its cluster; on the head, end the cluster",
        arg("--force", action="store_true", help="also while tasks run over it; they go on elsewhere"),
    )
    add_verb(family, "status", status, "list the machines of the cluster, and what keeps any of them out", json=True)
    add_verb(
        family,
        "drain",
        partial(steer, "drain_node"),
        "give a machine nothing new, and move its workers once the steps under way are committed",
        arg("node", metavar="NODE", help="its name, as `marlaas cluster status` lists it"),
        epilog="It outlives the engine, and goes by the name: a machine that joins again is still drained.",
    )
    add_verb(
        family,
        "undrain",
        partial(steer, "undrain_node"),
        "let a drained machine work again",
        arg("node", metavar="NODE", help="its name"),
    )
