"""Who plays which agent, as the command line names them: from the store alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from marlaas.app.cli.env_play import OTHERS, ROOMY, Players, find_players, player_of
from marlaas.app.cli.main import build_parser
from marlaas.engine.errors import AdapterError, ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.samplers.sampling import Truncation
from marlaas.engine.spec.automatic import as_number
from marlaas.engine.spec.task import NamedPolicySpec, SamplingSpec, TaskSpec
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.store.versions import NewVersion

SHORT = SamplingSpec(max_tokens=8, max_episode_tokens=16)
DUEL = TaskSpec(
    "lab",
    "duel",
    "duel",
    policies={
        "player": NamedPolicySpec(),
        "old": NamedPolicySpec(frozen="player@0"),
        "past": NamedPolicySpec(pool="player"),
        "bare": NamedPolicySpec(frozen="base"),
        "guest": NamedPolicySpec(frozen="1@1"),
    },
    agents={"first": "player", "second": "old", "third": "past", "fourth": "bare", "fifth": "guest"},
    sampling=SHORT,
)
SOLO = TaskSpec("lab", "solo", "solo")


@pytest.fixture
def played(home: Home) -> Home:
    """Task 1 has one policy of two versions, task 2 five of which one is trained, task 3 two trained ones."""
    home.create()
    pair = replace(DUEL, name="pair", policies={"a": NamedPolicySpec(), "b": NamedPolicySpec()})
    specs = (SOLO, DUEL, replace(pair, agents={"first": "a", "second": "b"}))
    store = Store(home.database, "tiny")
    submit(home.database, [submission(spec) for spec in specs])
    for task, names in ((1, ["policy"]), (2, ["player"]), (3, ["a", "b"])):
        for name in names:
            policy = store.versions.policy(task, name, {})
            for number in range(3):
                version = NewVersion(number, f"task-{task}/{name}-v{number}", "c", f"{task}-{name}-{number}", 1)
                if number:
                    store.versions.commit_step(policy, version, [], 0.0, {}, {})
                else:
                    store.versions.commit_first(policy, version)
    store.close()
    return home


def players(home: Home, *words: str) -> Players:
    """The players whom these options of the verb name."""
    return find_players(home, build_parser(["env"]).parse_args(["env", "play", "duel", *words]))


def titles(found: Players) -> dict[str, str]:
    return {agent: player.title for agent, player in found.items()}


def test_one_policy_plays_whoever_there_is(played: Home) -> None:
    assert titles(players(played, "--policy", "1@1")) == {OTHERS: "version 1 of task 1 (solo)"}
    assert player_of(players(played, "--base"), "anybody").sampling == ROOMY


def test_several_play_as_in_training(played: Home) -> None:
    found = players(played, "--policy", "2")
    assert titles(found) == {
        "first": "version 2 of task 2 (duel, player)",
        "second": "the base",
        "third": "version 2 of task 2 (duel, player)",
        "fourth": "the base",
        "fifth": "version 1 of task 1 (solo)",
    }
    assert found["first"].sampling == SHORT
    with pytest.raises(ConfigError, match="Nobody plays the agent 'sixth'"):
        player_of(found, "sixth")


def test_each_agent_may_be_played_by_another_version(played: Home) -> None:
    others = ("--agent", "second", "3/b@1", "--agent", "fourth", "base")
    sampling = ("--temperature", "0", "--max-tokens", "99", "--top-k", "5")
    found = players(played, "--policy", "pair", "--as", "first", *others, *sampling)
    assert titles(found) == {"second": "version 1 of task 3 (pair, b)", "fourth": "the base"}
    said = {(p.sampling.temperature, p.sampling.max_tokens, p.truncation) for p in found.values()}
    assert said == {(0.0, 99, Truncation(top_k=5))}
    assert as_number(found["fourth"].sampling.max_episode_tokens) >= 99


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--policy 7", "There is no adapter '7'"),
        ("--policy 3/c", "There is no adapter '3/c'"),
        ("--policy 3/b@9", "no version '9'"),
        ("--agent first 3", "has the policies"),
        ("--agent first 3/a --agent second nobody", "There is no adapter 'nobody'"),
    ],
)
def test_what_means_nobody_is_a_sentence(played: Home, words: str, says: str) -> None:
    with pytest.raises((AdapterError, ConfigError), match=says):
        players(played, *words.split())


def test_names_are_safe_to_print(played: Home) -> None:
    player = players(played, "--policy", "1")[OTHERS]
    assert player.version is not None
    hostile: Any = replace(player.version, task_name="\x1b[2J[bold]x", policy="\x00y")
    assert replace(player, version=hostile).title.isprintable()
