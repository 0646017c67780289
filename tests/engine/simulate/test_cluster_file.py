"""Cluster files: what they mean, and one sentence for each mistake, all at once."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from marlaas.engine.daemon.control import create_database
from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.plan import on_machines
from marlaas.engine.models.find import load_base
from marlaas.engine.simulate import cluster_file
from marlaas.engine.simulate.cluster_file import (
    THREADS,
    ClusterSpec,
    LinkSpec,
    Network,
    NodeSpec,
    layout,
    nodes_of,
    read_case,
    settings_of,
    usable,
)
from marlaas.engine.simulate.profile import read_profile
from marlaas.engine.spec.validation import build
from tools.random_base.make import hollow_base

from .made_up import NODES, TASKS, cluster, profile


def mistakes(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_case(path)
    return [mistake.cause for mistake in caught.value.mistakes]


def test_nodes_and_tasks_are_counted_out(tmp_path: Path) -> None:
    text = '[[nodes]]\nname = "n"\ncount = 3\n' + TASKS + "every = 2.0\n"
    case = read_case(cluster(tmp_path, text))
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
        + '[[failures]]\nnode = "a"\nlink = true\n'
        + '[[tenants]]\nname = "x"\n[[tenants]]\nname = "x"\n'
        + '[rollout]\ndevices = ["a", "c/gpu 0"]\n'
    )
    told = mistakes(cluster(tmp_path, text))
    assert "2 nodes are called 'a'." in told
    assert "'failures[0].node' is 'b', which no node is called." in told
    assert "'failures[1].link' is true, and the node 'a' is reached without a link." in told
    assert "the tenant 'x' is named twice." in told
    assert "'rollout.devices' names 'c/gpu 0', and no node is called 'c'." in told
    assert any("cannot be read" in mistake for mistake in told)
    path = cluster(tmp_path, '[[nodes]]\nname = "a"\ncard = 2\n[nodes.link]\nlatency = -1.0\n' + TASKS)
    assert mistakes(path) == [
        "unknown key 'nodes[0].card'.",
        "'nodes[0].link.latency' is -1.0; it must lie between 0 and 60.",
    ]
    path.write_text(NODES + TASKS, encoding="utf-8")
    assert mistakes(path) == ["'from' is missing."]


@pytest.mark.parametrize(("line", "hint"), [('sourc = "x"', "Did you mean 'from'?"), ("other = 1", ", from, ")])
def test_an_unknown_key_is_told_with_what_was_meant(tmp_path: Path, line: str, hint: str) -> None:
    path = cluster(tmp_path, NODES + TASKS)
    path.write_text(f"{line}\n" + NODES + TASKS, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_case(path)
    mistake = caught.value.mistakes[0]
    assert mistake.path == line.partition(" ")[0] and hint in mistake.hint and "source" not in mistake.hint


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
    assert read_profile(tmp_path / "profile.json") == profile(), "a profile comes back as it was written"
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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no profile: it is not JSON."),
        ("[]", "is no profile of format 1: it names no format."),
        ('{"format": 2}', "is no profile of format 1: its format is 2."),
        ('{"format": 1, "source": "x"}', "is no sound profile: Object missing required field `environments`."),
    ],
)
def test_a_profile_is_checked(tmp_path: Path, text: str, says: str) -> None:
    path = cluster(tmp_path, NODES + TASKS)
    (tmp_path / "profile.json").write_text(text, encoding="utf-8")
    assert mistakes(path) == [says]


def test_a_home_without_records_is_told(tmp_path: Path) -> None:
    path = cluster(tmp_path, NODES + TASKS)
    create_database(Home(tmp_path / "home"))
    (tmp_path / "empty").mkdir()
    text = path.read_text()
    for source, says in (
        ("home", "no training episode is recorded there with its times."),
        ("nowhere", "there is no such home or profile."),
        ("empty", "is no home of marlaas."),
    ):
        path.write_text(text.replace("profile.json", source), encoding="utf-8")
        assert mistakes(path) == [says]


PAGE = (Path(__file__).parents[3] / "docs" / "operations" / "simulate.md").read_text("utf-8")


def test_the_file_that_is_shown_is_right() -> None:
    shown = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    table = tomllib.loads(shown[1])
    table["source"] = table.pop("from")
    spec = build(ClusterSpec, table, "page")
    assert [node.name for node in nodes_of(spec)] == ["desk", "rack-1", "rack-2", "rack-3"]


def test_every_key_is_named() -> None:
    table = PAGE.partition("## All keys")[2].partition("## ")[0]
    for name in vars(cluster_file):
        spec = getattr(cluster_file, name)
        if name.endswith("Spec") and is_dataclass(spec):
            for field in fields(spec):
                key = "from" if field.name == "source" else field.name
                assert any(form in table for form in (f"`{key}`", f"[{key}]", f".{key}]")), key


FAR = LinkSpec(0.001, 1e9)


def test_a_machine_alone_is_divided_as_the_engine_divides_it() -> None:
    base, settings = load_base("tiny"), settings_of(profile(), 32)
    found = layout([NodeSpec("a", cores=2)], base, profile(), settings)
    (node,) = usable([NodeSpec("a", cores=2)])
    assert found.plan == on_machines(base, settings, [node]) and not found.plan.placement.nodes - {""}
    assert {name: site.node for name, site in found.sites.items()} == {"rollout": "a", "training": "a"}
    assert [site.speed for site in found.sites.values()] == [1.0, 1.0]
    found = layout([NodeSpec("a", cores=4, sampling=3.0)], base, profile(), settings)
    assert found.sites["rollout"].speed == pytest.approx(3.0 * 2**THREADS), "a small base gains little by threads"


def test_a_second_machine_takes_a_stage() -> None:
    nodes = [NodeSpec("a"), NodeSpec("b", link=FAR)]
    found = layout(nodes, load_base("tiny"), profile(), settings_of(profile(), 32))
    assert {site.node for site in found.sites.values()} == {"a", "b"}
    assert found.plan.nodes["b"].link.call == pytest.approx(0.002) and not found.plan.nodes[""].link.call
    without = layout(nodes, load_base("tiny"), profile(), settings_of(profile(), 32), away={"b"})
    assert {site.node for site in without.sites.values()} == {"a"}
    with pytest.raises(MarlaasError, match="No node can be used"):
        layout(nodes, load_base("tiny"), profile(), settings_of(profile(), 32), away={"a", "b"})


def test_stages_run_where_the_file_says() -> None:
    nodes = [NodeSpec("a"), NodeSpec("b", link=FAR), NodeSpec("c", link=FAR)]
    settings = settings_of(profile(), 32, ("c",), ("a", "b"))
    found = layout(nodes, load_base("tiny"), profile(), settings)
    where = {(name.partition("-")[0], site.node) for name, site in found.sites.items()}
    assert where == {("rollout", "c"), ("training", "a"), ("training", "b")}


def test_cards_train_and_sample_a_large_base(tmp_path: Path) -> None:
    made = profile()
    on_cards = replace(
        made, sampler=replace(made.sampler, kind="vllm", cores=0), trainer=replace(made.trainer, cores=0)
    )
    nodes = [NodeSpec(name, cores=16, cards=4, sampling=2.0, link=FAR) for name in ("a", "b")]
    found = layout(nodes, hollow_base(tmp_path / "base"), on_cards, settings_of(on_cards, 32))
    placement = found.plan.placement
    assert all(own.kind == "vllm" and own.place.gpus for own in placement.samplers)
    assert all(own.place.gpus for own in placement.trainers)
    assert {site.speed for name, site in found.sites.items() if name.startswith("rollout")} == {2.0}
    places = [*(own.place for own in placement.samplers), *(own.place for own in placement.trainers)]
    cards = [uuid for place in places for uuid in place.gpus]
    assert len(cards) == len(set(cards)) == 8


def test_bytes_go_one_after_the_other() -> None:
    network = Network(LinkSpec(), {"a": LinkSpec(0.5, 100.0), "b": LinkSpec(0.0, 1000.0)})
    assert network.seconds("a", 200, now=10.0) == 2.0 + 0.5
    assert network.seconds("a", 100, now=10.0) == 3.0 + 0.5, "behind those that are on their way"
    assert network.seconds("b", 125, now=10.0) == 0.125, "another link"
    assert network.seconds("a", 100, now=100.0) == 1.0 + 0.5, "free again"
    assert network.head.bytes == 525


def test_the_heads_network_is_shared() -> None:
    links = {"a": LinkSpec(0.0, 1e6), "b": LinkSpec(0.0, 1e6), "here": LinkSpec()}
    network = Network(LinkSpec(0.0, 100.0), links)
    assert network.seconds("here", 1_000_000, now=0.0) == 0.0 == network.head.bytes, "without a link it is the head"
    assert network.seconds("a", 100, now=0.0) == 1.0
    assert network.seconds("b", 100, now=0.0) == 2.0
    assert network.head.busy == 2.0


def test_what_is_sent_over_a_dark_link_arrives_when_it_is_back() -> None:
    network = Network(LinkSpec(0.0, 1000.0), {"a": LinkSpec(0.5, 100.0), "b": LinkSpec(0.0, 100.0)})
    network.darken("a", until=7.0)
    network.darken("a", until=3.0)
    assert network.seconds("a", 100, now=2.0) == 5.0 + 1.0 + 0.5
    assert network.seconds("b", 100, now=2.0) == 1.0, "another link, and the head's own network is free"
    assert network.seconds("a", 100, now=9.0) == 1.0 + 0.5
