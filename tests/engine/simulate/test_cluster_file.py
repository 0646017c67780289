"""Cluster files: what they mean, and one sentence for each mistake, all at once."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.machine.plan import on_machines
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.simulate import cluster_file
from marlaas.engine.simulate.cluster_file import (
    THREADS,
    ClusterSpec,
    DevicesSpec,
    LinkSpec,
    NodeSpec,
    Profile,
    Site,
    nodes_of,
    planned,
    read_case,
    settings_of,
    sites_of,
    usable,
)
from marlaas.engine.spec.validation import build
from tools.random_base.families import FAMILIES, SHAPES
from tools.random_base.make import config, tensors

from .made_up import NODES, TASKS, case_of, cluster, profile


def hollow_base(folder: Path) -> BaseModel:
    """Qwen2.5-0.5B's sizes and shapes only, for what plans with them: the weights are a hole in a file."""
    family = FAMILIES["qwen2.5"]
    settings = config(family, SHAPES["0.5b"], family.tied, family.rows)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    header: dict[str, dict[str, Any]] = {}
    end = 0
    for name, shape in tensors(settings).items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(file.tell() + end)
    return load_base(folder)


def mistakes(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        case_of(path)
    return [mistake.cause for mistake in caught.value.mistakes]


def test_nodes_and_tasks_are_counted_out(tmp_path: Path) -> None:
    text = '[[nodes]]\nname = "n"\ncount = 3\n' + TASKS + "every = 2.0\n"
    case = case_of(cluster(tmp_path, text))
    assert [node.name for node in case.nodes] == ["n-1", "n-2", "n-3"]
    assert [arrival.at for arrival in case.arrivals] == [0.0, 2.0, 4.0, 6.0]
    tasks = [arrival.submission for arrival in case.arrivals]
    assert [task.spec.tenant for task in tasks] == ["lab-1", "lab-2", "lab-1", "lab-2"]
    assert len({task.spec.name for task in tasks}) == 4


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = (
        NODES
        + '[[nodes]]\nname = "a"\n'
        + '[[tasks]]\nfile = "lost.toml"\n'
        + '[[failures]]\nnode = "b"\n'
        + '[[tenants]]\nname = "x"\n[[tenants]]\nname = "x"\n'
        + '[rollout]\ndevices = ["a", "c/gpu 0"]\n'
    )
    told = mistakes(cluster(tmp_path, text))
    assert "'nodes' names 'a' twice." in told and "'tenants' names 'x' twice." in told
    assert "'failures[0].node' names 'b', and no node is called so." in told
    assert "'rollout.devices' names 'c', and no node is called so." in told
    assert any("cannot be read" in mistake for mistake in told)
    path = cluster(tmp_path, '[[nodes]]\nname = "a"\ncard = 2\n[nodes.link]\nlatency = -1.0\n' + TASKS)
    assert mistakes(path) == [
        "unknown key 'nodes[0].card'.",
        "'nodes[0].link.latency' is -1.0; it must lie between 0 and 60.",
    ]
    path.write_text(NODES + TASKS, encoding="utf-8")
    assert mistakes(path) == ["'from' is missing."]
    assert mistakes(cluster(tmp_path, "nodes = []\ntasks = []\n")) == ["'nodes' is empty.", "'tasks' is empty."]


def test_of_parameters_without_records_all_others_count() -> None:
    (recorded,) = (each for each in profile().environments if each.environment == "plugin/talk")
    first, second = (replace(recorded, config=f'{{"level": {n}}}', groups=recorded.groups[n:][:1]) for n in range(2))
    both = replace(profile(), environments=(first, second))
    assert both.find("talk", second.config) == second
    merged = both.find("talk", "{}")
    assert merged is not None and merged.groups == first.groups + second.groups
    assert both.find("chess", "{}") is None


def test_what_is_not_simulated_is_refused(tmp_path: Path) -> None:
    path, text = cluster(tmp_path, NODES + TASKS), (tmp_path / "task.toml").read_text()
    evaluation = 'kind = "eval"\ntenant = "lab"\nname = "e"\nversions = ["x@1"]\nenvironment = "talk"\n'
    for task, words in (
        (
            text + '[policy]\nstart = "other@3"\n',
            "the task begins from the version 'other@3', which no simulation has.",
        ),
        (evaluation, "the task measures versions, which no simulation has."),
        (text.replace('"talk"\nsteps', '"chess"\nsteps'), "nothing is recorded of the environment 'chess'."),
    ):
        (tmp_path / "task.toml").write_text(task, encoding="utf-8")
        assert mistakes(path) == [words]
    (words,) = mistakes(cluster(tmp_path, 'base = "nobody/has-this"\n' + NODES + TASKS))
    assert words.startswith("the base 'nobody/has-this' is not here: ")


def test_a_home_without_records_is_told(tmp_path: Path) -> None:
    path = cluster(tmp_path, NODES + TASKS)
    (tmp_path / "empty").mkdir()
    text = path.read_text()
    for source, says in (
        ("recorded", "no training episode is recorded there with its times."),
        ("nowhere", "is no home of marlaas."),
        ("empty", "is no home of marlaas."),
    ):
        path.write_text(text.replace("recorded", source), encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            read_case(path)
        assert [mistake.cause for mistake in caught.value.mistakes] == [says]


PAGE = (Path(__file__).parents[3] / "docs" / "operations" / "simulate.md").read_text("utf-8")


def test_the_file_that_is_shown_is_right() -> None:
    shown = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    table = tomllib.loads(shown[1])
    assert table.pop("from")
    spec = build(ClusterSpec, table, "page")
    assert [node.name for node in nodes_of(spec)] == ["desk", "rack-1", "rack-2", "rack-3"]


def test_every_key_is_named() -> None:
    table = PAGE.partition("## All keys")[2].partition("## ")[0]
    for name in vars(cluster_file):
        spec = getattr(cluster_file, name)
        if name.endswith("Spec") and is_dataclass(spec):
            for field in fields(spec):
                forms = f"`{field.name}`", f"[{field.name}]", f".{field.name}]"
                assert any(form in table for form in forms), field.name


FAR = LinkSpec(0.001, 1e9)


def sites(
    nodes: list[NodeSpec],
    made: Profile | None = None,
    rollout: tuple[str, ...] = (),
    training: tuple[str, ...] = (),
    away: frozenset[str] = frozenset(),
    base: BaseModel | None = None,
) -> dict[str, Site]:
    base, recorded = base or load_base("tiny"), made or profile()
    spec = ClusterSpec(tuple(nodes), (), rollout=DevicesSpec(rollout), training=DevicesSpec(training))
    plan = planned(nodes, base, settings_of(spec), spec.head, away)
    return sites_of(plan, nodes, base, recorded, spec.head)


def test_a_machine_alone_is_divided_as_the_engine_divides_it() -> None:
    nodes = [NodeSpec("a", cores=2)]
    base, settings = load_base("tiny"), settings_of(ClusterSpec(tuple(nodes), ()))
    plan = planned(nodes, base, settings, LinkSpec())
    assert plan == on_machines(base, settings, usable(nodes)) and not plan.placement.nodes - {""}
    found = sites(nodes)
    assert {name: site.node for name, site in found.items()} == {"rollout": "a", "training": "a"}
    assert [site.speed for site in found.values()] == [1.0, 1.0]
    found = sites([NodeSpec("a", cores=4, sampling=3.0)])
    assert found["rollout"].speed == pytest.approx(3.0 * 2**THREADS), "a small base gains little by threads"


def test_a_second_machine_takes_a_stage() -> None:
    nodes = [NodeSpec("a"), NodeSpec("b", link=FAR)]
    found = sites(nodes)
    assert {site.node for site in found.values()} == {"a", "b"}
    assert {site.node: site.link.call for site in found.values()} == {"a": 0.0, "b": pytest.approx(0.002)}
    assert {site.node for site in sites(nodes, away=frozenset("b")).values()} == {"a"}
    with pytest.raises(MarlaasError, match="No node can be used"):
        sites(nodes, away=frozenset("ab"))


def test_stages_run_where_the_file_says() -> None:
    found = sites([NodeSpec("a"), NodeSpec("b", link=FAR), NodeSpec("c", link=FAR)], None, ("c",), ("a", "b"))
    where = {(name.partition("-")[0], site.node) for name, site in found.items()}
    assert where == {("rollout", "c"), ("training", "a"), ("training", "b")}


def test_cards_train_and_sample_a_large_base(tmp_path: Path) -> None:
    made = profile()
    on_cards = replace(
        made, sampler=replace(made.sampler, kind="vllm", cores=0), trainer=replace(made.trainer, cores=0)
    )
    nodes = [NodeSpec(name, cores=16, cards=4, sampling=2.0, link=FAR) for name in ("a", "b")]
    base = hollow_base(tmp_path / "base")
    placement = planned(nodes, base, settings_of(ClusterSpec(tuple(nodes), ())), LinkSpec()).placement
    assert all(own.kind == "vllm" for own in placement.samplers)
    places = [*(own.place for own in placement.samplers), *(own.place for own in placement.trainers)]
    cards = [uuid for place in places for uuid in place.gpus]
    assert len(cards) == len(set(cards)) == 8
    found = sites(nodes, on_cards, base=base)
    assert {site.speed for name, site in found.items() if name.startswith("rollout")} == {2.0}
