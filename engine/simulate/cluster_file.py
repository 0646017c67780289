"""What is simulated, read from TOML: nodes, links, tasks, failures; and if the placement puts workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..devices.machine import Cpu, Gpu, Link, Machine, Place, Rates, Software, UsableNode
from ..errors import BaseModelError, ConfigError, as_one
from ..home.paths import Home, is_home
from ..home.settings import Settings
from ..machine.placement.capacity import CORE, REFERENCE, rates_of_cores, sampling_speed
from ..machine.placement.choices import is_small
from ..machine.plan import PlacementPlan, on_machines
from ..models.find import BaseModel, load_base
from ..models.weights import parameters
from ..queue.submission import taskfile
from ..queue.submission.taskfile import environments_of
from ..spec.validation import between, build, nearest
from ..store.submissions import Submission
from .profile import Profile, config_key, read_profile

# Reads a case from TOML: nodes with their devices and links, tasks with their tenants, failures.

SHIPPED = "tiny"
"""The default base."""
FOREVER = 1e9


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
    """Number of nodes; from two on they are called name-1, name-2, …"""
    cores: int = between(2, 1, 4096)
    memory: float = between(64.0, 0.1, 1e6)
    cards: int = between(0, 0, 1024)
    card_memory: float = between(80.0, 0.1, 1e5)
    sampling: float = between(1.0, 1e-3, 1e6)
    """Speed of its devices at sampling, as a multiple of the recorded one's."""
    training: float = between(1.0, 1e-3, 1e6)
    sequences: int = between(0, 0, 1 << 20)
    """Conversations of each sampler; 0: as recorded."""
    link: LinkSpec = AT_THE_HEAD


@dataclass(frozen=True)
class DevicesSpec:
    """The only devices of a stage."""

    devices: tuple[str, ...] = ()
    """``NODE``, or ``NODE/gpu 0``, as in ``marlaas.toml``; empty: the placement decides."""


@dataclass(frozen=True)
class TasksSpec:
    """Tasks from one file, this many times."""

    file: str
    count: int = between(1, 1, 1_000_000)
    tenants: int = between(0, 0, 100_000)
    """Tenants that get the tasks in turn, called after the file's tenant; 0: all are that tenant's."""
    at: float = between(0.0, 0.0, FOREVER)
    every: float = between(0.0, 0.0, FOREVER)


@dataclass(frozen=True)
class TenantSpec:
    """A tenant with another weight than 1."""

    name: str
    weight: float = between(1.0, 0.01, 100.0)


@dataclass(frozen=True)
class FailureSpec:
    """A node that fails and comes back, or only its link."""

    node: str
    at: float = between(0.0, 0.0, FOREVER)
    seconds: float = between(60.0, 0.0, FOREVER)
    link: bool = False
    """Only its link fails: messages arrive when it is back."""


@dataclass(frozen=True)
class ChanceSpec:
    """Failures of every node at random."""

    mean: float = between(0.0, 0.0, FOREVER)
    """Mean seconds until a node fails; 0: none does."""
    seconds: float = between(300.0, 0.0, FOREVER)


@dataclass(frozen=True)
class ClusterSpec:
    """A complete file. ``source`` is its key ``from``."""

    source: str
    nodes: tuple[NodeSpec, ...]
    tasks: tuple[TasksSpec, ...]
    base: str = ""
    seed: int = between(0, 0, 2**31)
    at_once: int = between(32, 1, 1_000_000)
    """Tasks that run at the same time, as ``[engine] tasks``."""
    seconds: float = between(FOREVER, 0.0, FOREVER)
    head: LinkSpec = LinkSpec()
    tenants: tuple[TenantSpec, ...] = ()
    failures: tuple[FailureSpec, ...] = ()
    chance: ChanceSpec = field(default=ChanceSpec())
    rollout: DevicesSpec = field(default=DevicesSpec())
    training: DevicesSpec = field(default=DevicesSpec())


@dataclass(frozen=True)
class Arrival:
    """A task that is submitted at a moment."""

    at: float
    submission: Submission


