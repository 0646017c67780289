"""The inventory on imaginary machines: the real package, our code and a child process over a driver that is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.engine.devices import survey
from marlaas.engine.devices.machine import Cpu, Gpu, Holder, Inventory, Machine, Software
from marlaas.engine.devices.survey import has_driver, look, own_account, probe
from marlaas.engine.devices.usable import ResourceSettings, usable_resources

from ...imaginary.cards import GB, Card, Held, ImaginaryMachine, Part, imagine, uuid_of

LOST, NOT_LOADED = 15, 9
"""Of NVML's errors."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ImaginaryMachine:
    return imagine(monkeypatch, tmp_path)


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process of another account."""
    if os.getuid():
        yield 1
        return
    with subprocess.Popen(["sleep", "60"], user=65534) as process:
        yield process.pid
        process.kill()


@pytest.mark.processes
def test_eight_unequal_cards(machine: ImaginaryMachine) -> None:
    machine.have(*(Card(f"Imaginary {n}", (n + 1) * 10 * GB, n * GB, (7 + n % 3, n), n * 10) for n in range(8)))
    found = probe()
    assert (found.driver, found.cuda, found.reason, found.notes) == ("580.65.06", "13.0", "", ())
    assert [gpu.uuid for gpu in found.machine.gpus] == [uuid_of(n) for n in range(8)]
    last = found.machine.gpus[7]
    assert (last.index, last.label, last.name, last.kind) == (7, "gpu 7", "Imaginary 7", "cuda")
    assert (last.memory, last.free, last.capability, last.utilisation) == (80_000_000_000, 73_000_000_000, (8, 7), 0.7)
    assert found.machine.cpu.count >= 1 and found.machine.cpu.memory > 0


@pytest.mark.processes
def test_who_holds_memory(machine: ImaginaryMachine, stranger: int) -> None:
    held = (Held(stranger, 12_300), Held(os.getpid(), 2000), Held(os.getpid(), 2000, computes=False))
    machine.have(Card(used=14_400, held=held), Card(used=9000), Card(used=9000, held=(Held(stranger, None),)))
    one, two, three = look().machine.gpus
    theirs, ours = one.holders
    assert (theirs.pid, theirs.memory) == (stranger, 12_300_000_000) and theirs.account not in ("", own_account())
    assert (ours.pid, ours.account, ours.memory, ours.ours) == (os.getpid(), own_account(), 2_000_000_000, False)
    assert two.holders == (Holder(0, "", 9_000_000_000),)  # nobody who can be seen has them
    assert [holder.memory for holder in three.holders] == [0]  # what the driver does not say is not made up
    drawn, computed = (Card(used=300, held=(Held(1, 300, computes=computes),)) for computes in (False, True))
    machine.have(Card(used=700, old=True), Card(used=700), Card(used=70), Card(used=7000, old=True), drawn, computed)
    *gpus, draws, computes = look().machine.gpus
    assert [len(gpu.holders) for gpu in gpus] == [0, 1, 0, 1], "an older driver counts what it keeps for itself"
    assert [gpu.memory for gpu in gpus] == [Card().total * 1_000_000] * 4, "not the machine's memory"
    assert draws.holders[0].screen and not computes.holders[0].screen, "process 1 belongs to the system"


@pytest.mark.processes
def test_workers_and_their_children_are_ours(machine: ImaginaryMachine) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        machine.have(Card(used=3000, held=(Held(child.pid, 3000),)))
        (gpu,) = look([os.getpid()]).machine.gpus
        child.kill()
    assert gpu.holders == (Holder(child.pid, own_account(), 3_000_000_000, ours=True),)


@pytest.mark.processes
def test_a_divided_card_is_its_parts_and_a_lost_one_a_sentence(machine: ImaginaryMachine) -> None:
    parts = (Part(20 * GB, 1000, "Imaginary H1 MIG 2g.20gb"), Part(10 * GB))
    machine.have(Card(), Card(parts=parts), Card(code=LOST), Card(mode=3), Card(mode=2))
    found = look()
    whole, first, second, *others = found.machine.gpus
    assert (whole.label, first.label, second.label, whole.mode) == ("gpu 0", "gpu 1:0", "gpu 1:1", "shared")
    assert (first.uuid, first.memory, first.free) == (uuid_of(1, 0), 20_000_000_000, 19_000_000_000)
    assert first.capability == (9, 0) and first.utilisation is None and "MIG" in first.name
    assert [(gpu.index, gpu.mode) for gpu in others] == [(3, "exclusive"), (4, "prohibited")]
    assert found.notes == ("gpu 2 cannot be used: GPU is lost; restarting the machine may bring it back.",)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "reason"), [(NOT_LOADED, "installed and not loaded"), (0, "the NVIDIA driver 580.65.06 runs and has no")]
)
def test_no_card_has_a_reason(machine: ImaginaryMachine, code: int, reason: str) -> None:
    machine.have(init=code)
    found = look()
    assert found.machine.gpus == () and reason in found.reason


@pytest.mark.processes
def test_cuda_is_asked_which_of_unequal_cards_a_number_means(
    machine: ImaginaryMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.have(Card("slow", 8 * GB), Card("fast"), order=(1, 0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = look()
    assert found.order == (uuid_of(1), uuid_of(0))
    usable = usable_resources(found, ResourceSettings(), os.environ, own_account())
    assert [gpu.name for gpu in usable.machine.gpus] == ["fast"]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert look().order is None


@pytest.mark.processes
def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere/at/all")
    if has_driver():
        pytest.skip("this machine has an NVIDIA driver")
    for found in (probe(), look()):
        assert found.reason == "there is no NVIDIA driver" and found.machine.gpus == ()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import time; time.sleep(60)", "gave no answer within 0.2 s"),
        ("import os; os.kill(os.getpid(), 11)", "looking for cards failed: it ended with status -11"),
        ("raise OSError('no such bus')", "looking for cards failed: OSError: no such bus"),
        ("import sys, pickle; sys.stdout.buffer.write(pickle.dumps(7))", "looking for cards failed"),
    ],
)
def test_a_child_that_hangs_or_crashes_is_a_reason(
    machine: ImaginaryMachine, monkeypatch: pytest.MonkeyPatch, program: str, reason: str
) -> None:
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: real([sys.executable, "-c", program], **options))
    found = probe(seconds=0.2 if "sleep" in program else 30)
    assert reason in found.reason and found.machine.cpu.count >= 1


def test_cards_of_llama_count_where_nvml_shows_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own, other = Gpu(0, "GPU-1", "a", "cuda", 1, 1), Gpu(0, "Vulkan0", "b", "vulkan", 1, 1)
    monkeypatch.setattr(survey, "usable_software", lambda gpus: Software(llama_backend="vulkan", cards=(other,)))
    for nvidia, usable in (((), (other,)), ((own,), (own,))):
        found = Inventory(Machine(Cpu((), 1, 1), nvidia), cuda="13.0")
        monkeypatch.setattr(survey, "probe", lambda processes, found=found: found)
        seen = survey.survey_machine(ResourceSettings(), tmp_path / "rates.json")
        assert seen.found.machine.gpus == seen.usable.machine.gpus == usable
