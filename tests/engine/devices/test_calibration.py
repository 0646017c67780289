"""Rates are measured once, kept, and measured anew where anything that matters is another."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marlaas.engine.devices import survey as calibration
from marlaas.engine.devices.machine import Cpu, Gpu, Inventory, Machine, Rates
from marlaas.engine.devices.survey import key_of, look, with_rates

CARD = Gpu(0, "GPU-1", "H", "cuda", 80, 80)
FOUND = Inventory(
    Machine(Cpu((0, 1), 2, 1, "A processor"), (CARD, replace(CARD, uuid="Vulkan0", kind="vulkan"))), "580"
)
ANSWER = '{"matrix": 5e14, "bandwidth": 4e12, "bfloat16": 2e15}'


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Mapping[str, str]]]:
    """What was started, each of which answered the same."""
    started: list[tuple[list[str], Mapping[str, str]]] = []

    def run(command: list[str], env: Mapping[str, str], **options: Any) -> SimpleNamespace:
        started.append((command[4:], env))
        return SimpleNamespace(returncode=0, stdout=f"something else\n{ANSWER}\n".encode(), stderr=b"")

    monkeypatch.setattr(subprocess, "run", run)
    return started


def test_measured_once(children: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "home" / "rates.json"
    assert with_rates(FOUND, path)[0] == FOUND and not path.exists()  # it does not measure unasked
    rated = with_rates(FOUND, path, missing=True)
    card, other = rated[0].machine.gpus
    assert card.rates == rated[0].machine.cpu.rates == Rates(5e14, 4e12, 2e15) and other.rates is None
    assert [command for command, _ in children] == [["cpu", "1"], ["cuda"]]
    assert [env["CUDA_VISIBLE_DEVICES"] for _, env in children] == ["", "GPU-1"]
    assert with_rates(FOUND, path, missing=True) == with_rates(FOUND, path) == rated and len(children) == 2
    with_rates(FOUND, path, anew=True)
    assert len(children) == 4 and list(path.parent.iterdir()) == [path]


def test_another_card_driver_or_torch_is_measured(
    children: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rates.json"
    for found in (
        FOUND,
        replace(FOUND, driver="590"),
        replace(FOUND, machine=replace(FOUND.machine, gpus=(replace(CARD, uuid="GPU-2"),))),
    ):
        with_rates(found, path, missing=True)
    assert [command[0] for command, _ in children] == ["cpu", "cuda", "cuda", "cuda"]
    assert len(json.loads(path.read_text())) == 4  # a card that is put back is still known
    monkeypatch.setattr(calibration, "version_of", lambda name: "99.0")
    with_rates(FOUND, path, missing=True)
    assert len(children) == 6 and "torch 99.0" in key_of(CARD, FOUND)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"CPU": {"matrix": NaN, "bandwidth": 1, "bfloat16": 1}}',
        '{"CPU": {"matrix": 1, "bandwidth": 0, "bfloat16": 1}}',
        '{"CPU": {"matrix": 1, "bandwidth": 1, "bfloat16": -1}}',
        '{"CPU": {"matrix": 1, "bandwidth": 1}}',  # of a release that did not measure bfloat16
        "\udc80",
    ],
)
def test_what_the_file_does_not_say_is_measured(children: list[Any], tmp_path: Path, text: str) -> None:
    path = tmp_path / "rates.json"
    known = text.replace("CPU", key_of(FOUND.machine.cpu, FOUND))
    path.write_bytes(known.encode("utf-8", "surrogateescape"))
    assert with_rates(FOUND, path, missing=True)[0].machine.cpu.rates == Rates(5e14, 4e12, 2e15)


@pytest.mark.parametrize(
    ("child", "reason"),
    [
        (SimpleNamespace(returncode=1, stdout=b"", stderr=b"Traceback\ntorch.OutOfMemoryError: no room\n"), "no room"),
        (SimpleNamespace(returncode=-11, stdout=b"", stderr=b""), "ended with status -11"),
        (SimpleNamespace(returncode=0, stdout=b'{"matrix": 0, "bandwidth": 1}\n', stderr=b""), '{"matrix": 0'),
        (subprocess.TimeoutExpired("x", 60), "it gave no answer within 60 s"),
        (OSError("no such program"), "no such program"),
    ],
)
def test_what_cannot_be_measured_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: Any, reason: str
) -> None:
    def run(*arguments: Any, **options: Any) -> Any:
        if isinstance(child, Exception):
            raise child
        return child

    monkeypatch.setattr(subprocess, "run", run)
    rated = with_rates(FOUND, tmp_path / "rates.json", missing=True)
    assert rated[0] == FOUND and not (tmp_path / "rates.json").exists()
    assert [("the processor" in note, reason in note) for note in rated[1]] == [(True, True), (False, True)]
    assert "gpu 0" in rated[1][1]


def test_bfloat16_has_no_rate_under_a_limit(
    children: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rated = with_rates(FOUND, tmp_path / "rates.json", missing=True)
    monkeypatch.setattr(calibration, "address_space", lambda: 1 << 40)
    limited = with_rates(FOUND, tmp_path / "rates.json")[0].machine.cpu.rates
    assert limited == Rates(5e14, 4e12) and rated[0].machine.cpu.rates == Rates(5e14, 4e12, 2e15)


def test_a_home_that_cannot_be_written_is_no_error(children: list[Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert with_rates(FOUND, tmp_path / "file" / "rates.json", missing=True)[1] == []


@pytest.mark.torch
def test_this_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "RUN_SECONDS", 0.0)
    monkeypatch.setattr(calibration, "SIDES", {"cpu": 256})
    monkeypatch.setattr(calibration, "MOVED", {"cpu": 1 << 20})
    rates = calibration.measure_here("cpu")
    assert rates.matrix > 1e8 and rates.bandwidth > 1e7  # slower than any machine that runs torch
    assert rates.bfloat16 > 1e7 and rates.gain == rates.bfloat16 / rates.matrix


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.torch
def test_this_processor_in_a_child(tmp_path: Path) -> None:
    rated = with_rates(replace(look(), machine=Machine(look().machine.cpu)), tmp_path / "rates.json", missing=True)
    assert rated[1] == [] and rated[0].machine.cpu.rates is not None
