"""The benchmark of a card: tried on the processor with real workers, and what is said where there is no card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.large_base import card, card_stage
from benchmarks.large_base.card_stage import chosen
from benchmarks.large_base.card_tasks import tasks
from benchmarks.report.figures import Unmeasurable
from marlaas.engine.devices.machine import Cpu, Gpu, Inventory, Machine, Software
from marlaas.engine.devices.survey import Survey
from marlaas.engine.devices.usable import LeftOut, UsableResources

CARD = Gpu(0, "GPU-1", "H200", "cuda", 140 << 30, 139 << 30, capability=(9, 0))


def seen(software: Software, *gpus: Gpu, reason: str = "", left: tuple[LeftOut, ...] = ()) -> Survey:
    machine = Machine(Cpu((0, 1), 2, 1 << 34), gpus)
    return Survey(Inventory(machine, reason=reason), UsableResources(machine, left), software, "me")


def test_without_a_card_a_sentence_says_so() -> None:
    with pytest.raises(Unmeasurable, match=r"no card here that marlaas may use: there is no NVIDIA driver\.$"):
        chosen(seen(Software(), reason="there is no NVIDIA driver"), "card")
    with pytest.raises(Unmeasurable, match=r"PyTorch 2\.13 is a build for the processor alone"):
        chosen(seen(Software(torch_reason="PyTorch 2.13 is a build for the processor alone."), CARD), "card")


def test_what_works_on_the_card_is_measured() -> None:
    both = Software(vllm="0.32.0", torch_cuda=True, llama_backend="cuda")
    assert chosen(seen(both, CARD), "card") == (CARD, ("vllm", "llama.cpp"))
    assert chosen(seen(Software(torch_cuda=True), CARD), "card") == (CARD, ())
    assert chosen(seen(both, CARD), "cpu") == (None, ("llama.cpp", "torch"))


def test_a_stage_starts_workers_on_its_card(tmp_path: Path) -> None:
    with card_stage.staged("mini", "cpu", 60) as stage:
        assert stage.sampler("llama.cpp").kwargs["devices"] == ()
        assert stage.trainer().environment["CUDA_VISIBLE_DEVICES"] == ""
        on_card = replace(stage, gpu=CARD, precision="bf16")
    samplers = on_card.sampler("vllm"), on_card.sampler("llama.cpp")
    assert samplers[0].kwargs["device"] == "cuda" and samplers[1].kwargs["devices"] == ("CUDA0",)
    assert {worker.environment["CUDA_VISIBLE_DEVICES"] for worker in samplers} == {"GPU-1"}
    assert on_card.trainer().kwargs["devices"] == ("cuda:0",) and on_card.trainer().kwargs["precision"] == "bf16"


def test_the_arms_differ_in_staleness_alone() -> None:
    assert {task.train.max_staleness for task in tasks(4)} == {2}
    assert {task.train.max_staleness for task in tasks(4, staleness=0)} == {0}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_the_whole_script_on_the_processor(capsys: pytest.CaptureFixture[str]) -> None:
    assert card.main(["--device", "cpu", "--shape", "mini", "--seconds", "400", "--tasks", "3"]) == 0
    said = capsys.readouterr().out
    for what in ("sampled by llama.cpp, 32 adapters", "trained fused, 32 adapters", "3 tasks, all at once"):
        assert what in said
