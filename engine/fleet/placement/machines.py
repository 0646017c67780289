"""The decision over several machines: which nodes sample, which train, and on which devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...base import MemoryPlan, Wanted
from ...devices import EnvironmentHost, Placement, SamplerAssignment, SamplerKind, TrainerAssignment, UsableNode
from ...errors import BaseModelError, ConfigError
from .node_words import draining, idle, links, refused, roles_in_words, said_at, wherever
from .place import place
from .processor import is_small
from .roles import Asked, Placer, Role, both, planned, rated, samples, trains, with_threads
from .sharing import GAIN, with_trainers
from .wishes import CPU, Choices, Times
from .words import together

# Devices that ``marlaas.toml`` names, where there are several machines. Pure.
#
# A device of the engine's machine is named as ever: ``gpu 0``, ``cpu``. ``NODE/gpu 0`` is one of another node,
# ``NODE`` alone is all of it. Where a list names something, its stage runs on nothing else.


def choices_at(nodes: Sequence[UsableNode], choices: Choices) -> dict[str, tuple[Choices, bool, bool]]:
    """For each node, by its id: the choices as they hold there, and whether it may sample and may train.

    Raises ``ConfigError`` for names that no node has.
    """
    rollout = _by_node(nodes, choices.rollout, "[rollout]")
    training = _by_node(nodes, choices.training, "[training]")
    return {
        node.node: (
            replace(choices, rollout=rollout.get(node.node, ()), training=training.get(node.node, ())),
            not choices.rollout or node.node in rollout,
            not choices.training or node.node in training,
        )
        for node in nodes
    }


def _by_node(nodes: Sequence[UsableNode], names: Sequence[str], table: str) -> dict[str, tuple[str, ...]]:
    """The devices that are named of each node; none for a node that is named as a whole."""
    found: dict[str, list[str]] = {}
    for name in names:
        before, slash, device = name.strip().partition("/")
        node = _named(nodes, before)
        if slash and node is None:
            known = together([node.name for node in nodes])
            raise ConfigError(f"`devices` under {table} names the node {before!r}.", f"There are: {known}.")
        if node is not None and (slash or before.lower() != CPU):
            found.setdefault(node.node, [])
            if slash:
                found[node.node].append(device)
        elif any(not node.node for node in nodes):
            found.setdefault("", []).append(name)
        else:
            raise ConfigError(
                f"`devices` under {table} has {name!r}, and the engine's own machine is not to be used.",
                "Write NODE/ before it, or undrain the machine.",
            )
    return {node: tuple(devices) for node, devices in found.items()}


def _named(nodes: Sequence[UsableNode], word: str) -> UsableNode | None:
    return next((node for node in nodes if word and word.lower() in (node.name.lower(), node.node.lower())), None)


# The decision over several machines: which nodes sample, which train, and where environments run. Pure.
#
# One machine is placed by ``place`` alone. Of several, each can sample with all that it has, train with all that it
# has, or do both (``roles``). Nodes stand in a row from those that are better at sampling to those that are better at
# training, and the row is cut where the slower stage is fastest, as cards are in ``division``; the node at the cut
# may do both. Policies are divided among the nodes that train: adapters need no exchange between trainers.

MIXED = 1.1
"""How many times as fast it must be that one node does both stages, each with devices of its own, beside others that do
one: workers of both stages take each other's processor time there, which is not in the arithmetic."""
LEAST_PART = 0.1
"""Share of what a stage's nodes do on average that a node must add: each has a version published to it, and a sampler
there is compared with the trainer at every one."""
RATIOS = tuple(2.0**power for power in range(-3, 4))
"""Work of sampling over that of training for which a node is divided, to fit what the others do."""


_ON_CARDS, _IN_FOUR_BITS, _ON_PROCESSORS = range(3)
"""Ways to train, the preferred one first; another one must be ``GAIN`` times as fast."""


@dataclass(frozen=True)
class Placed:
    """The placement over several machines, with the memory that each worker has."""

    placement: Placement
    memory: tuple[MemoryPlan, ...]
    """One plan for each sampler."""
    training: tuple[MemoryPlan, ...]
    """One plan for each trainer: that of the trainers of its node."""
    speed: float = 0.0
    """Modelled speed of the slower stage, in trained tokens of a reference card."""