@dataclass(frozen=True)
class Case:
    """A checked file with everything that it names."""

    spec: ClusterSpec
    nodes: tuple[NodeSpec, ...]
    arrivals: tuple[Arrival, ...]
    profile: Profile
    base: BaseModel


def read_case(path: Path) -> Case:
    """Read a cluster file and what it names. Raises ``ConfigError`` with all mistakes."""
    where = str(path)
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("is no UTF-8 text.", "A cluster file is TOML.", where=where) from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}.", where=where) from error
    table = taskfile.table_of(source, where)
    mistakes: list[ConfigError] = []
    try:
        spec = build(ClusterSpec, {"source" if key == "from" else key: value for key, value in table.items()}, where)
    except ConfigError as error:
        raise as_one([_renamed(mistake) for mistake in error.mistakes]) from None
    nodes = nodes_of(spec)
    mistakes += _contradictions(spec, nodes, where)
    arrivals = _arrivals(spec, path, mistakes)
    profile = _profile(spec.source, path, mistakes)
    base = None
    if profile is not None:
        mistakes += _unplayed(arrivals, profile, where)
        base = _base(spec.base, profile, where, mistakes)
    if mistakes or profile is None or base is None:
        raise as_one(mistakes)
    return Case(spec, nodes, tuple(sorted(arrivals, key=lambda one: one.at)), profile, base)


def nodes_of(spec: ClusterSpec) -> tuple[NodeSpec, ...]:
    """All nodes, separately."""
    return tuple(
        replace(node, name=f"{node.name}-{number}" if node.count > 1 else node.name, count=1)
        for node in spec.nodes
        for number in range(1, node.count + 1)
    )


def profile_of(source: Path) -> Profile:
    """The profile of a home or a file. Raises ``ConfigError``."""
    if not source.exists():
        raise ConfigError("there is no such home or profile.", where=str(source))
    if source.is_file():
        return read_profile(source)
    if not is_home(source):
        raise ConfigError(
            "is no home of marlaas.", "Name a home, or a profile that one was recorded to.", where=str(source)
        )
    from .profile import record

    return record(Home(source))


def _renamed(mistake: ConfigError) -> ConfigError:
    cause = mistake.cause.replace("'source'", "'from'")
    return ConfigError(cause, mistake.hint.replace("'source'", "'from'"), where=mistake.where, path=mistake.path)


def _contradictions(spec: ClusterSpec, nodes: tuple[NodeSpec, ...], where: str) -> list[ConfigError]:
    says = []
    names = Counter(node.name for node in nodes)
    says += [
        ConfigError(f"{count} nodes are called {name!r}.", "Give each a name of its own.", where=where, path="nodes")
        for name, count in names.items()
        if count > 1
    ]
    says += [
        ConfigError(
            f"'failures[{place}].node' is {failure.node!r}, which no node is called.",
            nearest(failure.node, list(names)[:20]),
            where=where,
            path=f"failures[{place}].node",
        )
        for place, failure in enumerate(spec.failures)
        if failure.node not in names
    ]
    near = {node.name for node in nodes if node.link == LinkSpec()}
    says += [
        ConfigError(
            f"'failures[{place}].link' is true, and the node {failure.node!r} is reached without a link.",
            "Write [nodes.link] below that node, or leave `link` out.",
            where=where,
            path=f"failures[{place}].link",
        )
        for place, failure in enumerate(spec.failures)
        if failure.link and failure.node in near
    ]
    says += [
        ConfigError(
            f"'{stage}.devices' names {device!r}, and no node is called {node!r}.",
            nearest(node, list(names)[:20]),
            where=where,
            path=f"{stage}.devices",
        )
        for stage, wanted in (("rollout", spec.rollout), ("training", spec.training))
        for device in wanted.devices
        if (node := device.partition("/")[0]) not in names
    ]
    doubled = [name for name, count in Counter(tenant.name for tenant in spec.tenants).items() if count > 1]
    says += [ConfigError(f"the tenant {name!r} is named twice.", where=where, path="tenants") for name in doubled]
    if not spec.tasks:
        says.append(
            ConfigError("no tasks are named.", "Write [[tasks]] and `file` below it.", where=where, path="tasks")
        )
    return says


