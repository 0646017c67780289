"""Cluster files: what they mean, and one sentence for each mistake, all at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.daemon.control import create_database
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.simulate.cluster_file import read_case
from marlaas.engine.simulate.profile import read_profile

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
    assert any("cannot be read" in one for one in told)


def test_wrong_keys_are_told_with_what_was_meant(tmp_path: Path) -> None:
    text = '[[nodes]]\nname = "a"\ncard = 2\n[nodes.link]\nlatency = -1.0\n' + TASKS
    told = mistakes(cluster(tmp_path, text))
    assert told == [
        "unknown key 'nodes[0].card'.",
        "'nodes[0].link.latency' is -1.0; it must lie between 0 and 60.",
    ]


def test_where_it_is_from_must_be_said(tmp_path: Path) -> None:
    path = cluster(tmp_path, NODES + TASKS)
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


def test_the_base_must_be_here(tmp_path: Path) -> None:
    (told,) = mistakes(cluster(tmp_path, 'base = "nobody/has-this"\n' + NODES + TASKS))
    assert told.startswith("the base 'nobody/has-this' is not here: ")


def test_an_environment_must_be_recorded(tmp_path: Path) -> None:
    path = cluster(tmp_path, NODES + TASKS)
    task = tmp_path / "task.toml"
    task.write_text(task.read_text().replace('"talk"\nsteps', '"chess"\nsteps'), encoding="utf-8")
    assert mistakes(path) == ["nothing is recorded of the environment 'chess'."]


def test_what_is_not_simulated_is_refused(tmp_path: Path) -> None:
    path = cluster(tmp_path, NODES + TASKS)
    task = tmp_path / "task.toml"
    task.write_text(task.read_text() + '[policy]\nstart = "other@3"\n', encoding="utf-8")
    assert mistakes(path) == ["the task begins from the version 'other@3', which no simulation has."]
    task.write_text(
        'kind = "eval"\ntenant = "lab"\nname = "e"\nversions = ["x@1"]\nenvironment = "talk"\n', encoding="utf-8"
    )
    assert mistakes(path) == ["the task measures versions, which no simulation has."]


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


def test_a_profile_comes_back_as_it_was_written(tmp_path: Path) -> None:
    cluster(tmp_path, "")
    assert read_profile(tmp_path / "profile.json") == profile()
    text = json.loads((tmp_path / "profile.json").read_text())
    assert "plugin/talk" in str(text) and text["format"] == 1


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
