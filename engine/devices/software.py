"""What is installed that can use which device: what is on the disk and what it answers flow in, ``Software`` flows out.

``judge`` is pure; ``software`` looks, and starts a child process only where there is a card to be asked about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from packaging.version import Version

from .answers import Answers, ask
from .installed import Installed, find_installed
from .machine import Gpu, Kind, Software
from .troubles import READ_VLLM, llama_trouble, torch_trouble, vllm_trouble

answered: dict[tuple[str, ...], Software] = {}
"""By the cards that were asked about. What a process has loaded, or could, does not change under it."""


def usable_software(gpus: Sequence[Gpu] = ()) -> Software:
    """What can use ``gpus``, the cards that marlaas may use. Takes seconds at the first call where there are cards.

    It blocks; later calls about the same cards get the same answer.
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
    """The same from facts."""
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
    idle = not usable and bool(cuda or there.llama_backends)  # a card, or a build for one, that llama.cpp should use
    return replace(
        known,
        vllm=there.vllm if usable else "",
        vllm_build=there.vllm_build,
        vllm_reason=vllm_reason,
        llama_reason=llama_trouble(there, answers, backend) if idle else "",
    )


def notes(known: Software) -> tuple[str, ...]:
    """What a person should know, a sentence each: troubles, then a version that nobody has tried."""
    reasons = [reason for reason in (known.vllm_reason, known.torch_reason, known.llama_reason) if reason]
    if known.vllm and Version(known.vllm).release[:2] > READ_VLLM.release[:2]:
        reasons.append(f"vLLM {known.vllm} is newer than the newest that marlaas was written for, {READ_VLLM}.")
    return tuple(reasons)


def _backend(there: Installed, answers: Answers, cuda: bool) -> Kind:
    """That of the cards which llama.cpp reaches; the processor where it reaches none."""
    if cuda and "cuda" in there.llama_backends and answers.llama_reaches and not answers.llama_error:
        return "cuda"
    return answers.cards[0].kind if answers.cards else "cpu"