def _arrivals(spec: ClusterSpec, path: Path, mistakes: list[ConfigError]) -> list[Arrival]:
    found: list[Arrival] = []
    for tasks in spec.tasks:
        file = path.parent / Path(tasks.file).expanduser()
        try:
            own = taskfile.load(file)
        except ConfigError as error:
            mistakes += error.mistakes
            continue
        mistakes += [
            ConfigError(f"the task {why}, which no simulation has.", where=str(file))
            for submission in own
            if (why := _beyond(submission))
        ]
        for number in range(tasks.count):
            for submission in own:
                task = submission.spec
                if tasks.count > 1:  # with equal seeds all of them would meet the same instances and luck
                    train = replace(task.train, seed=task.train.seed + number)
                    task = replace(task, name=f"{task.name}-{number + 1}", train=train)
                if tasks.tenants:
                    task = replace(task, tenant=f"{task.tenant}-{number % tasks.tenants + 1}")
                found.append(Arrival(tasks.at + number * tasks.every, replace(submission, spec=task)))
    return found


def _beyond(submission: Submission) -> str:
    config = submission.spec.to_json()
    if config.get("kind") == "eval":
        return "measures versions"
    policies = [config.get("policy") or {}, *(config.get("policies") or {}).values()]
    borrowed = [words for policy in policies for words in (policy.get("start"), policy.get("frozen")) if words]
    return f"begins from the version {borrowed[0]!r}" if borrowed else ""


def _profile(source: str, path: Path, mistakes: list[ConfigError]) -> Profile | None:
    try:
        return profile_of(path.parent / Path(source).expanduser())
    except ConfigError as error:
        mistakes += error.mistakes
        return None


def _base(name: str, profile: Profile, where: str, mistakes: list[ConfigError]) -> BaseModel | None:
    try:
        return load_base(name or profile.base or SHIPPED)
    except BaseModelError as error:
        said = f"the base {name or profile.base!r} is not here: {error.cause}"
        mistakes.append(ConfigError(said, "Name another as `base`.", where=where, path="base"))
        return None


def _unplayed(arrivals: list[Arrival], profile: Profile, where: str) -> list[ConfigError]:
    played = {
        (part.name, config_key(part.config)) for arrival in arrivals for part in environments_of(arrival.submission)
    }
    lacking = sorted({name for name, config in played if profile.find(name, config) is None})
    return [
        ConfigError(
            f"nothing is recorded of the environment {name!r}.",
            nearest(name, profile.names()),
            where=where,
            path="from",
        )
        for name in lacking
    ]


# The time to send bytes between the head and a node: a link's latency, and its bandwidth, shared in turn.
#
# The head's own network is one more link for all traffic. Nodes without a link are the head itself.


class SimulatedLink:
    """One link: bytes go over it one after the other."""

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
        link = self._links[node]
        link.dark = max(link.dark, until)

    def seconds(self, node: str, size: int, now: float) -> float:
        """Seconds from now until this many bytes have gone between the head and a node."""
        link = self._links.get(node)
        if link is None:
            return 0.0
        arrives = max(self.head.send(now, size), link.send(now, size))
        return arrives - now + link.spec.latency + self.head.spec.latency


# The engine's own plan for a file's nodes, and the speeds of workers.
#
# A worker's speed follows from its node's speeds and from its devices, by the placement's arithmetic.

THREADS = 0.26
"""A small base gains by this power of the number of threads: with two it is 1.2 times as fast, as measured
(``machine/placement/place.py``). A large one gains by the placement's speeds."""
ALL = Software(vllm="simulated", vllm_build="cuda", torch_cuda=True, llama_backend="cuda", bitsandbytes=True)


@dataclass(frozen=True)
class Site:
    """The place of one worker."""

    node: str
    speed: float
    threads: int = 0
    sequences: int = 0
    context: int = 0