@dataclass(frozen=True)
class _Division:
    """Roles of nodes, and how fast the slower stage then is."""

    roles: tuple[Role, ...]
    speed: float

    @property
    def group(self) -> int:
        trainer = self.training[0].trainers[0]
        if not trainer.place.gpus:
            return _ON_PROCESSORS
        return _IN_FOUR_BITS if trainer.precision == "nf4" else _ON_CARDS

    @property
    def trainers(self) -> int:
        return sum(len(role.trainers) for role in self.roles)

    @property
    def sampling(self) -> list[Role]:
        return [role for role in self.roles if role.samplers]

    @property
    def training(self) -> list[Role]:
        return [role for role in self.roles if role.trainers]


def place_over(
    nodes: Sequence[UsableNode],
    wanted: Wanted,
    choices: Choices | None = None,
    times: Times | None = None,
    trainers: int = 0,
    placer: Placer | None = None,
    kinds: Sequence[SamplerKind] = (),
) -> Placed:
    """Where everything runs, over nodes of which at least one can be used.

    ``trainers`` and ``kinds``: see ``Asked``. ``placer`` places both stages on one node; by default ``place`` does.
    Raises ``ConfigError`` where no node can be used, where wishes contradict one another, and where a stage finds no
    place; ``BaseModelError`` where the base fits on none.
    """
    choices, times = choices or Choices(), times or Times()
    asked = Asked(wanted, times, trainers, tuple(kinds))
    placer = placer or _placer(wanted)
    nodes = sorted(nodes, key=_order)
    usable = [node for node in nodes if not node.draining and not node.refused]
    if not usable:
        raise ConfigError(
            "No node can be used: all drain, or are refused.",
            "`marlaas cluster status` says why; `marlaas cluster undrain NODE` takes one back.",
        )
    own = choices_at(usable, choices)
    if len(usable) == 1:
        return _only(usable[0], own[usable[0].node][0], nodes, asked, placer)
    found = _chosen(usable, own, asked, placer)
    if found is None:
        raise _nowhere(usable, own, asked, placer)
    return _placed(_alike(_worth_it(found, times), wanted), nodes, usable, asked)


def _placer(wanted: Wanted) -> Placer:
    return lambda node, choices, times: place(node.machine, node.software, wanted, choices, times)


def _only(node: UsableNode, choices: Choices, nodes: Sequence[UsableNode], asked: Asked, placer: Placer) -> Placed:
    """Both stages on the only node that can be used, as on the only machine."""
    small, policies = is_small(asked.wanted.parameters), asked.wanted.tasks
    placement = with_trainers(placer(node, choices, asked.times), asked.trainers, small, policies)
    role = rated(planned(Role(node, placement.samplers, placement.trainers), asked.wanted), asked)
    placement = replace(
        placement,
        samplers=tuple(replace(own, node=node.node) for own in placement.samplers),
        trainer=replace(placement.trainer, node=node.node),
        more=tuple(replace(own, node=node.node) for own in placement.more),
        reasons=(*placement.reasons, *node.reasons, *left_out(nodes)),
        hosts=hosts_of([node], ()) if node.node else (),
    )
    return Placed(
        placement, role.memory, tuple(role.memory[0] for _ in placement.trainers), _slower([role], asked.times)
    )


def left_out(nodes: Sequence[UsableNode]) -> list[str]:
    """A sentence on each node that is not used."""
    said = [draining(node) for node in nodes if node.draining]
    return said + [refused(node) for node in nodes if node.refused and not node.draining]


def _order(node: UsableNode) -> tuple[bool, str, str]:
    """The engine's machine first, then by name."""
    return bool(node.node), node.name, node.node


@dataclass(frozen=True)
class _Ways:
    """What a node may do."""

    samples: Role | None
    trains: Mapping[str, Role]
    """By class of trainer (``_class``)."""
    both: tuple[Role, ...]

    def leaning(self, kind: str) -> float:
        """Speed at training over speed at sampling: nodes stand in a row by it."""
        sampling = self.samples.sampling if self.samples else 0.0
        training = self.trains[kind].training if kind in self.trains else 0.0
        if not sampling or not training:
            return math.inf if training else 0.0
        return training / sampling


def _class(role: Role) -> str:
    """Trainers of one plan are of one class: they keep the base alike, and are all on cards or all on processors."""
    trainer = role.trainers[0]
    return f"{'cards' if trainer.place.gpus else 'processors'} {trainer.precision}"


def _chosen(
    nodes: Sequence[UsableNode], own: Mapping[str, tuple[Choices, bool, bool]], asked: Asked, placer: Placer
) -> _Division | None:
    found = []
    for count in _counts(asked, nodes):
        ways = [_ways(node, *own[node.node], asked, placer, count) for node in nodes]
        classes = {kind for way in ways for kind in (*way.trains, *(_class(role) for role in way.both))}
        found += [
            division
            for kind in sorted(classes)
            for threads in _threads(ways, kind)
            if (division := _divided([_narrowed(way, kind, threads, asked) for way in ways], kind, asked))
        ]
    if asked.trainers:
        most = max((one.trainers for one in found), default=0)
        found = [one for one in found if one.trainers == most]
    best: _Division | None = None
    for group in (_ON_CARDS, _IN_FOUR_BITS, _ON_PROCESSORS):
        other = max((one for one in found if one.group == group), key=_speed, default=None)
        if other and (best is None or other.speed > GAIN * best.speed):
            best = other
    return best


