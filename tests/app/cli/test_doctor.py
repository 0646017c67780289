"""doctor: each finding stands alone, and a crash of a library is a finding."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from marlaas.app.operations import doctor, doctor as checks
from marlaas.app.text import tasks
from marlaas.engine.devices import software, survey
from marlaas.engine.devices.machine import Software
from marlaas.engine.devices.software import LlamaBuild
from marlaas.engine.home.paths import Home

from ...imaginary.cards import GB, Card, Held, ImaginaryMachine, imagine
from ..commanding import Commander
from ..filling import Filling


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Children are not started; each answers with the status and text put here."""
    answer: list[Any] = [0, "fine 1.0"]
    monkeypatch.setattr(doctor, "run_program", lambda command, timeout: (answer[0], answer[1]))
    monkeypatch.setattr(survey, "has_driver", lambda: False)
    return answer


def test_all_is_well(marlaas: Commander, probed: list[Any], home: Home) -> None:
    said = marlaas("doctor")
    assert said.code == 0 and "All that is needed" in said.err
    names = {finding["name"] for finding in marlaas("doctor", "--json").json["findings"]}
    assert names > {"python", "gpu", "placement", "disk", "torch", "llama.cpp", "home", "sandbox", "engine", "cluster"}
    assert not home.root.exists()


@pytest.mark.parametrize(
    ("status", "text", "value"),
    [
        (-4, "", "crashes: it was built for another processor"),
        (1, "Traceback\nModuleNotFoundError: No module named 'x'\x1b[2J", "ModuleNotFoundError: No module named 'x'"),
    ],
)
def test_a_broken_library(marlaas: Commander, probed: list[Any], status: int, text: str, value: str) -> None:
    probed[:] = [status, text]
    said = marlaas("doctor", "--json")
    assert said.code == 2 and not said.json["ok"]
    found = {finding["name"]: finding for finding in said.json["findings"]}
    assert found["llama.cpp"]["value"] == value and found["llama.cpp"]["verdict"] == "missing"
    assert "CMAKE_ARGS" in found["llama.cpp"]["advice"]


@pytest.mark.parametrize(
    ("build", "verdict", "value"),
    [
        (LlamaBuild("compiling", 130.0, log="/x/log"), "note", "it is still being compiled, 2 min so far"),
        (LlamaBuild("failed", 3.0, 9.0, "No compiler.", "/x/log"), "missing", "it could not be compiled: No compiler"),
    ],
)
def test_a_llama_that_the_set_up_owes(
    marlaas: Commander,
    probed: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    build: LlamaBuild,
    verdict: str,
    value: str,
) -> None:
    monkeypatch.setattr(software, "llama_build", lambda: build)
    found = {finding["name"]: finding for finding in marlaas("doctor", "--json").json["findings"]}
    assert found["llama.cpp"]["verdict"] == "ok", "there is one all the same"
    probed[:] = [1, "ModuleNotFoundError: No module named 'llama_cpp'"]
    found = {finding["name"]: finding for finding in marlaas("doctor", "--json").json["findings"]}
    assert (found["llama.cpp"]["verdict"], found["llama.cpp"]["value"]) == (verdict, value)
    assert "/x/log" in found["llama.cpp"]["advice"]


def test_engines_and_broken_databases(
    marlaas: Commander, probed: list[Any], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "process_exists", lambda pid, heard: True)
    Filling(home.database, time.time()).engine(age=100)
    assert "! engine     silent 1 min 40 s" in marlaas("doctor").out
    for path in home.root.glob("marlaas.db*"):
        path.unlink()
    home.database.write_bytes(b"no database" * 1000)
    assert "✗ engine" in marlaas("doctor").out


@pytest.mark.parametrize(("command", "verdict"), [("sh -c 'exit 0'", "ok"), ("/nowhere/tell-me --now", "missing")])
def test_the_command_that_hears_of_tasks_is_looked_for(
    marlaas: Commander, probed: list[Any], home: Home, command: str, verdict: str
) -> None:
    home.create().config.write_text(f'[notify]\ncommand = "{command}"\n')
    found = {finding["name"]: finding for finding in marlaas("doctor", "--json").json["findings"]}["notify"]
    assert found["verdict"] == verdict and ("/nowhere/tell-me is not there" in found["value"]) == (verdict == "missing")


@pytest.mark.parametrize(("sandbox", "verdict", "code"), [("true", "missing", 2), ("false", "ok", 0)])
def test_a_sandbox_is_missed_where_it_is_asked_for(
    marlaas: Commander,
    probed: list[Any],
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    sandbox: str,
    verdict: str,
    code: int,
) -> None:
    monkeypatch.setattr("marlaas.engine.environments.process.launch.obstacle", lambda: "bwrap is not installed")
    home.create().config.write_text(f"[environments]\nsandbox = {sandbox}\n")
    said = marlaas("doctor", "--json")
    found = {finding["name"]: finding for finding in said.json["findings"]}["sandbox"]
    assert (found["verdict"], said.code) == (verdict, code) and "bwrap is not installed" in found["value"]


