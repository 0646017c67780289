"""Which devices the installed libraries can use, by what is on the disk and what the libraries answer.

``judge`` is pure; ``usable_software`` looks, and starts child processes only where there is a card to ask about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from packaging.version import Version

from ..machine import Gpu, Kind, Software
from .answers import Answers, ask
from .installed import Installed, find_installed
from .troubles import READ_VLLM, llama_trouble, torch_trouble, vllm_trouble

answered: dict[tuple[str, ...], Software] = {}
"""Answers by the cards that were asked about: what a process can load does not change while it runs."""


def usable_software(gpus: Sequence[Gpu] = ()) -> Software:
    """Find which libraries can use ``gpus``, the cards that marlaas may use.

    It blocks, for seconds where there are cards; later calls about the same cards return the same answer at once.
    """
    key = tuple(gpu.uuid for gpu in gpus)
    if key not in answered:
        there = find_installed()
        asked = any(gpu.kind == "cuda" for gpu in gpus)
        others = tuple(kind for kind in there.llama_backends if kind != "cuda" or asked)
        answers = ask(gpus, torch=asked, vllm=asked and bool(there.vllm), llama=bool(others))
        answered[key] = judge(there, answers, gpus)
    return answered[key]


def judge(there: Installed, answers: Answers, gpus: Sequence[Gpu]) -> Software:
    """Decide it from what is installed and what the libraries answered."""
    cuda = [gpu for gpu in gpus if gpu.kind == "cuda"]
    backend = _backend(there, answers, bool(cuda))
    torch_reason = torch_trouble(there, answers, cuda) if cuda else ""
    known = Software(
        torch_cuda=bool(cuda) and not torch_reason,
        torch_reason=torch_reason,
        llama_backend=backend,
        bitsandbytes=there.bitsandbytes,
        cards=answers.cards,
    )
    vllm_reason = vllm_trouble(there, answers, known, cuda)
    usable = bool(there.vllm) and not vllm_reason
    idle = not usable and bool(cuda or there.llama_backends)  # llama.cpp should use a card, or its build for one
    return replace(
        known,
        vllm=there.vllm if usable else "",
        vllm_build=there.vllm_build,
        vllm_reason=vllm_reason,
        llama_reason=llama_trouble(there, answers, backend) if idle else "",
    )


def notes(known: Software) -> tuple[str, ...]:
    """Sentences for people: why libraries cannot use the cards, then whether a version is untested."""
    reasons = [reason for reason in (known.vllm_reason, known.torch_reason, known.llama_reason) if reason]
    if known.vllm and Version(known.vllm).release[:2] > READ_VLLM.release[:2]:
        reasons.append(f"vLLM {known.vllm} is newer than the newest that marlaas was written for, {READ_VLLM}.")
    return tuple(reasons)


def _backend(there: Installed, answers: Answers, cuda: bool) -> Kind:
    """The kind of the cards that llama.cpp reaches; "cpu" where it reaches none."""
    if cuda and "cuda" in there.llama_backends and answers.llama_reaches and not answers.llama_error:
        return "cuda"
    return answers.cards[0].kind if answers.cards else "cpu"
