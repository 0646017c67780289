"""What a node says of itself, why it cannot work, which one is meant or drained, and its own folders."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from marlaas.engine.devices import survey
from marlaas.engine.devices.machine import Cpu, Machine, Rates, Software
from marlaas.engine.devices.usable import UsableResources
from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.cluster.cluster import Folder, NodeHost, find_base, named, resolve
from marlaas.engine.machine.cluster.node import (
    LIMIT,
    NEEDED,
    NodeFacts,
    Versions,
    clock_warning,
    differences,
    look_here,
    meant,
    of_each_name,
    own_versions,
    reason_in,
    trouble_with,
    why_not_drain,
)
from marlaas.engine.models.find import load_base

from ....imaginary.cards import Card, ImaginaryMachine, imagine

WORKS = UsableResources(Machine(Cpu((0,), 1, 10**9)))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def test_the_rules_of_the_node_hold_there(home: Home) -> None:
    home.config.write_text("[resources]\ncores = 1\nmemory = 0.5\n")
    facts = look_here(home)
    assert facts.usable.machine.cpu.count == 1 and facts.usable.machine.cpu.memory <= 5e8 and facts.free_bytes <= 5e8
    assert facts.trouble == "" and facts.versions == own_versions()
    assert trouble_with(facts, own_versions()) == ""
    home.config.write_text("[resources]\ncors = 1\n")
    facts = look_here(home)
    assert "cors" in facts.trouble and trouble_with(facts, own_versions()) == facts.trouble


async def test_a_node_without_the_base_is_told_so(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "measure", lambda device: Rates(1e9, 1e9))
    host, own = NodeHost(home), own_versions()
    lacking = await host.describe(Folder("model", "/nowhere", "0123456789abcdef"))
    assert "The engine's base is not on this node: nowhere, fingerprint 0123456789ab." in trouble_with(lacking, own)
    assert trouble_with(lacking, replace(own, marlaas="9.9")).startswith(f"marlaas is {own.marlaas} there and 9.9 here")
    assert trouble_with(NodeFacts(own), own) == "No core may be used there."
    assert trouble_with(NodeFacts(own, WORKS), own) == ""


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ImaginaryMachine:
    monkeypatch.setattr(survey, "usable_software", lambda gpus: Software())
    return imagine(monkeypatch, tmp_path)


@pytest.mark.processes
def test_cards_of_others_stay_untouched_on_every_node(tmp_path: Path, cards: ImaginaryMachine) -> None:
    cards.have(Card(), Card(used=12_300), Card(), Card(used=500))  # memory whose holder cannot be seen is somebody's
    home = Home(tmp_path / "home").create()
    facts = look_here(home)
    assert [gpu.label for gpu in facts.usable.machine.gpus] == ["gpu 0", "gpu 2"]
    assert [reason.partition(" is left alone")[0] for reason in facts.usable.reasons] == ["gpu 1", "gpu 3"]
    assert trouble_with(facts, own_versions()) == ""
    home.config.write_text("[resources]\ngpus = [2]\n")
    facts = look_here(home)
    assert [gpu.label for gpu in facts.usable.machine.gpus] == ["gpu 2"]
    assert "`gpus` under [resources] leaves it out" in facts.usable.reasons[0]


HERE = Versions("3.12.3", "0.1.0", "2.60.0", "2.11.0+cpu", "0.3.36", "0.26.0")


@pytest.mark.parametrize("field", [field.name for field in fields(Versions)])
def test_each_version_counts(field: str) -> None:
    other = differences(HERE, replace(HERE, **{field: "9.9.9"}))
    assert "is 9.9.9 there and" in other and other.endswith(" here.") and other.count("9.9.9") == 1
    missing = differences(HERE, replace(HERE, **{field: ""}))
    assert ("is missing there" in missing) is (field in NEEDED)
    assert differences(replace(HERE, **{field: ""}), HERE) == missing.replace("missing there", "x") or field in NEEDED


@pytest.mark.parametrize(("field", "value"), [("python", "3.12.11"), ("torch", "2.11.0+cu128"), ("vllm", "0.26.0+cu1")])
def test_patches_of_python_and_builds_do_not_count(field: str, value: str) -> None:
    assert differences(HERE, replace(HERE, **{field: value})) == ""


def test_all_differences_are_one_sentence() -> None:
    sentence = differences(HERE, replace(HERE, python="3.11.9", torch="2.12.0", llama_cpp=""), "on ada")
    assert sentence == "Python is 3.11.9 on ada and 3.12.3 here, torch is 2.12.0 on ada and 2.11.0+cpu here."
    own = own_versions()
    assert differences(own, own) == "" and own.marlaas and own.python.startswith("3.")


def test_people_are_told_of_minutes() -> None:
    assert "The clock of ada is 5 minutes ahead of this machine's" in clock_warning("ada", 300.0)
    assert "3 hours behind" in clock_warning("ada", -10800.0)
    assert "40 seconds behind" in clock_warning("ada", -40.0)
    assert clock_warning("ada", LIMIT) == clock_warning("ada", -0.5) == ""


@dataclass(frozen=True)
class Peer:
    name: str
    id: str = "00"
    alive: bool = True
    refused: str = ""


ADA, BOB, EVE = (
    Peer("ada", "a1b2c3d4"),
    Peer("bob", "a1b2ffff"),
    Peer("eve", refused="torch is older there."),
)


def test_a_node_is_meant_by_name_or_by_its_id() -> None:
    nodes = [ADA, BOB, EVE]
    assert meant("bob", nodes) == ("bob", "")
    assert meant("a1b2c", nodes) == ("ada", "")
    assert meant("adda", nodes) == ("", "The cluster has no node 'adda'. Did you mean ada?")
    for word in ("a1b2", "zzz", ""):
        assert meant(word, nodes) == ("", f"The cluster has no node {word!r}. `marlaas cluster status` lists them.")


def test_the_last_that_works_is_not_drained() -> None:
    assert why_not_drain("ada", [ADA, BOB], set()) == ""
    assert why_not_drain("eve", [ADA, EVE], set()) == ""
    assert "ada is the only node that works" in why_not_drain("ada", [ADA, BOB], {"bob"})
    assert "ada is the only node that works" in why_not_drain("ada", [ADA, replace(BOB, alive=False)], set())


def test_of_a_machine_that_joined_again_the_living_node_counts() -> None:
    gone = replace(ADA, id="0000", alive=False)
    assert of_each_name([gone, BOB, ADA]) == (BOB, ADA) and of_each_name([gone]) == (gone,)


@pytest.fixture
def node(tmp_path: Path) -> Home:
    return Home(tmp_path / "node").create()


def test_each_folder_is_the_nodes_own(tmp_path: Path, node: Home) -> None:
    base, home = load_base("tiny"), Home(tmp_path / "home")
    kwargs = {"base": str(base.path), "threads": 2, "parts": {"cache": str(home.base), "scratch": str(home.scratch)}}
    there = named(kwargs, base, home)
    assert there == {
        "base": Folder("model", str(base.path), base.fingerprint),
        "threads": 2,
        "parts": {"cache": Folder("base"), "scratch": Folder("scratch")},
    }
    assert resolve(there, node) == {
        "base": str(base.path),
        "threads": 2,
        "parts": {"cache": str(node.base), "scratch": str(node.scratch)},
    }


def test_the_file_that_a_base_was_made_of_is_the_nodes_own(tmp_path: Path, node: Home) -> None:
    folder, copy = (Path(shutil.copytree(load_base("tiny").path, tmp_path / name)) for name in ("base", "a copy"))
    (folder / "model.gguf").touch()
    node.config.write_text(f'base = "{copy}"\n')
    base = load_base(folder)
    there = named({"gguf": str(base.gguf)}, base, Home(tmp_path / "home"))
    assert resolve(there, node) == {"gguf": str(copy / "model.gguf")}
    assert find_base(Folder("model", "/elsewhere", base.fingerprint), node) == copy, "wherever it lies"


def test_a_node_without_the_base_says_what_to_do(node: Home) -> None:
    with pytest.raises(BaseModelError, match="is not on this node") as caught:
        find_base(Folder("model", "/mnt/bases/qwen", "0123456789abcdef"), node)
    assert "marlaas.toml" in caught.value.hint
    with pytest.raises(BaseModelError):  # another base is there
        find_base(Folder("model", str(load_base("tiny").path), "0123456789abcdef"), node)


DIED = "Worker bridge could not start with exit status 1: [2026 E 30358] Failed to connect to GCS within"
NO_TOKEN = "Failed to connect to Ray cluster at 10.0.0.5:6379\nFailed to connect to GCS.\nInvalidAuthToken: missing\n"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (NO_TOKEN, "it does not accept this machine's token"),
        (DIED, "what listens there does not speak as Ray does"),
        ("ray.exceptions.RpcError: RPC error: Received http2 header with status: 404", "what listens there does not"),
        (
            "Version mismatch: The cluster was started with:\n  Ray: 2.60.0\n",
            "the cluster runs another version of Python or Ray",
        ),
        ("Traceback\nValueError: it broke.\n\n", "it broke"),
        ("bind: Address already in use", "a port is taken; `port` and `ports` under [cluster] name others"),
        ("", "it left no word"),
    ],
)
def test_it_says_why_in_one_sentence(said: str, why: str) -> None:
    assert reason_in(said).startswith(why) and "\n" not in reason_in(said)
