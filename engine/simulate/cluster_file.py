"""What a simulation begins with: a cluster file, its workers' placement, and what a home has recorded."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import mul
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ..devices.machine import Cpu, Gpu, Link, Machine, Place, Rates, Software, UsableNode
from ..errors import BaseModelError, ConfigError, as_one
from ..fairness.line import ROLLOUT, TRAINING
from ..home.paths import Home, is_home
from ..home.settings import Settings
from ..machine.placement.capacity import CORE, REFERENCE
from ..machine.placement.choices import is_small
from ..machine.plan import PlacementPlan, on_machines
from ..models.find import BaseModel, load_base
from ..models.weights import parameters
from ..queue.submission import taskfile
from ..spec.validation import between, build, nearest
from ..store.queries import machine, timings
from ..store.queries.reader import Reader
from ..store.submissions import Submission


def non_negative(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> tuple[float, ...]:
    """Least-squares factors of ``rows``' columns for ``wanted``; a column that would get one below 0 is left out."""
    if not rows:
        return ()
    matrix, target = np.array(rows, np.float64), np.array(wanted, np.float64)
    columns = list(range(matrix.shape[1]))
    factors = np.zeros(len(columns))
    while columns:
        solution, *_ = np.linalg.lstsq(matrix[:, columns], target, rcond=None)
        if (solution >= 0).all():
            factors[columns] = solution
            break
        del columns[int(solution.argmin())]
    return tuple(map(float, factors))


@dataclass(frozen=True)
class RecordedTurn:
    """One ask and its reply."""

    agent: str
    after: int
    """Place of the turn before; -1: none."""
    delay: float
    """Seconds from that reply to the ask."""
    given: int
    said: int


@dataclass(frozen=True)
class RecordedEpisode:
    """One of a group."""

    turns: tuple[RecordedTurn, ...]
    tail: float
    scoring: float
    """Seconds until its reward."""
    rewards: dict[str, float]


@dataclass(frozen=True)
class RecordedFailures:
    """Share of all episodes, and seconds."""

    share: float = 0.0
    seconds: tuple[float, ...] = (0.0,)


@dataclass(frozen=True)
class RecordedEnvironment:
    """With some parameters."""

    environment: str
    config: str
    groups: tuple[tuple[RecordedEpisode, ...], ...]
    """Of training."""
    held_out: tuple[tuple[RecordedEpisode, ...], ...] = ()
    """Of evaluations; empty: as in training."""
    failures: RecordedFailures = RecordedFailures()


@dataclass(frozen=True)
class SamplerRates:
    """In seconds: a pass over n conversations takes ``a_pass + n * row`` and adds a token to each; a read token takes
    ``read``, a turn's begin ``turn``."""

    a_pass: float
    row: float
    read: float
    around: tuple[float, ...] = (0.0,)
    """Further seconds of a turn: the way there and back, and the engine."""
    kind: str = "torch"
    cores: int = 1
    turn: float = 0.0


@dataclass(frozen=True)
class TrainerRates:
    """In seconds: a call with groups of different rewards takes ``a_pass + groups * group + tokens * token``, times a
    draw of ``noise``; it may hold several policies."""

    group: float
    token: float
    noise: tuple[float, ...] = (1.0,)
    update: tuple[float, ...] = (0.0,)
    cores: int = 1
    a_pass: float = 0.0
    """0: not recorded, the fixed part is in ``group``."""


@dataclass(frozen=True)
class Profile:
    """All distributions."""

    source: str
    environments: tuple[RecordedEnvironment, ...]
    sampler: SamplerRates
    trainer: TrainerRates
    publish: tuple[float, ...] = (0.0,)
    """Seconds to load a version."""
    state_bytes: int = 0
    """Median bytes of a state file."""
    base: str = ""
    cards: bool = False

    def names(self) -> list[str]:
        return sorted({recorded.environment for recorded in self.environments})

    def find(self, environment: str, config: str) -> RecordedEnvironment | None:
        """All other parameters together if these have no records; the name's last part is enough."""
        named = [
            recorded
            for recorded in self.environments
            if environment in (recorded.environment, recorded.environment.rpartition("/")[2])
        ]
        for recorded in named:
            if recorded.config == config:
                return recorded
        if not named:
            return None
        groups = tuple(group for recorded in named for group in recorded.groups)
        held_out = tuple(group for recorded in named for group in recorded.held_out)
        return replace(named[0], config=config, groups=groups, held_out=held_out)


