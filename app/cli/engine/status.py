"""``engine status``: whether an engine runs, what it has been told, and what its workers do."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ... import output
from ...words.format import duration, line, share, size
from ..verbs import home_of

if TYPE_CHECKING:
    from marlaas.engine.home import Home
    from marlaas.engine.store import EngineRow, NodeRow, WorkerRow


def run(args: argparse.Namespace) -> int:
    """Print the engine's state; exit 3 where none is alive."""
    from ...reading.opening import reading
    from ...words.tasks import liveness
    from ...words.yielding import yielding_of

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
    from marlaas.engine.daemon import other_version

    from ...home.cluster.standing import unanswering
    from ...words.machine import remarks, summary
    from ...words.yielding import yielding_of, yielding_text

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