@dataclass(frozen=True)
class Layout:
    """A plan, and the places of its workers."""

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
    """The engine's plan for the present nodes. Raises ``ConfigError`` and ``BaseModelError`` as that does."""
    known = usable(nodes, head)
    plan = on_machines(base, settings, [node for node in known if node.name not in away])
    named = {node.node: spec for node, spec in zip(known, nodes, strict=True)}
    small = is_small(parameters(base))
    sites: dict[str, Site] = {}
    for sampler, memory in zip(plan.placement.samplers, plan.memory, strict=True):
        node = named[sampler.node]
        recorded = profile.sampler.cores
        speed = node.sampling * _by_devices(sampler.place, node, recorded, small, samples=True)
        sequences = node.sequences or memory.sequences
        sites[sampler.name] = Site(node.name, speed, _threads(sampler.place), sequences, plan.context)
    for trainer in plan.placement.trainers:
        node = named[trainer.node]
        recorded = profile.trainer.cores
        speed = node.training * _by_devices(trainer.place, node, recorded, small, samples=False)
        sites[trainer.name] = Site(node.name, speed, _threads(trainer.place))
    return Layout(plan, sites)


def own_node(nodes: Sequence[NodeSpec]) -> str | None:
    """The node that is the engine's own machine: the first without a link; None if all are reached over one."""
    return next((node.name for node in nodes if node.link == AT_THE_HEAD), None)


def settings_of(
    profile: Profile, at_once: int, rollout: tuple[str, ...] = (), training: tuple[str, ...] = ()
) -> Settings:
    """The settings of the simulated home.

    They are the defaults with the recorded conversations; ``rollout`` and ``training`` are the file's devices of the
    stages.
    """
    own, sampler = Settings(), profile.sampler
    return replace(
        own,
        rollout=replace(own.rollout, sequences=sampler.sequences, context=sampler.context, devices=rollout),
        training=replace(own.training, devices=training),
        engine=replace(own.engine, tasks=at_once),
    )


def usable(nodes: Sequence[NodeSpec], head: LinkSpec = AT_THE_HEAD) -> list[UsableNode]:
    """The nodes as the placement sees them, in their order."""
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
    cores, memory = tuple(range(node.cores)), int(node.card_memory * 1e9)
    words = f"{node.sampling:g} and {node.training:g} times as fast"
    cpu = Cpu(cores, node.cores, int(node.memory * 1e9), f"processor, {words}", _scaled(CORE, node))
    gpus = (
        Gpu(number, f"{node.name}-{number}", f"card, {words}", "cuda", memory, memory, (9, 0), rates=rates)
        for rates in [_scaled(REFERENCE, node)]
        for number in range(node.cards)
    )
    return Machine(cpu, tuple(gpus))


def _scaled(rates: Rates, node: NodeSpec) -> Rates:
    """Training takes arithmetic, sampling bandwidth."""
    return Rates(rates.matrix * node.training, rates.bandwidth * node.sampling)


def _link(own: LinkSpec, head: LinkSpec) -> Link:
    if own == AT_THE_HEAD:
        return Link()
    bytes_ = [link.bandwidth for link in (own, head) if link.bandwidth]
    return Link(2 * (own.latency + head.latency), 1 / min(bytes_) if bytes_ else 0.0)


def _threads(place: Place) -> int:
    return 0 if place.gpus else max(1, len(place.cores))


def _by_devices(place: Place, node: NodeSpec, recorded: int, small: bool, samples: bool) -> float:
    """Speed of a place's devices, as a multiple of the recorded ones of this node; ``recorded``: cores, 0: a card.

    Cards and cores cannot be compared: then only the node's speeds count.
    """
    if place.gpus or not recorded:
        return float(len(place.gpus) or 1) if not recorded else 1.0
    count = len(place.cores) or max(1, node.cores // 2)
    if small:
        return float((count / recorded) ** THREADS)
    if not samples:
        return count / recorded
    cpu = _machine(node).cpu
    return sampling_speed(rates_of_cores(cpu, count)) / sampling_speed(rates_of_cores(cpu, recorded))
