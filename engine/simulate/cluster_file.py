"""A cluster file in TOML, and its workers' placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..devices.machine import Cpu, Gpu, Link, Machine, Place, Rates, Software, UsableNode
from ..errors import BaseModelError, ConfigError, as_one
from ..home.paths import Home, is_home
from ..home.settings import Settings
from ..machine.placement.capacity import CORE, REFERENCE
from ..machine.placement.choices import is_small
from ..machine.plan import PlacementPlan, on_machines
from ..models.find import BaseModel, load_base
from ..models.weights import parameters
from ..queue.submission import taskfile
from ..spec.validation import between, build, nearest
from ..store.submissions import Submission
from .profile import Profile, config_key, record

SHIPPED = "tiny"
FOREVER = 1e9
THREADS = 0.26
"""A small base gains by this power of the threads: two give 1.2 times the speed (``machine/placement/place.py``). A
large one gains by each."""
ALL = Software(vllm="simulated", torch_cuda=True, llama_backend="cuda", bitsandbytes=True)


@dataclass(frozen=True)
class LinkSpec:
    """A node's link to the head."""

    latency: float = between(0.0, 0.0, 60.0)
    bandwidth: float = between(0.0, 0.0, 1e15)
    """Bytes a second; 0: no limit."""


AT_THE_HEAD = LinkSpec()


@dataclass(frozen=True)
class NodeSpec:
    """Nodes that are alike."""

    name: str
    count: int = between(1, 1, 100_000)
    """From two on: name-1, name-2, …"""
    cores: int = between(2, 1, 4096)
    memory: float = between(64.0, 0.1, 1e6)
    cards: int = between(0, 0, 1024)
    card_memory: float = between(80.0, 0.1, 1e5)
    sampling: float = between(1.0, 1e-3, 1e6)
    """Relative to the recorded speed."""
    training: float = between(1.0, 1e-3, 1e6)
    sequences: int = between(0, 0, 1 << 20)
    """Of each sampler; 0: as memory allows."""
    link: LinkSpec = AT_THE_HEAD


@dataclass(frozen=True)
class DevicesSpec:
    """A stage's only devices."""

    devices: tuple[str, ...] = ()
    """``NODE`` or ``NODE/gpu 0``; empty: the placement decides."""


@dataclass(frozen=True)
class TasksSpec:
    """Tasks from one file."""

    file: str
    count: int = between(1, 1, 1_000_000)
    tenants: int = between(0, 0, 100_000)
    """In turn; 0: the file's tenant gets all."""
    at: float = between(0.0, 0.0, FOREVER)
    every: float = between(0.0, 0.0, FOREVER)


@dataclass(frozen=True)
class TenantSpec:
    """With another weight than 1."""

    name: str
    weight: float = between(1.0, 0.01, 100.0)


@dataclass(frozen=True)
class FailureSpec:
    """A node fails and comes back."""

    node: str
    at: float = between(0.0, 0.0, FOREVER)
    seconds: float = between(60.0, 0.0, FOREVER)


@dataclass(frozen=True)
class ClusterSpec:
    """Without the key ``from``."""

    nodes: tuple[NodeSpec, ...]
    tasks: tuple[TasksSpec, ...]
    base: str = ""
    seed: int = between(0, 0, 2**31)
    at_once: int = between(32, 1, 1_000_000)
    """As ``[engine] tasks``."""
    seconds: float = between(FOREVER, 0.0, FOREVER)
    head: LinkSpec = LinkSpec()
    tenants: tuple[TenantSpec, ...] = ()
    failures: tuple[FailureSpec, ...] = ()
    rollout: DevicesSpec = field(default=DevicesSpec())
    training: DevicesSpec = field(default=DevicesSpec())


@dataclass(frozen=True)
class Arrival:
    """A task's submission."""

    at: float
    submission: Submission


@dataclass(frozen=True)
class Case:
    """A checked file and what it names."""

    spec: ClusterSpec
    nodes: tuple[NodeSpec, ...]
    arrivals: tuple[Arrival, ...]
    profile: Profile
    base: BaseModel