def config_key(config: dict[str, Any]) -> str:
    """One canonical text."""
    return json.dumps(config, sort_keys=True)


GROUPS = 400
"""Newest per environment and parameters."""
FASTEST = 4
"""One in this many turns, the fastest: others waited for a slot or shared passes, which a simulation adds itself."""
UNHINDERED = 2
"""Likewise for loading a version."""


Reply = tuple[float, int, int]
"""Seconds, read and sampled tokens of a turn."""


def record(home: Home) -> Profile:
    """Also with a running engine. Raises ``ConfigError`` if nothing is recorded."""
    with Reader(home.database) as reader:
        rows = timings.timed_trajectories(reader)
        episodes = [list(episode) for _, episode in groupby(rows, key=lambda row: (row.play, row.member))]
        timed = [episode for episode in episodes if any(row.timing for row in episode)]
        if not any(episode[0].split == "train" for episode in timed):
            raise ConfigError(
                "no training episode is recorded there with its times.",
                "Let tasks train in that home; its episodes are recorded by themselves.",
                where=str(home.root),
            )
        replies: list[Reply] = []
        environments = _environments(timed, replies, _failures(timings.outcome_counts(reader)))
        steps = timings.step_times(reader)
        base, kinds = timings.newest_engine(reader)
        sizes = timings.state_sizes(reader)
        publish = sorted(step.publish for step in steps if step.publish is not None)
        sampler = _sampler(reader, replies, kinds)
        trainer = _trainer(steps, _cores(reader, TRAINING))
        return Profile(
            source=f"the base {base!r}, {kinds or 'torch'}",
            environments=environments,
            sampler=sampler,
            trainer=trainer,
            publish=tuple(publish[: -(-len(publish) // UNHINDERED)]) or (0.0,),
            state_bytes=sizes[len(sizes) // 2] if sizes else 0,
            base=base,
            cards=not (sampler.cores and trainer.cores),
        )


Groups = defaultdict[int, list[RecordedEpisode]]


def _environments(
    episodes: Iterable[Sequence[timings.TimedTrajectory]],
    replies: list[Reply],
    failures: Mapping[str, RecordedFailures],
) -> tuple[RecordedEnvironment, ...]:
    """Adds to ``replies``. ``failures``: by the name's last part."""
    train: defaultdict[tuple[str, str], Groups] = defaultdict(lambda: defaultdict(list))
    held_out: defaultdict[tuple[str, str], Groups] = defaultdict(lambda: defaultdict(list))
    for rows in episodes:
        if not rows[0].suite:
            groups = train if rows[0].split == "train" else held_out
            groups[_environment_of(rows[0])][rows[0].play].append(_episode(rows, replies))
    return tuple(
        RecordedEnvironment(
            *key,
            _newest(groups),
            _newest(held_out[key]),
            failures.get(key[0].rpartition("/")[2], RecordedFailures()),
        )
        for key, groups in sorted(train.items())
    )


def _newest(groups: Groups) -> tuple[tuple[RecordedEpisode, ...], ...]:
    return tuple(map(tuple, list(groups.values())[-GROUPS:]))


def _environment_of(row: timings.TimedTrajectory) -> tuple[str, str]:
    config = json.loads(row.config)
    for part in config.get("mixture") or ():
        if row.component in (part.get("name"), part["environment"], part["environment"].rpartition("/")[2]):
            return part["environment"], config_key(part.get("config") or {})
    return config["environment"], config_key(config.get("environment_config") or {})


def _episode(rows: Sequence[timings.TimedTrajectory], replies: list[Reply]) -> RecordedEpisode:
    (times, over, ended) = next(row.timing for row in rows if row.timing)
    lengths: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        before = 0
        for start, stop, *_ in row.spans:
            lengths[row.agent].append((start - before, stop - start))
            before = stop
    waiting = {agent: iter(known) for agent, known in lengths.items()}
    turns: list[RecordedTurn] = []
    for agent, asked, answered in times:
        given, said = next(waiting.get(agent, iter(())), (0, 1))
        earlier = [number for number, (_, _, then) in enumerate(times[: len(turns)]) if then <= asked]
        after = max(earlier, key=lambda number: times[number][2], default=-1)
        since = times[after][2] if after >= 0 else 0.0
        turns.append(RecordedTurn(agent, after, max(0.0, asked - since), given, said))
        replies.append((answered - asked, given, said))
    last = max((answered for _, _, answered in times), default=0.0)
    rewards = {row.agent: row.reward for row in rows if row.reward is not None}
    return RecordedEpisode(tuple(turns), max(0.0, over - last), max(0.0, ended - over), rewards)


def _failures(counts: Iterable[tuple[str, str, int, int]]) -> dict[str, RecordedFailures]:
    """By the environment's last part."""
    ended: Counter[str] = Counter()
    failed: defaultdict[str, list[float]] = defaultdict(list)
    for environment, status, bucket, episodes in counts:
        name = environment.rpartition("/")[2]
        if status in ("ok", "error", "timeout"):
            ended[name] += max(0, episodes)
        if status in ("error", "timeout"):
            failed[name] += [2 ** ((bucket + 0.5) / 4)] * episodes
    return {name: RecordedFailures(len(seconds) / ended[name], tuple(seconds)) for name, seconds in failed.items()}


def _sampler(reader: Reader, replies: Sequence[Reply], kinds: str) -> SamplerRates:
    windows = timings.sampler_windows(reader)
    rows = [(float(each.passes), float(each.tokens), float(each.read), float(each.ended)) for each in windows]
    a_pass, row, read, turn = non_negative(rows, [each.busy for each in windows]) or (0.0, 0.0, 0.0, 0.0)
    shared = sum(each.read for each in windows) / max(1, sum(given for _, given, _ in replies))
    around = sorted(
        max(0.0, seconds - turn - (a_pass + row) * said - read * shared * given) for seconds, given, said in replies
    )
    around = around[: max(1, len(around) // FASTEST)]
    kind = kinds.partition(" + ")[0] or "torch"
    return SamplerRates(a_pass, row, read, tuple(around), kind, _cores(reader, ROLLOUT), turn)


def _trainer(steps: Sequence[timings.StepTimes], cores: int) -> TrainerRates:
    passed = [step for step in steps if step.training is not None and step.groups]
    took = [max(0.0, (step.training or 0.0) - (step.update or 0.0)) for step in passed]
    rows = [(step.calls or 0.0, float(step.groups), float(step.tokens)) for step in passed]
    a_pass, group, token = rates = non_negative(rows, took) or (0.0, 0.0, 0.0)
    expected = [sum(map(mul, rates, row)) for row in rows]
    noise = [seconds / mean for seconds, mean in zip(took, expected, strict=True) if mean > 0] or [1.0]
    middle = fmean(noise) or 1.0
    update = tuple(step.update for step in steps if step.update is not None)
    return TrainerRates(group, token, tuple(each / middle for each in noise), update or (0.0,), cores, a_pass)


def _cores(reader: Reader, stage: str) -> int:
    """Of a name like ``b/cores 0-3``; 0: a card."""
    device = next((use.device for use in machine.stages(reader, 0.0) if use.stage == stage), "")
    place = device.rpartition("/")[2]
    numbers = [int(number) for number in re.findall(r"\d+", place)]
    if place.startswith("gpu"):
        return 0
    return numbers[1] - numbers[0] + 1 if "-" in place else max(1, len(numbers))


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