def _counts(asked: Asked, nodes: Sequence[UsableNode]) -> list[int]:
    """Numbers of trainers that each node might have: to have in all as many as are asked for, or on cards at most as
    many as there are policies; the most first."""
    every = asked.trainers or asked.wanted.tasks
    counts = {-(-every // among) for among in range(1, len(nodes) + 1)}
    if not asked.trainers:  # a node has a trainer for each card at most
        counts = {min(count, max(1, *(len(node.machine.gpus) for node in nodes))) for count in counts}
    return sorted(counts, reverse=True)


def _ways(
    node: UsableNode, choices: Choices, may_sample: bool, may_train: bool, asked: Asked, placer: Placer, count: int
) -> _Ways:
    apart = choices.share == "auto"
    sampling = samples(node, asked, choices) if may_sample and apart else None
    training = trains(node, asked, choices, count) if may_train and apart else ()
    mixed: dict[tuple[object, ...], Role] = {}
    if may_sample and may_train:
        for ratio in (asked.times.sampling / asked.times.training, *RATIOS):
            role = both(node, asked, choices, placer, ratio, count)
            if role is not None:
                mixed.setdefault((role.samplers, role.trainers, role.shared and ratio), role)
    return _Ways(sampling, {_class(role): role for role in training}, tuple(mixed.values()))


def _threads(ways: Sequence[_Ways], kind: str) -> list[int]:
    """Numbers of threads that all trainers might have: a policy has the same bits wherever it is trained."""
    roles = [way.trains[kind] for way in ways if kind in way.trains]
    roles += [role for way in ways for role in way.both if _class(role) == kind]
    return sorted({role.threads for role in roles})


def _narrowed(way: _Ways, kind: str, threads: int, asked: Asked) -> _Ways:
    def able(role: Role) -> bool:
        return _class(role) == kind and role.threads >= threads

    def fitted(role: Role) -> Role:
        return with_threads(role, threads, asked) if threads else role

    return _Ways(
        way.samples,
        {name: fitted(role) for name, role in way.trains.items() if able(role)},
        tuple(fitted(role) for role in way.both if able(role)),
    )


def _divided(ways: Sequence[_Ways], kind: str, asked: Asked) -> _Division | None:
    """The best division with trainers of one class; apart, unless it gains enough that a node does both."""
    row = sorted(range(len(ways)), key=lambda number: (ways[number].leaning(kind), -number))  # the engine's trains
    plain: list[_Division | None] = []
    mixed: list[_Division | None] = []
    shared: list[_Division | None] = []
    for cut in range(len(row) + 1):
        left = [role for number in row[:cut] if (role := ways[number].samples)]
        right = [role for number in row[cut:] if (role := ways[number].trains.get(kind))]
        plain.append(_rated(left, right, (), asked))
        if cut < len(row):
            beyond = [role for number in row[cut + 1 :] if (role := ways[number].trains.get(kind))]
            for role in ways[row[cut]].both:
                (shared if role.shared else mixed).append(_rated(left, beyond, (role,), asked))
    best = max((one for one in plain if one), key=_speed, default=None)
    for others, gain in ((mixed, MIXED), (shared, GAIN)):
        other = max((one for one in others if one), key=_speed, default=None)
        if other and (best is None or other.speed > gain * best.speed):
            best = other
    return best


def _speed(division: _Division) -> tuple[float, int, int]:
    speed = float(f"{division.speed:.9e}")  # sums over cards are rounded by how these are divided
    return speed, len(division.roles), division.trainers


def _rated(left: Sequence[Role], right: Sequence[Role], both: Sequence[Role], asked: Asked) -> _Division | None:
    """The nodes on the ``left`` sample, those on the ``right`` train; None where a stage has no node."""
    most = min(asked.trainers or asked.wanted.tasks, asked.wanted.tasks) - sum(len(role.trainers) for role in both)
    right = _few(right, max(0, most))
    roles = (*both, *left, *right)
    speed = _slower(roles, asked.times)
    return _Division(roles, speed) if speed else None


def _slower(roles: Sequence[Role], times: Times) -> float:
    """Speed of the slower stage; 0 where one has no node."""
    sampling = math.fsum(role.sampling for role in roles)
    training = math.fsum(role.training for role in roles)
    return min(sampling / times.sampling, training / times.training)


def _few(roles: Sequence[Role], most: int) -> list[Role]:
    """The fastest nodes with so many trainers in all: more could not all have a policy."""
    kept: list[Role] = []
    for role in sorted(roles, key=lambda role: (-role.training, _order(role.node))):
        if most > 0:
            count = min(most, len(role.trainers))
            part = role.training * count / len(role.trainers)
            kept.append(replace(role, trainers=role.trainers[:count], training=part))
            most -= count
    return kept


def _worth_it(division: _Division, times: Times) -> _Division:
    """Without nodes that add too little to their stage."""
    kept = list(division.roles)
    for stage in ("sampling", "training"):
        while True:
            at = [role for role in kept if getattr(role, stage)]
            least = min(at, key=lambda role: getattr(role, stage))
            mean = math.fsum(getattr(role, stage) for role in at) / len(at)
            if getattr(least, stage) >= LEAST_PART * mean or (least.samplers and least.trainers):
                break
            kept.remove(least)
    return _Division(tuple(kept), _slower(kept, times))


def _alike(division: _Division, wanted: Wanted) -> _Division:
    """With contexts of one length: a conversation may go to any sampler."""
    context = min(plan.context for role in division.roles for plan in role.memory)
    if all(plan.context == context for role in division.roles for plan in role.memory):
        return division
    return replace(division, roles=tuple(planned(role, replace(wanted, context=context)) for role in division.roles))


def _placed(division: _Division, nodes: Sequence[UsableNode], usable: Sequence[UsableNode], asked: Asked) -> Placed:
    sampling = sorted(division.sampling, key=lambda role: (not role.trainers, _order(role.node)))
    training = sorted(division.training, key=lambda role: (not role.samplers, _order(role.node)))
    samplers = [replace(own, node=role.node.node) for role in sampling for own in role.samplers]
    trainers = [replace(own, node=role.node.node) for role in training for own in role.trainers]
    samplers = [replace(own, name=_numbered("rollout", number)) for number, own in enumerate(samplers, 1)]
    trainers = [replace(own, name=_numbered("training", number)) for number, own in enumerate(trainers, 1)]
    hosts = hosts_of(usable, [*samplers, *trainers])
    said = [
        *roles_in_words(division.sampling, division.training, asked.times),
        *(sentence for role in sorted(division.roles, key=lambda r: _order(r.node)) for sentence in said_at(role)),
        *(sentence for role in division.roles for sentence in links(role, asked.wanted)),
        *idle(usable, division.roles),
        *left_out(nodes),
        *wherever(hosts),
    ]
    placement = Placement(tuple(samplers), trainers[0], tuple(said), tuple(trainers[1:]), hosts)
    memory = tuple(plan for role in sampling for plan in role.memory)
    own = tuple(role.trains_with or role.memory[0] for role in training for _ in role.trainers)
    return Placed(placement, memory, own, division.speed)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def hosts_of(
    nodes: Sequence[UsableNode], workers: Sequence[SamplerAssignment | TrainerAssignment]
) -> tuple[EnvironmentHost, ...]:
    """Where environments and scores run: on the engine's machine, where nothing goes over a link, then on the nodes
    with the most cores that no worker is pinned to. They need processors and few bytes (RollArt, arXiv 2512.22560)."""

    def free(node: UsableNode) -> int:
        taken = {core for own in workers if own.node == node.node for core in own.place.cores}
        return node.machine.cpu.count - len(taken)

    row = sorted(nodes, key=lambda node: (bool(node.node), -free(node), node.link.call, node.name, node.node))
    return tuple(EnvironmentHost(node.node, node.name, node.machine.cpu.count, node.link.call) for node in row)


def _nowhere(
    nodes: Sequence[UsableNode], own: Mapping[str, tuple[Choices, bool, bool]], asked: Asked, placer: Placer
) -> ConfigError | BaseModelError:
    """Why nothing can be placed, as the node says that could do the most."""
    if not any(may for _, may, _ in own.values()) or not any(may for _, _, may in own.values()):
        return ConfigError("`devices` names no node that can be used.", "`marlaas cluster status` lists them.")
    last: ConfigError | BaseModelError = ConfigError("No node can sample and train this base.")
    for node in nodes:
        choices = own[node.node][0]
        try:
            placement = placer(node, choices, asked.times)
            planned(Role(node, placement.samplers, placement.trainers), asked.wanted)
        except (ConfigError, BaseModelError) as error:
            last = error
    return last