def test_adapters_that_are_away_are_missed(marlaas: Commander, probed: list[Any], home: Home) -> None:
    home.create()
    home.database.touch()
    assert f"✓ home       {home.root}" in marlaas("doctor").out
    home.adapters.rmdir()
    assert f"! home       {home.adapters} is not there" in marlaas("doctor").out


def test_a_home_without_locks(
    marlaas: Commander, probed: list[Any], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    home.create().lock.touch()
    monkeypatch.setattr(fcntl, "flock", flock)
    (found,) = [one for one in marlaas("doctor", "--json").json["findings"] if one["name"] == "home"]
    assert found["verdict"] == "missing" and "cannot be locked" in found["value"] and "mount" in found["advice"]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ImaginaryMachine:
    """Nothing is asked what it can use of them, and torch and llama.cpp are not started."""
    monkeypatch.setattr(checks, "run_program", lambda command, timeout: (0, "fine 1.0"))
    monkeypatch.setattr(survey, "usable_software", lambda gpus: Software(vllm_reason="vLLM is not installed.\x1b[2J"))
    return imagine(monkeypatch, tmp_path)


def found(marlaas: Commander, *more: str) -> tuple[dict[str, dict[str, str]], dict[str, Any]]:
    """Findings by name, and devices."""
    said = marlaas("doctor", "--json", *more)
    assert said.code == 0
    return {finding["name"]: finding for finding in said.json["findings"]}, said.json["devices"]


@pytest.mark.processes
def test_no_card(marlaas: Commander, cards: ImaginaryMachine) -> None:
    findings, devices = found(marlaas)
    assert findings["driver"]["value"] == "580.65.06 with CUDA 13.0"
    assert findings["gpu"]["verdict"] == "note" and "runs and has no card; all runs on the processor" in str(findings)
    assert devices["gpus"] == [] and devices["cpu"]["count"] >= 1


@pytest.mark.processes
def test_two_cards_of_which_one_is_somebody_elses(marlaas: Commander, cards: ImaginaryMachine, home: Home) -> None:
    cards.have(Card("Old", 24 * GB), Card(used=12_300))
    findings, devices = found(marlaas)
    assert findings["gpu 0"]["verdict"] == "ok" and findings["gpu 1"]["verdict"] == "note"
    assert "processes that cannot be seen from here hold 12.3 GB" in findings["gpu 1"]["advice"]
    assert [gpu["used"] for gpu in devices["gpus"]] == [True, False]
    home.create().config.write_text("[resources]\nshared_gpus = true\ngpu_memory = 0.5\n")
    _, devices = found(marlaas)
    assert [gpu["used"] for gpu in devices["gpus"]] == [True, True]


@pytest.mark.processes
def test_the_engines_own_workers_are_known(marlaas: Commander, cards: ImaginaryMachine, home: Home) -> None:
    from ..filling import Filling

    Filling(home.database).insert(
        "workers", name="rollout", pid=os.getpid(), state="running", rss=1, busy=0, started=1, updated=1
    )
    cards.have(Card(used=2000, held=(Held(os.getpid(), 2000),)))
    assert "held by this engine 2.0 GB" in found(marlaas)[0]["gpu 0"]["value"]


@pytest.mark.processes
@pytest.mark.slow
def test_the_whole_program(cards: ImaginaryMachine, home: Home) -> None:
    """Not a line of it in this process, and every library really asked what it can use."""
    cards.have(Card(), Card("Old", 24 * GB, capability=(6, 1)))
    command = [sys.executable, "-P", "-m", "marlaas.app.cli.main", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    devices = json.loads(done.stdout)["devices"]
    assert [gpu["name"] for gpu in devices["gpus"]] == ["Imaginary H1", "Old"] and done.stderr.count("Traceback") == 0


def test_libraries_that_no_plugin_asks_for(marlaas: Commander, probed: list[Any], home: Home) -> None:
    (home.venvs / "0123abcd").mkdir(parents=True)
    (home.venvs / "0123abcd" / "x.py").write_bytes(bytes(5_000_000))
    (finding,) = (f for f in marlaas("doctor", "--json").json["findings"] if f["name"] == "libraries")
    assert finding["verdict"] == "note" and str(home.venvs) in finding["value"]
    assert "No plugin asks for 0123abcd (5 MB)" in finding["advice"] and "pinned" in finding["advice"]
