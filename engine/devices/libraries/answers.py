"""Asks the installed libraries which cards they reach, each in a short child process with a time limit.

A child that hangs, crashes or prints nonsense is an answer, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..cards.visible import environment
from ..machine import Gpu

LIMIT = 120.0
"""Seconds for a child process. To load PyTorch from a slow disk takes half of it."""
TORCH_CARDS = "marlaas.engine.devices.libraries.torch_cards"
LLAMA_CARDS = "marlaas.engine.rollout.llama.native"
"""Programs that ask one library each."""
KINDS = ("rocm", "metal", "vulkan")
"""Kinds of cards that are known through llama.cpp alone."""


@dataclass(frozen=True)
class Answers:
    """What the libraries answered; texts are empty and numbers 0 where one was not asked."""

    torch_cuda: str = ""
    """The CUDA version that PyTorch was built for: ``13.0``; empty for a build without."""
    torch_count: int = 0
    """Cards that PyTorch reaches."""
    torch_built_for: tuple[str, ...] = ()
    """Architectures that PyTorch's kernels were compiled for: ``sm_90``."""
    torch_error: str = ""
    driver_cuda: int = 0
    """The newest CUDA that the driver supports, as 1000 x major + 10 x minor; 0 where it supports none."""
    vllm_platform: str = ""
    """The platform that vLLM detects: ``cuda``."""
    vllm_error: str = ""
    cards: tuple[Gpu, ...] = ()
    """Cards that llama.cpp reaches by another way than CUDA."""
    llama_reaches: int = 0
    """Cards of any kind that llama.cpp reaches."""
    llama_error: str = ""


def ask(gpus: Sequence[Gpu], torch: bool, vllm: bool, llama: bool) -> Answers:
    """Ask the chosen libraries about ``gpus``; other CUDA cards are hidden from them."""
    found: dict[str, Mapping[str, Any]] = {}
    if torch or vllm:
        found |= _run(TORCH_CARDS, gpus, ("torch", "vllm") if vllm else ("torch",))
    if llama:
        found |= _run(LLAMA_CARDS, gpus, ("llama.cpp",))
    return answers_of(found)


def answers_of(found: Mapping[str, Mapping[str, Any]]) -> Answers:
    """Read the answers from the lines that the probes printed, by library."""
    torch, vllm, llama = (found.get(library, {}) for library in ("torch", "vllm", "llama.cpp"))
    lines = llama.get("cards", ())
    cards = [_gpu(index, line) for index, line in enumerate(lines) if line["kind"] in KINDS]
    return Answers(
        torch_cuda=str(torch.get("cuda", "")),
        torch_count=int(torch.get("count", 0)),
        torch_built_for=tuple(map(str, torch.get("built_for", ()))),
        torch_error=str(torch.get("error", "")),
        driver_cuda=int(torch.get("driver_cuda", 0)),
        vllm_platform=str(vllm.get("platform", "")),
        vllm_error=str(vllm.get("error", "")),
        cards=tuple(cards),
        llama_reaches=len(lines),
        llama_error=str(llama.get("error", "")),
    )


def _gpu(index: int, line: Mapping[str, Any]) -> Gpu:
    name = str(line["name"])
    return Gpu(index, name, str(line["description"]), line["kind"], int(line["memory"]), int(line["free"]))


def _run(probe: str, gpus: Sequence[Gpu], libraries: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Run one probe: its answer for each library, or as an error how it ended before it came to that library."""
    ended = "it said nothing"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", probe, *libraries],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT,
            text=True,
            errors="replace",
            env=os.environ | environment(gpus),
        )
        out = done.stdout
        if done.returncode:
            said = done.stderr.strip().splitlines()
            ended = said[-1][:300] if said else f"it ended with status {done.returncode}"
    except subprocess.TimeoutExpired as error:
        out = error.stdout.decode("utf-8", "replace") if isinstance(error.stdout, bytes) else ""
        ended = f"it gave no answer within {LIMIT:.0f} s"
    except OSError as error:
        out, ended = "", str(error)
    return {library: {"error": ended} for library in libraries} | read_lines(out)


def read_lines(out: str) -> dict[str, Mapping[str, Any]]:
    """The JSON lines among what a child printed, by library."""
    found: dict[str, Mapping[str, Any]] = {}
    for line in out.splitlines():
        try:
            facts = json.loads(line)
        except ValueError:
            continue
        if isinstance(facts, dict) and isinstance(facts.get("library"), str):
            found[facts["library"]] = facts
    return found
