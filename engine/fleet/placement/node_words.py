"""The plan over several machines in words: which node does what, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...base import RANK, Wanted, adapter_bytes
from ...devices import EnvironmentHost, UsableNode
from .capacity import MOMENTS
from .roles import Role
from .wishes import Times
from .words import times, together

TOLD = 0.01
"""Share of a node's speed from which on what its link costs is told."""


def roles_in_words(sampling: Sequence[Role], training: Sequence[Role], stages: Times) -> Iterator[str]:
    """Which nodes sample and which train."""
    known = "as measured" if stages.measured else "as assumed until it is measured"
    same = {role.node.node for role in sampling} == {role.node.node for role in training}
    who = (
        _verb(sampling, "samples and trains", "sample and train")
        if same
        else f"{_verb(sampling, 'samples', 'sample')}, and {_verb(training, 'trains', 'train')}"
    )
    yield f"{who}: sampling takes {times(stages.sampling / stages.training)} the work of training, {known}."
    if len(training) > 1:
        yield "Policies are divided among the nodes that train."


def _verb(roles: Sequence[Role], one: str, many: str) -> str:
    names = sorted({role.node.name for role in roles})
    if len(names) > 6:
        return f"{len(names)} nodes {many}"
    return f"{together(names)} {one if len(names) == 1 else many}"


def said_at(role: Role) -> Iterator[str]:
    """What is done at a node, and with what."""
    for sentence in (*role.reasons, *role.node.reasons):
        yield f"{role.node.name}: {sentence}"


def links(role: Role, wanted: Wanted) -> Iterator[str]:
    """What a node's link costs, where that is felt."""
    link, size = role.node.link, adapter_bytes(wanted.config, RANK)
    if role.cost >= TOLD:
        yield (
            f"The link to {role.node.name} takes {1000 * link.call:.3g} ms for a call and"
            f" {link.seconds(1, (MOMENTS if role.trainers else 1) * size):.2g} s for a policy's state, which costs"
            f" {role.cost:.0%} of its speed."
        )


def idle(nodes: Sequence[UsableNode], roles: Sequence[Role]) -> Iterator[str]:
    """Nodes that neither sample nor train."""
    busy = {role.node.node for role in roles}
    for node in nodes:
        if node.node not in busy:
            yield f"{node.name} neither samples nor trains: it cannot, or it would add too little to the others."


def draining(node: UsableNode) -> str:
    """Why nothing is placed on a node that drains."""
    return f"{node.name} drains, so it gets nothing new."


def refused(node: UsableNode) -> str:
    """Why nothing is placed on a node that cannot be used."""
    return f"{node.name} is not used: {node.refused}"


def wherever(hosts: Sequence[EnvironmentHost]) -> Iterator[str]:
    """Where environments run."""
    if len(hosts) > 1:
        named = (
            together([f"{host.name} ({host.cores})" for host in hosts]) if len(hosts) <= 6 else f"{len(hosts)} nodes"
        )
        total = sum(host.cores for host in hosts)
        yield f"Environments and scores run on {named}, in up to {total} processes that compute."
