"""``engine`` and ``cluster``: start, stop and look at the engine, yield the machine, join nodes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from marlaas.engine.daemon.lock import holder
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.yielding.decision import state
from marlaas.engine.store.queries.machine import NodeRow
from marlaas.engine.store.rows import YIELDED, EngineRow, WorkerRow, Yielding
from marlaas.engine.store.submissions import command

from .. import output
from ..operations.commands import unanswered, wait_for_outcomes, why_tasks_wait
from ..reading import opened, reading
from ..text.format import duration, line, seconds, share, size
from ..text.machine import headers, join_line, remarks, row, summary, yielding_of, yielding_text
from ..text.tasks import liveness
from .parser import Verbs, add_family, add_verb, arg, home_of

if TYPE_CHECKING:
    from ..operations.cluster import ClusterState


# ``engine status``: whether an engine runs, what it has been told, and what its workers do.


def run_status(args: argparse.Namespace) -> int:
    """Print the engine's state; exit 3 where none is alive."""

    home = home_of(args)
    with reading(home) as reader:
        engine = reader.engine() if reader else None
        workers = reader.workers() if reader else []
        nodes = reader.nodes() if reader else []
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
        return output.OK if alive.alive else output.UNREACHABLE
    output.result(f"home    {home.root}")
    output.result(f"engine  {alive.text}")
    if engine is None or not alive.alive:
        return output.UNREACHABLE
    _print_engine(home, engine, nodes, now)
    _print_workers(workers, now)
    return output.OK


def _print_engine(home: Home, engine: EngineRow, nodes: list[NodeRow], now: float) -> None:
    """What people should know of an engine that is alive, and of the nodes that it uses."""
    from marlaas.engine.daemon.control import other_version

    from ..operations.cluster import unanswering  # loads psutil, as below

    output.result(f"        process {engine.pid}, incarnation {engine.incarnation}, base {line(engine.shown_base)}")
    for words in (engine.precision, other_version(engine), engine.note):
        if words:
            output.result(f"        {line(words)}")
    if yielding := yielding_of(engine):
        output.result(f"        {yielding_text(yielding, now)}")
    if nodes:
        output.result(f"cluster {summary(nodes)}: `marlaas cluster status` lists them")
        for remark in (remark for node in nodes for remark in remarks(node)):
            output.result(f"        {line(remark)}")
    elif silent := unanswering(home):
        output.result(f"cluster {line(silent)} does not answer: this machine works alone")
    for number, reason in enumerate(engine.placement.splitlines()):
        output.result(f"{'' if number else 'placed':<8}{line(reason)}")


def _print_workers(workers: Sequence[WorkerRow], now: float) -> None:
    output.result_table(
        ("WORKER", "STATE", "DEVICE", "PROCESS", "MEMORY", "BUSY", "UP"),
        [(worker.name, worker.state, line(worker.device), *_process(worker, now)) for worker in workers],
        right=("PROCESS", "MEMORY", "BUSY"),
    )


def _process(worker: WorkerRow, now: float) -> tuple[str, str, str, str]:
    """Id, memory, share of the last second in which it was busy, and age of a worker's process, if it has one yet."""
    if worker.pid is None:
        return "", "", "", ""
    return str(worker.pid), size(worker.rss or 0), share(worker.busy or 0), duration(now - (worker.started or now))


# ``engine yield`` and ``engine resume``: leave the machine to others at once, and take it back.
#
# Where no engine runs, the next one carries it out.


