"""The simulator's predictions beside real runs over three nodes of a real Ray, which share this machine's cores.

As ``validation``, with tools that take twice as long: three nodes on two cores can only show work that waits. Fitting
and predicting are over the same nodes, so what the way between them takes is in the recorded times.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from marlaas.engine.fairness import ROLLOUT, TRAINING
from marlaas.engine.simulate.cluster_file import DevicesSpec, NodeSpec
from marlaas.engine.simulate.profile import record
from marlaas.engine.store.queries.machine import nodes
from marlaas.engine.store.queries.reader import Reader
from tools.ray_nodes import ONE_CORE, VARIABLES, RayNodes

from ..machinery.fleet import Fleet, fleet
from ..report.figures import Section, Unmeasurable
from .validation import MOST, Mix, cluster_of, compared, method, placed, remarks

REPETITIONS = 2
OTHERS = ("ada", "grace")
"""The nodes beside the head, on which the engine runs."""
CLUSTER = replace(
    cluster_of(*(NodeSpec(name, cores=1) for name in ("head", *OTHERS))),
    rollout=DevicesSpec(OTHERS),
    training=DevicesSpec(("head",)),
)
SLOWER = 2.0
FITTED = Mix("8 tasks", quick=4, slow=4, steps=8, slower=SLOWER)
MIXES = (
    Mix("1 task", quick=0, slow=1, steps=10, slower=SLOWER),
    Mix("4 tasks", quick=3, slow=1, steps=8, staleness=1, slower=SLOWER),
    Mix("16 tasks", quick=12, slow=4, steps=8, size=3, slower=SLOWER),
)
SETTINGS = """\
[engine]
tasks = {most}
[cluster]
address = "{address}"
insecure = true
[rollout]
devices = ["ada", "grace"]
[training]
devices = ["head"]
"""


def measure(quick: bool) -> Section:
    """About six minutes; three when quick. Raises ``Unmeasurable`` where there is no Ray."""
    if find_spec("ray") is None:
        raise Unmeasurable("there is no Ray in this environment; `make test-slow-cluster` makes `.cluster`, which has.")
    repetitions = 1 if quick else REPETITIONS
    with over_nodes() as home:
        found = compared(home, CLUSTER, FITTED, MIXES, repetitions)
        where = workers_at(home)
    said = "; ".join(f"{node}: {', '.join(names)}" for node, names in where.items())
    return Section(
        "simulator_nodes",
        "The simulator beside real runs over three nodes",
        f"{METHOD} {method(FITTED, repetitions)}",
        found.rows(),
        f"Workers ({said}). Ray's own processes, and other programs, used up to {found.others:.2f} cores."
        f"\n\n{remarks(found)}",
    )


METHOD = (
    "Three nodes of a real Ray on this machine, each said to have one core: the engine's, which also trains, and two"
    " that sample, which it reaches through Ray alone. What all do at once, they do on this machine's cores, so"
    " episodes wait for tools nearly all of their time."
)


@contextmanager
def over_nodes() -> Iterator[Fleet]:
    """A home on the head of three nodes, with its engine. Raises ``RuntimeError`` where Ray does not start, and where
    workers are elsewhere than in a simulation of these nodes."""
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-", ignore_cleanup_errors=True) as folder:
        nodes = RayNodes(Path(folder))
        try:
            for name in OTHERS:
                nodes.ids[name] = nodes.add(name)
            settings = ONE_CORE + SETTINGS.format(most=MOST, address=nodes.address)
            with fleet(("waiting",), settings, environ=VARIABLES) as home:
                real, simulated = workers_at(home), simulated_at(home)
                if real != simulated:
                    raise RuntimeError(f"The workers are at {real}, and those of the simulation at {simulated}.")
                yield home
        finally:
            nodes.close()


def workers_at(home: Fleet) -> Mapping[str, tuple[str, ...]]:
    """The samplers and trainers of a home by the node on which they run, all sorted by name."""
    with Reader(home.home.database) as reader:
        rows = nodes(reader)
    found = {
        row.name: tuple(sorted(name for name in row.workers if name.startswith((ROLLOUT, TRAINING)))) for row in rows
    }
    return {node: found[node] for node in sorted(found) if found[node]}


def simulated_at(home: Fleet) -> Mapping[str, tuple[str, ...]]:
    """The same in a simulation of these nodes."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, site in placed(record(home.home), CLUSTER).sites.items():
        found[site.node].append(name)
    return {node: tuple(sorted(found[node])) for node in sorted(found)}
