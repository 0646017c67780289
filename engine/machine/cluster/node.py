"""Nodes of a cluster: versions, devices, clocks, and draining."""

from __future__ import annotations

import platform
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar

from ...devices.limits import available_memory
from ...devices.machine import Cpu, Link, Machine, Software, UsableNode
from ...devices.software import find_installed, version_of
from ...devices.survey import survey_machine
from ...devices.usable import NOTHING, Ours, UsableResources
from ...errors import ClusterUnreachable, MarlaasError
from ...home.paths import Home, version
from ...home.settings import load_settings


@dataclass(frozen=True)
class Versions:
    """For nodes to understand each other and compute alike. Empty: not installed."""

    python: str = ""
    marlaas: str = ""
    ray: str = ""
    torch: str = ""
    llama_cpp: str = ""
    vllm: str = ""


NAMES = {"python": "Python", "llama_cpp": "llama-cpp-python", "vllm": "vLLM", "ray": "Ray"}
NEEDED = ("python", "marlaas", "ray", "torch")
"""On every node; llama.cpp and vLLM are optional."""


def own_versions() -> Versions:
    """The versions of this Python's environment."""
    there = find_installed()
    return Versions(
        python=platform.python_version(),
        marlaas=version(),
        ray=version_of("ray"),
        torch=there.torch,
        llama_cpp=there.llama,
        vllm=there.vllm,
    )


def differences(here: Versions, there: Versions, node: str = "there") -> str:
    """Why two nodes cannot work together.

    Python counts to its minor version; a build's part (``+cu128``) does not count.
    """
    told = []
    for field in fields(Versions):
        mine, theirs = getattr(here, field.name), getattr(there, field.name)
        if _counts(field.name, mine) == _counts(field.name, theirs):
            continue
        if field.name in NEEDED or (mine and theirs):
            name = NAMES.get(field.name, field.name)
            told.append(f"{name} is {theirs or 'missing'} {node} and {mine or 'missing'} here")
    return f"{', '.join(told)}." if told else ""


def versions_in_words(versions: Versions) -> str:
    """``Python 3.12.3, torch 2.11.0``, for people."""
    there = [(NAMES.get(field.name, field.name), getattr(versions, field.name)) for field in fields(Versions)]
    return ", ".join(f"{name} {version}" for name, version in there if version)


def _counts(name: str, version: str) -> str:
    public = version.partition("+")[0]
    return ".".join(public.split(".")[:2]) if name == "python" else public


@dataclass(frozen=True)
class NodeFacts:
    """A node's description of itself."""

    versions: Versions = Versions()  # it is frozen
    usable: UsableResources = UsableResources(Machine(Cpu((), 0, 0)))  # noqa: RUF009  # likewise
    """By marlaas.toml, container and other accounts."""
    software: Software = Software()  # noqa: RUF009  # likewise
    free_bytes: int = 0
    trouble: str = ""
    without_base: str = ""
    """Why the engine's base is not there."""


@dataclass(frozen=True)
class Node:
    """One machine of the cluster."""

    id: str
    """Ray's id, hexadecimal: new at each joining."""
    name: str
    address: str
    alive: bool = True
    here: bool = False
    """The engine's own machine."""
    facts: NodeFacts = NodeFacts()
    refused: str = ""
    link: Link = Link()  # noqa: RUF009  # it is frozen
    """From the engine's machine, measured at the first look."""
    clock: float | None = None
    """Seconds ahead of the engine's; None: unknown."""


def usable_nodes(nodes: Sequence[Node], drained: Collection[str]) -> list[UsableNode]:
    """Living nodes, without ``drained`` names."""
    return [
        UsableNode(
            node="" if node.here else node.id,
            name=node.name,
            machine=node.facts.usable.machine,
            software=node.facts.software,
            free=node.facts.free_bytes,
            link=Link() if node.here else node.link,
            draining=node.name in drained,
            refused=node.refused,
            reasons=node.facts.usable.reasons,
        )
        for node in nodes
        if node.alive
    ]


def link_of(calls: Sequence[float], sent: int, seconds: float) -> Link:
    """From seconds of empty calls and of one with ``sent`` bytes.

    The fastest empty call counts: others waited for a processor.
    """
    call = min(calls)
    return Link(call, max(0.0, seconds - call) / sent if sent else 0.0)


