"""A cluster file in TOML, and its workers' placement."""

from __future__ import annotations

import re
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
from ..queue.submission.taskfile import environments_of
from ..spec.validation import between, build, nearest
from ..store.submissions import Submission
from .profile import Profile, config_key, read_profile, record

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
    """Of each sampler; 0: as recorded."""
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
    """A node or its link fails and comes back."""

    node: str
    at: float = between(0.0, 0.0, FOREVER)
    seconds: float = between(60.0, 0.0, FOREVER)
    link: bool = False
    """Messages then arrive later."""


@dataclass(frozen=True)
class ChanceSpec:
    """Random failures of every node."""

    mean: float = between(0.0, 0.0, FOREVER)
    """Seconds until a node fails; 0: none does."""
    seconds: float = between(300.0, 0.0, FOREVER)


@dataclass(frozen=True)
class ClusterSpec:
    """``source`` is the key ``from``."""

    source: str
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
    chance: ChanceSpec = field(default=ChanceSpec())
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
    try:
        spec = build(ClusterSpec, {"source" if key == "from" else key: value for key, value in table.items()}, where)
    except ConfigError as error:
        raise as_one([_renamed(mistake) for mistake in error.mistakes]) from None
    nodes = nodes_of(spec)
    mistakes = _contradictions(spec, nodes, where)
    arrivals = _arrivals(spec, path, mistakes)
    try:
        profile = profile_of(path.parent / Path(spec.source).expanduser())
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


def _renamed(mistake: ConfigError) -> ConfigError:
    """With the key ``from`` as it is in the file."""
    path, *also = ("from" if key == "source" else key for key in (mistake.path, *mistake.also))
    cause, hint = mistake.cause.replace("'source'", "'from'"), re.sub(r"\bsource\b", "from", mistake.hint)
    return ConfigError(cause, hint, where=mistake.where, path=path, also=also, code=mistake.code)


def nodes_of(spec: ClusterSpec) -> tuple[NodeSpec, ...]:
    """All nodes, separately."""
    return tuple(
        replace(node, name=f"{node.name}-{number}" if node.count > 1 else node.name, count=1)
        for node in spec.nodes
        for number in range(1, node.count + 1)
    )


def profile_of(source: Path) -> Profile:
    """Of a home or a file. Raises ``ConfigError``."""
    if not source.exists():
        raise ConfigError("there is no such home or profile.", where=str(source))
    if source.is_file():
        return read_profile(source)
    if not is_home(source):
        raise ConfigError(
            "is no home of marlaas.", "Name a home, or a profile that one was recorded to.", where=str(source)
        )
    return record(Home(source))


def _contradictions(spec: ClusterSpec, nodes: Sequence[NodeSpec], where: str) -> list[ConfigError]:
    mistakes: list[ConfigError] = []

    def wrong(path: str, cause: str, hint: str = "") -> None:
        mistakes.append(ConfigError(cause, hint, where=where, path=path))

    names = Counter(node.name for node in nodes)
    near = {node.name for node in nodes if node.link == AT_THE_HEAD}
    for name, count in names.items():
        if count > 1:
            wrong("nodes", f"{count} nodes are called {name!r}.", "Give each its own name.")
    for place, failure in enumerate(spec.failures):
        path = f"failures[{place}]"
        if failure.node not in names:
            cause = f"'{path}.node' is {failure.node!r}, which no node is called."
            wrong(f"{path}.node", cause, nearest(failure.node, list(names)[:20]))
        elif failure.link and failure.node in near:
            cause = f"'{path}.link' is true, and the node {failure.node!r} is reached without a link."
            wrong(f"{path}.link", cause, "Write [nodes.link] below that node, or leave `link` out.")
    for stage, chosen in (("rollout", spec.rollout), ("training", spec.training)):
        for device in chosen.devices:
            if (node := device.partition("/")[0]) not in names:
                cause = f"'{stage}.devices' names {device!r}, and no node is called {node!r}."
                wrong(f"{stage}.devices", cause, nearest(node, list(names)[:20]))
    for name, count in Counter(tenant.name for tenant in spec.tenants).items():
        if count > 1:
            wrong("tenants", f"the tenant {name!r} is named twice.")
    if not spec.tasks:
        wrong("tasks", "no tasks are named.", "Write [[tasks]] and `file` below it.")
    return mistakes


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
    used = {
        (part.name, config_key(part.config)) for arrival in arrivals for part in environments_of(arrival.submission)
    }
    return [
        ConfigError(
            f"nothing is recorded of the environment {name!r}.",
            nearest(name, profile.names()),
            where=where,
            path="from",
        )
        for name in sorted({name for name, config in used if profile.find(name, config) is None})
    ]


