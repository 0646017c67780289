"""Environments of their own for programs that no one here wrote: one for each library, under ``.clients``.

Run by ``make test-slow-clients``; standard library only. ``LIBRARIES`` says which versions were tested. None of them
needs PyTorch, and none gets it. An environment that stands as it would be made today is left as it is.

    python -m tools.clients [NAME …]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .steps import LOG, ROOT, StepFailed, fail, last_complaint, minutes, pip, python_of, step

FOLDER = ROOT / ".clients"
REFUSED = ("torch", "vllm")
"""Never installed there: gigabytes that a client of an endpoint does not need."""


@dataclass(frozen=True)
class Library:
    """What an environment holds."""

    requirements: tuple[str, ...]
    """With all that they need."""
    alone: tuple[str, ...] = ()
    """Without what they ask for, because that is more than their clients' side needs."""


LIBRARIES = {
    "openai": Library(("openai==3.54.0",)),
    "anthropic": Library(("anthropic==2.10.0",)),
    "litellm": Library(("litellm==1.106.2",)),
    "smolagents": Library(("smolagents[openai]==1.26.0",)),
    "openai-agents": Library(("openai-agents==0.24.0",)),
    "langgraph": Library(("langgraph==1.2.22", "langchain-openai==1.7.3", "langchain-core==1.7.2")),
    "mini-swe-agent": Library(("mini-swe-agent==2.4.6", "litellm==1.106.2", "mcp==2.3.0")),
    "inspect-ai": Library(("inspect-ai==0.3.285", "openai==3.54.0")),
    "lm-eval": Library(("lm-eval[api]==0.4.13", "transformers==5.23.0")),
    "verifiers": Library(("verifiers==0.4.0",)),
}
"""Each environment's packages, in the versions that were tested."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what is asked for, or all; returns an exit code."""
    names = list(sys.argv[1:] if arguments is None else arguments) or list(LIBRARIES)
    if unknown := sorted(set(names) - set(LIBRARIES)):
        return fail(f"There is no client {unknown[0]!r}.", f"There are {', '.join(LIBRARIES)}.")
    for name in names:
        if stands(name):
            continue
        started = time.monotonic()
        try:
            make(name)
        except StepFailed as error:
            return fail(f"Set-up stopped while {error}: {last_complaint()}", f"The whole log is {LOG}.")
        print(f"{name} is there after {minutes(time.monotonic() - started)}.", flush=True)
    return 0


def venv_of(name: str) -> Path:
    """The environment of a library, whether it is there or not."""
    return FOLDER / name


def stands(name: str) -> bool:
    """Whether the environment is there, made as it would be made today."""
    stamp = venv_of(name) / ".installed"
    return stamp.exists() and stamp.read_text(encoding="utf-8") == _wanted(name)


def make(name: str) -> None:
    """Make one anew. Raises ``StepFailed``."""
    venv, library = venv_of(name), LIBRARIES[name]
    step(f"making {venv.name}", [sys.executable, "-m", "venv", "--clear", "--without-pip", str(venv)])
    if library.requirements:
        step(f"installing {name}", pip(*library.requirements, into=venv))
    if library.alone:
        step(f"installing the rest of {name}", pip("--no-deps", *library.alone, into=venv))
    heavy = [each for each in REFUSED if _installed(venv, each)]
    if heavy:
        raise StepFailed(f"installing {name}, which would bring {heavy[0]}")
    (venv / ".installed").write_text(_wanted(name), encoding="utf-8")


def _installed(venv: Path, package: str) -> bool:
    return any(python_of(venv).parent.parent.glob(f"lib/python*/site-packages/{package}/__init__.py"))


def _wanted(name: str) -> str:
    """A fingerprint that changes whenever an installation would give something else."""
    return f"{sys.version}\n{LIBRARIES[name]}\n"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
