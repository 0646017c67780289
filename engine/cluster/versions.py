"""Which versions a node runs, and which differences keep it out of a cluster. Pure but for ``own_versions``.

Imports none of the libraries.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, fields

from ..devices import find_installed, version_of
from ..home import version


@dataclass(frozen=True)
class Versions:
    """Versions of what decides whether nodes understand each other, and whether they compute alike.

    Empty where something is not installed.
    """

    python: str = ""
    marlaas: str = ""
    ray: str = ""
    torch: str = ""
    llama_cpp: str = ""
    vllm: str = ""


NAMES = {"python": "Python", "llama_cpp": "llama-cpp-python", "vllm": "vLLM", "ray": "Ray"}
"""Names for people, where they differ from the field's."""
NEEDED = ("python", "marlaas", "ray", "torch")
"""What every node needs; one without llama.cpp or vLLM has no samplers of that kind, and is no less a node."""


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
    """Why two nodes cannot work together, in one sentence; empty where they can.

    Python counts to its minor version, because what is sent is data, and code goes by name. A build's own part of a
    version, the ``+cu128`` of a torch, does not count: nodes with cards and nodes without may work together.
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
    """``Python 3.12.3, torch 2.11.0``: what is installed, for people."""
    there = [(NAMES.get(field.name, field.name), getattr(versions, field.name)) for field in fields(Versions)]
    return ", ".join(f"{name} {version}" for name, version in there if version)


def _counts(name: str, version: str) -> str:
    """The part of a version that must be the same."""
    public = version.partition("+")[0]
    return ".".join(public.split(".")[:2]) if name == "python" else public