# Seconds to send bytes: latency, and bandwidth shared in turn. All traffic also takes the head's link. Nodes without a
# link are the head.


class SimulatedLink:
    """Bytes go one after the other."""

    def __init__(self, spec: LinkSpec) -> None:
        self.spec = spec
        self.bytes = 0
        self.busy = 0.0
        self.dark = 0.0
        """Until then nothing goes over it."""
        self._free = 0.0

    def send(self, now: float, size: int) -> float:
        self.bytes += size
        now = max(now, self.dark)
        if not self.spec.bandwidth:
            return now
        took = size / self.spec.bandwidth
        self._free = max(self._free, now) + took
        self.busy += took
        return self._free


class Network:
    """All links."""

    def __init__(self, head: LinkSpec, nodes: Mapping[str, LinkSpec]) -> None:
        self.head = SimulatedLink(head)
        self._links = {name: SimulatedLink(spec) for name, spec in nodes.items() if spec != LinkSpec()}

    def darken(self, node: str, until: float) -> None:
        self._links[node].dark = max(self._links[node].dark, until)

    def seconds(self, node: str, size: int, now: float) -> float:
        link = self._links.get(node)
        if link is None:
            return 0.0
        arrives = max(self.head.send(now, size), link.send(now, size))
        return arrives - now + link.spec.latency + self.head.spec.latency


@dataclass(frozen=True)
class Site:
    """One worker's place."""

    node: str
    speed: float
    threads: int = 0
    """0: on cards."""
    sequences: int = 0
    context: int = 0


@dataclass(frozen=True)
class Layout:
    """The engine's plan and workers' places."""

    plan: PlacementPlan
    sites: dict[str, Site]


def layout(
    nodes: Sequence[NodeSpec],
    base: BaseModel,
    profile: Profile,
    settings: Settings,
    head: LinkSpec = AT_THE_HEAD,
    away: Set[str] = frozenset(),
) -> Layout:
    """The plan for present nodes. Raises ``ConfigError`` and ``BaseModelError``."""
    usable_nodes = usable(nodes, head)
    plan = on_machines(base, settings, [node for node in usable_nodes if node.name not in away])
    named = {node.node: spec for node, spec in zip(usable_nodes, nodes, strict=True)}
    gain = THREADS if is_small(parameters(base)) else 1.0

    def site(node: NodeSpec, speed: float, place: Place, recorded: int, sequences: int = 0, context: int = 0) -> Site:
        """``recorded``: the profile's cores, 0 for a card; cards and cores cannot be compared."""
        threads = 0 if place.gpus else max(1, len(place.cores))
        if not recorded:
            speed *= len(place.gpus) or 1
        elif threads:
            speed *= ((len(place.cores) or max(1, node.cores // 2)) / recorded) ** gain
        return Site(node.name, speed, threads, sequences, context)

    sites = {}
    for sampler, memory in zip(plan.placement.samplers, plan.memory, strict=True):
        node = named[sampler.node]
        sequences = node.sequences or memory.sequences
        sites[sampler.name] = site(node, node.sampling, sampler.place, profile.sampler.cores, sequences, plan.context)
    for trainer in plan.placement.trainers:
        node = named[trainer.node]
        sites[trainer.name] = site(node, node.training, trainer.place, profile.trainer.cores)
    return Layout(plan, sites)


def own_node(nodes: Sequence[NodeSpec]) -> str | None:
    """The engine's machine: the first node without a link, or None."""
    return next((node.name for node in nodes if node.link == AT_THE_HEAD), None)


def settings_of(
    profile: Profile, at_once: int, rollout: tuple[str, ...] = (), training: tuple[str, ...] = ()
) -> Settings:
    """Defaults, with recorded conversations and the file's devices."""
    defaults, sampler = Settings(), profile.sampler
    return replace(
        defaults,
        rollout=replace(defaults.rollout, sequences=sampler.sequences, context=sampler.context, devices=rollout),
        training=replace(defaults.training, devices=training),
        engine=replace(defaults.engine, tasks=at_once),
    )


def usable(nodes: Sequence[NodeSpec], head: LinkSpec = AT_THE_HEAD) -> list[UsableNode]:
    """In the placement's order."""
    engine_node = own_node(nodes)
    return [
        UsableNode(
            node="" if node.name == engine_node else node.name,
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