def read_case(path: Path) -> Case:
    """Raises ``ConfigError`` with all mistakes."""
    where = str(path)
    try:
        table = taskfile.table_of(path.read_text(encoding="utf-8"), where)
    except UnicodeDecodeError as error:
        raise ConfigError("is no UTF-8 text.", "A cluster file is TOML.", where=where) from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}.", where=where) from error
    source = table.pop("from", None)
    if not isinstance(source, str):
        raise ConfigError("'from' is missing.", "It names a home.", where=where, path="from")
    spec = build(ClusterSpec, table, where)
    nodes = nodes_of(spec)
    mistakes = [ConfigError(cause, hint, where=where, path=key) for key, cause, hint in _contradictions(spec, nodes)]
    arrivals = _arrivals(spec, path, mistakes)
    try:
        home = path.parent / Path(source).expanduser()
        if not is_home(home):
            raise ConfigError("is no home of marlaas.", "Name one that is there as `from`.", where=str(home))
        profile = record(Home(home))
        mistakes += _unrecorded(arrivals, profile, where)
        base = load_base(spec.base or profile.base or SHIPPED)
    except BaseModelError as error:
        cause = f"the base {spec.base or profile.base!r} is not here: {error.cause}"
        mistakes.append(ConfigError(cause, "Name another as `base`.", where=where, path="base"))
    except ConfigError as error:
        mistakes += error.mistakes
    if mistakes:
        raise as_one(mistakes)
    return Case(spec, nodes, tuple(sorted(arrivals, key=lambda arrival: arrival.at)), profile, base)


def nodes_of(spec: ClusterSpec) -> tuple[NodeSpec, ...]:
    """All nodes, separately."""
    return tuple(
        replace(node, name=f"{node.name}-{number}" if node.count > 1 else node.name, count=1)
        for node in spec.nodes
        for number in range(1, node.count + 1)
    )


def _contradictions(spec: ClusterSpec, nodes: Sequence[NodeSpec]) -> list[tuple[str, str, str]]:
    """Key, cause and hint of each."""
    names = [node.name for node in nodes]
    named = [(f"failures[{place}].node", failure.node) for place, failure in enumerate(spec.failures)]
    for stage, choice in (("rollout", spec.rollout), ("training", spec.training)):
        named += [(f"{stage}.devices", device.partition("/")[0]) for device in choice.devices]
    mistakes = [
        (key, f"'{key}' names {name!r}, and no node is called so.", nearest(name, names[:20]))
        for key, name in named
        if name not in names
    ]
    for key, group in (("nodes", names), ("tenants", [tenant.name for tenant in spec.tenants])):
        repeated = [name for name, count in Counter(group).items() if count > 1]
        mistakes += [(key, f"'{key}' names {name!r} twice.", "Give each its own name.") for name in repeated]
    empty = [key for key, tables in (("nodes", spec.nodes), ("tasks", spec.tasks)) if not tables]
    return mistakes + [(key, f"'{key}' is empty.", f"Write [[{key}]].") for key in empty]


def _arrivals(spec: ClusterSpec, path: Path, mistakes: list[ConfigError]) -> list[Arrival]:
    arrivals: list[Arrival] = []
    for tasks in spec.tasks:
        file = path.parent / Path(tasks.file).expanduser()
        try:
            submissions = taskfile.load(file)
        except ConfigError as error:
            mistakes += error.mistakes
            continue
        for submission in submissions:
            if why := _not_simulated(submission.spec.to_json()):
                mistakes.append(ConfigError(f"the task {why}, which no simulation has.", where=str(file)))
        for number in range(tasks.count):
            for submission in submissions:
                task = submission.spec
                if tasks.count > 1:  # with one seed, all of them would meet the same instances and luck
                    train = replace(task.train, seed=task.train.seed + number)
                    task = replace(task, name=f"{task.name}-{number + 1}", train=train)
                if tasks.tenants:
                    task = replace(task, tenant=f"{task.tenant}-{number % tasks.tenants + 1}")
                arrivals.append(Arrival(tasks.at + number * tasks.every, replace(submission, spec=task)))
    return arrivals


def _not_simulated(config: Mapping[str, Any]) -> str:
    if config.get("kind") == "eval":
        return "measures versions"
    policies = [config.get("policy") or {}, *(config.get("policies") or {}).values()]
    borrowed = [words for policy in policies for words in (policy.get("start"), policy.get("frozen")) if words]
    return f"begins from the version {borrowed[0]!r}" if borrowed else ""