def _span(text: str) -> float:

    try:
        return seconds(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def leave_machine(args: argparse.Namespace) -> int:
    """Yield, and wait until the workers have ended."""

    home, now = home_of(args), time.time()
    until = None if args.span is None else now + args.span
    yielding = Yielding(YIELDED, until)
    if (refused := _ask(home, "yield", until=until)) is None:
        output.talk(f"No engine serves {home.root}, so it holds nothing of the machine.")
        return output.done(f"The next one begins {state(yielding, now)}; `marlaas engine resume` takes that back.")
    if refused:
        return output.refuse(refused)
    return output.done(yielding_text(yielding, now))


def take_back(args: argparse.Namespace) -> int:
    """End a yield."""

    home = home_of(args)
    if (refused := _ask(home, "resume_engine")) is None:
        return output.done(f"No engine serves {home.root}; the next one yields nothing.")
    if refused:
        return output.refuse(refused)
    return output.done(why_tasks_wait(home) or "The engine has the machine; tasks go on from their last commit.")


def _ask(home: Home, kind: str, **arguments: Any) -> str | None:
    """Tell the engine of a home, or leave it to the next one.

    Returns why the engine refuses, empty if it does not, and None if none runs. Raises ``EngineUnreachable``
    where one runs and does not answer.
    """
    from marlaas.engine.daemon.control import create_database

    create_database(home)
    sent = command(home.database, kind, **arguments)
    if holder(home.lock) is None:
        return None
    with opened(home) as reader:
        outcome = wait_for_outcomes(reader, [sent]).get(sent)
    if outcome is None:
        raise unanswered()
    return outcome


# ``engine start | stop | drain | run``; ``status``, and ``yield | resume`` from ``yielding``.

STOP_SECONDS = 60.0


def start(args: argparse.Namespace) -> int:
    """Start an engine and wait until it serves."""
    from marlaas.engine.daemon import control

    from ..operations.cluster import last_event, warning_since

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


# ``cluster status | drain | undrain``: who is in the cluster, and who gets nothing new.


def status(args: argparse.Namespace) -> int:
    """Print the nodes; exit 3 where this machine is in no cluster."""
    from ..operations.cluster import cluster_state

    state = cluster_state(home_of(args))
    if args.json:
        nodes = [asdict(row) | {"state": row.state} for row in state.nodes] if state else []
        output.result_json(
            {
                "address": state and state.address,
                "engine": bool(state and state.engine),
                "own": asdict(state.own) if state and state.own else None,
                "nodes": nodes,
            }
        )
        return output.OK if state else output.UNREACHABLE
    if state is None:
        output.result("cluster  none: this machine works alone")
        output.talk("`marlaas cluster join` begins one, `marlaas cluster join ADDRESS` joins one.")
        return output.UNREACHABLE
    output.result(f"cluster  {line(state.address)}")
    _table(state)
    return output.OK


def _table(state: ClusterState) -> None:

    output.result_table(headers(state.engine), [row(node, state.engine) for node in state.nodes], ("CORES", "MEMORY"))
    for node in state.nodes:
        for remark in remarks(node):
            output.result(f"  {line(remark)}")
    if state.own is not None and state.own.is_head:
        output.talk(f"Another machine joins with: {join_line(state.address, state.own.ip, state.token)}")
    if not state.engine:
        output.talk(
            "No engine works over it here, so cores and cards are not known: `marlaas engine start` starts one."
        )


def drain_nodes(args: argparse.Namespace) -> int:
    """Have the engine move everything off a node."""
    name, waits = _ask_of_nodes(args, "drain_node")
    if waits:
        output.talk(f"No engine runs; the next one gives {line(name)} nothing.")
    else:
        output.talk(f"{line(name)} gets nothing new; its workers move when the steps under way are committed.")
    return output.OK


def undrain(args: argparse.Namespace) -> int:
    """Take a drain back."""
    name, waits = _ask_of_nodes(args, "undrain_node")
    return output.done(f"{line(name)} may work again{', once an engine runs' if waits else ''}.")


def _ask_of_nodes(args: argparse.Namespace, kind: str) -> tuple[str, bool]:
    """Tell the engine, or leave it to the next one; returns the node's name, and whether it waits for an engine.

    Raises ``ConfigError`` if no such node may be meant.
    """

    from ..operations.cluster import steer_node

    name, refused, waits = steer_node(home_of(args), kind, args.node)
    if refused:
        raise ConfigError(refused)
    return name, waits


# ``cluster join | leave``, and ``cluster status | drain | undrain`` from ``nodes``.

LONGEST = 8192
"""Characters of a token's file that are read."""


def join(args: argparse.Namespace) -> int:
    """Start Ray here, and say how others join or how far the head is."""
    from ..operations import cluster

    home = home_of(args)
    if args.address is None:
        joined = cluster.become_head(home, _token(args.token), args.ip, args.name, output.talk)
    else:
        joined = cluster.join(home, args.address, _token(args.token), args.ip, args.name, output.talk)
    node = joined.node
    for note in joined.notes:
        output.talk(line(note))
    if args.json:
        told = {"name": node.name, "address": node.head, "ip": node.ip, "head": node.is_head}
        output.result_json(
            told
            | {"token": joined.token and str(joined.token), "milliseconds": joined.milliseconds, "notes": joined.notes}
        )
    elif node.is_head:
        output.result(f"{line(node.name)} is the head of a cluster at {node.head}.")
        output.talk("Another machine joins with this line, typed there:")
        output.result(f"  {join_line(node.head, node.ip, joined.token)}")
        output.talk("`marlaas engine start` here trains over all of them; `marlaas cluster status` lists them.")
    else:
        output.result(
            f"{line(node.name)} has joined the cluster at {node.head}, {joined.milliseconds or 0:.1f} ms away."
        )
    return output.OK


def _token(given: str | None) -> str | None:
    """The token in a file, or from the standard input. Raises ``ConfigError``."""

    if given is None:
        return None
    try:
        if given == "-":
            return sys.stdin.read(LONGEST)
        with open(given, encoding="utf-8") as file:
            return file.read(LONGEST)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"The token cannot be read: {why}.", where=given) from error


def leave(args: argparse.Namespace) -> int:
    """End this machine's Ray."""
    from ..operations.cluster import leave as leave_cluster

    node = leave_cluster(home_of(args), args.force)
    if not node.pid:
        output.talk(f"This machine's Ray had ended; the cluster at {line(node.head)} is forgotten.")
    elif node.is_head:
        output.talk(f"The cluster at {node.head} has ended; its other machines notice within a minute.")
    else:
        output.talk(f"{line(node.name)} has left the cluster at {node.head}.")
    return output.OK


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
            type=_span,
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
        drain_nodes,
        "give a machine nothing new, and move its workers once the steps under way are committed",
        arg("node", metavar="NODE", help="its name, as `marlaas cluster status` lists it"),
        epilog="It outlives the engine, and goes by the name: a machine that joins again is still drained.",
    )
    add_verb(
        family, "undrain", undrain, "let a drained machine work again", arg("node", metavar="NODE", help="its name")
    )