def look_here(home: Home, ours: Ours = NOTHING, *, measure: bool = False) -> NodeFacts:
    """``ours``: held by the engine's workers.

    ``measure``: devices of unknown speed, some seconds each, without workers.
    """
    versions = own_versions()
    try:
        settings = load_settings(home)
        seen = survey_machine(settings.resources, home.rates, ours, missing=measure)
    except MarlaasError as error:
        return NodeFacts(versions, trouble=error.message)
    return NodeFacts(versions, seen.usable, seen.software, available_memory(settings.resources.memory))


def trouble_with(facts: NodeFacts, engine: Versions) -> str:
    """Why a node is not used, in a sentence."""
    if facts.trouble:
        return facts.trouble
    if differ := differences(engine, facts.versions):
        return f"{differ} Install the same versions on both."
    if facts.without_base:
        return facts.without_base
    if not facts.usable.machine.cpu.count:
        return "No core may be used there."
    return ""


TOKEN = ("nauthenticated", "UNAUTHENTICATED", "AuthenticationError", "InvalidAuth")
SIGNS = {
    TOKEN: "it does not accept this machine's token",
    ("already running at",): "another Ray listens at that address; choose another `port` under [cluster]",
    ("timed out during startup",): "this machine is too busy for it; the same command may do it in a while",
    ("Version mismatch",): "the cluster runs another version of Python or Ray",
    ("Address already in use", "Only one usage of each socket"): (
        "a port is taken; `port` and `ports` under [cluster] name others"
    ),
    ("No space left on device",): "its disk, or /dev/shm, is full",
    ("Failed to connect to GCS", "http2 header"): "what listens there does not speak as Ray does",
}
"""Parts of Ray's output, and their meaning."""


def refuses_token(output: str) -> bool:
    """True if Ray did not accept a token."""
    return any(sign in output for sign in TOKEN)


def reason_in(output: str) -> str:
    """Why Ray failed, as a clause; the last line if unknown."""
    for signs, clause in SIGNS.items():
        if any(sign in output for sign in signs):
            return clause
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it left no word")
    return re.sub(r"^[\w.]+(Error|Exception): ", "", last).rstrip(".")


def unreached(address: str, reason: str) -> ClusterUnreachable:
    """The error for a cluster that does not answer."""
    hint = "`marlaas cluster status` says how this machine stands."
    return ClusterUnreachable(f"No cluster answers at {address}: {reason}.", hint)


# Only the engine stamps what it stores, but people compare logs.

LIMIT = 10.0


def clock_warning(name: str, ahead: float) -> str:
    """A warning on a node's clock; empty: near enough."""
    if abs(ahead) <= LIMIT:
        return ""
    way = "ahead of" if ahead > 0 else "behind"
    return (
        f"The clock of {name} is {_span(abs(ahead))} {way} this machine's: training does not mind, but logs are hard to"
        " compare. Let both ask a time server (NTP)."
    )


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"


T = TypeVar("T", bound=Any)


def of_each_name(nodes: Sequence[T]) -> tuple[T, ...]:
    """A living node first: a machine that joins again has another id."""
    found: dict[str, T] = {}
    for node in nodes:
        if node.name not in found or (node.alive and not found[node.name].alive):
            found[node.name] = node
    return tuple(node for node in nodes if found[node.name] is node)


def meant(word: str, nodes: Sequence[Any]) -> tuple[str, str]:
    """The node by its name, or an id's begin; else why none."""
    names = [node.name for node in nodes]
    if word in names:
        return word, ""
    begun = sorted({node.name for node in nodes if len(word) >= 4 and node.id.startswith(word)})
    if len(begun) == 1:
        return begun[0], ""
    close = get_close_matches(word, names, n=1)
    hint = f"Did you mean {close[0]}?" if close else "`marlaas cluster status` lists them."
    return "", f"The cluster has no node {word!r}. {hint}"


def why_not_drain(name: str, nodes: Sequence[Any], drained: Collection[str]) -> str:
    """Why a node cannot be drained: nothing would be left; empty: it can."""
    others = [
        node.name
        for node in nodes
        if node.alive and not node.refused and node.name != name and node.name not in drained
    ]
    if others:
        return ""
    return (
        f"{name} is the only node that works: nothing would be left. Let another join first, or stop the engine with"
        " `marlaas engine drain`."
    )