def _unrecorded(arrivals: Sequence[Arrival], profile: Profile, where: str) -> list[ConfigError]:
    parts = [part for arrival in arrivals for part in taskfile.environments_of(arrival.submission)]
    missing = {part.name for part in parts if profile.find(part.name, config_key(part.config)) is None}
    return [
        ConfigError(
            f"nothing is recorded of the environment {name!r}.",
            nearest(name, profile.names()),
            where=where,
            path="from",
        )
        for name in sorted(missing)
    ]


@dataclass(frozen=True)
class Site:
    """One worker's place."""

    node: str
    speed: float
    """Relative to the recorded one."""
    link: Link
    sequences: int = 0
    context: int = 0


def planned(
    nodes: Sequence[NodeSpec], base: BaseModel, settings: Settings, head: LinkSpec, away: Set[str] = frozenset()
) -> PlacementPlan:
    """For present nodes. Raises ``ConfigError`` and ``BaseModelError``."""
    return on_machines(base, settings, [node for node in usable(nodes, head) if node.name not in away])


def sites_of(
    plan: PlacementPlan, nodes: Sequence[NodeSpec], base: BaseModel, profile: Profile, head: LinkSpec
) -> dict[str, Site]:
    """Workers' places, by name."""
    own = own_node(nodes)
    named = {"" if node.name == own else node.name: node for node in nodes}
    gain = THREADS if is_small(parameters(base)) else 1.0

    def speed(node: NodeSpec, place: Place, recorded: int) -> float:
        """``recorded``: the profile's cores, 0 for a card; cards and cores cannot be compared."""
        if not recorded:
            return len(place.gpus) or 1
        return 1.0 if place.gpus else ((len(place.cores) or max(1, node.cores // 2)) / recorded) ** gain

    sites = {}
    for sampler, memory in zip(plan.placement.samplers, plan.memory, strict=True):
        node = named[sampler.node]
        sampling = node.sampling * speed(node, sampler.place, profile.sampler.cores)
        sequences = node.sequences or memory.sequences
        sites[sampler.name] = Site(node.name, sampling, _link(node.link, head), sequences, plan.context)
    for trainer in plan.placement.trainers:
        node = named[trainer.node]
        training = node.training * speed(node, trainer.place, profile.trainer.cores)
        sites[trainer.name] = Site(node.name, training, _link(node.link, head))
    return sites


def own_node(nodes: Sequence[NodeSpec]) -> str | None:
    """The engine's machine: the first node without a link, or None."""
    return next((node.name for node in nodes if node.link == AT_THE_HEAD), None)


def settings_of(spec: ClusterSpec) -> Settings:
    """Defaults, with the file's devices."""
    defaults = Settings()
    rollout = replace(defaults.rollout, devices=spec.rollout.devices)
    training = replace(defaults.training, devices=spec.training.devices)
    engine = replace(defaults.engine, tasks=spec.at_once)
    return replace(defaults, rollout=rollout, training=training, engine=engine)


def usable(nodes: Sequence[NodeSpec], head: LinkSpec = AT_THE_HEAD) -> list[UsableNode]:
    """In the placement's order."""
    own = own_node(nodes)
    return [
        UsableNode(
            node="" if node.name == own else node.name,
            name=node.name,
            machine=_machine(node),
            software=ALL,
            free=int(node.memory * 1e9),
            link=_link(node.link, head),
        )
        for node in nodes
    ]


def _machine(node: NodeSpec) -> Machine:
    memory, words = int(node.card_memory * 1e9), f"{node.sampling:g} and {node.training:g} times as fast"

    def scaled(rates: Rates) -> Rates:  # training takes arithmetic, sampling bandwidth
        return Rates(rates.matrix * node.training, rates.bandwidth * node.sampling)

    cores = tuple(range(node.cores))
    cpu = Cpu(cores, node.cores, int(node.memory * 1e9), f"processor, {words}", scaled(CORE))
    gpus = (
        Gpu(
            *(number, f"{node.name}-{number}", f"card, {words}", "cuda", memory, memory, (9, 0)),
            rates=scaled(REFERENCE),
        )
        for number in range(node.cards)
    )
    return Machine(cpu, tuple(gpus))


def _link(link: LinkSpec, head: LinkSpec) -> Link:
    if link == AT_THE_HEAD:
        return Link()
    bandwidths = [each.bandwidth for each in (link, head) if each.bandwidth]
    return Link(2 * (link.latency + head.latency), 1 / min(bandwidths) if bandwidths else 0.0)
