"""The checker finds nothing in a true home, and every lie in a doctored one."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.adapters.statefile import checksum, read_state, strip_moments, write_state
from marlaas.engine.errors import AdapterError
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.scheduler.commands import roll_back
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.queue.submission.references import find_starts
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import NamedPolicySpec, PolicySpec, TaskSpec, TrainSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import command, submit
from tests.engine.queue.scheduler.world import World
from tests.engine.train.test_learning import SPEC
from tests.engine.train.test_open_plays import Held, dies, environment, kept
from tests.engine.train.test_several_policies import SPEC as TWO_POLICIES, Quiet
from tests.engine.trainer.tiny_qwen import save_tiny_qwen
from tests.oracle.audit import audit
from tests.oracle.report import Report
from tests.seldom import often, seldom

from .true_home import BATCH, SIZE, Slip, go_on, make_home, spec

AGENTS = ("solver", "critic", "rival", "judge")
SOLVER = NamedPolicySpec(rank=1, alpha=1.0)

TALK = replace(
    TWO_POLICIES,
    policies={
        "solver": SOLVER,
        "critic": replace(SOLVER, groups_per_step=1),
        "old": NamedPolicySpec(pool="solver", every=1, size=2),
        "still": NamedPolicySpec(frozen="base"),
    },
    agents={"solver": "solver", "critic": "critic", "rival": "old", "judge": "still"},
)


REDUNDANT = replace(SPEC, policy=PolicySpec(1, 1.0), train=replace(SPEC.train, group_size=3, redundant=2))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_qwen(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def made(base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(make_home(tmp_path_factory.mktemp("true") / "home", base, spec())).root


@pytest.fixture(scope="module")
def made_talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four agents: two policies learn, one is a pool of what the solver was, one is frozen."""

    def environments(world: World) -> Quiet:
        return Quiet(world.chance, agents=AGENTS, always=("solver", "rival", "judge"))

    return asyncio.run(played(tmp_path_factory.mktemp("talk") / "home", TALK, environments=environments))


@pytest.fixture(scope="module")
def made_redundant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(played(tmp_path_factory.mktemp("redundant") / "home", REDUNDANT, most=6))


async def played(root: Path, task: TaskSpec, environments: Callable[[World], Quiet] | None = None, **more: Any) -> Path:
    world = World(root, task, **more)
    if environments is not None:
        world.environments = environments(world)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    world.store.tasks.set_state(world.task, "done")
    world.store.close()
    return root


def copied(made: Path, folder: Path) -> Home:
    """To doctor, with its own paths."""
    copy = Home(folder / "home")
    shutil.copytree(made, copy.root)
    doctor(copy, "UPDATE versions SET path = replace(path, ?, ?)", [str(made), str(copy.root)])
    return copy


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Home:
    return copied(made, tmp_path)


@pytest.fixture
def talk(made_talk: Path, tmp_path: Path) -> Home:
    return copied(made_talk, tmp_path)


@pytest.fixture
def redundant(made_redundant: Path, tmp_path: Path) -> Home:
    return copied(made_redundant, tmp_path)


def doctor(home: Home, sql: str, values: Sequence[str] = ()) -> None:
    with closing(sqlite3.connect(home.database, isolation_level=None)) as database:
        database.execute(sql, values)


def files(home: Home) -> list[Path]:
    return sorted(home.adapters.rglob("*.safetensors"))


def found(report: Report, words: str) -> bool:
    return any(words in problem for problem in report.problems)


def test_a_true_home_is_proven(home: Home) -> None:
    report = audit(home.root)
    assert report.sound and report.proven["updates"] == 3 and not report.unknown and not report.spare


async def test_a_home_whose_task_was_rolled_back_is_proven(home: Home, base: str) -> None:
    """Once to a version with its moments, once to one that was kept without them."""
    store = Store(home.database, base, "print")
    for number in (2, 1):
        if number == 1:
            version = store.versions.on_disk(1)[1]
            store.versions.strip(version.id, strip_moments(Path(version.path), version.checksum))
        asked = command(home.database, "rollback", 1, version=number)
        await roll_back(store, 1, number)
        store.tasks.finish_command(asked)
        assert audit(home.root, updates=False).sound
        await go_on(home, store, base, 1, spec())
        report = audit(home.root)
        assert report.sound and report.proven["updates"] == 3
    store.close()


async def test_a_start_from_another_version_is_checked(home: Home, base: str) -> None:
    """Also where its KL term pulls to that version, in the trainer and in the checker."""
    train = replace(spec().train, kl=0.5, kl_reference="start")
    store, later = Store(home.database, base, "print"), replace(spec(train), policy=replace(spec().policy, start="1@2"))
    with Reader(home.database) as reader:
        (task,) = submit(home.database, find_starts([submission(later)], reader, "tiny"))
    await go_on(home, store, base, task, later)
    store.close()
    report = audit(home.root)
    assert not report.problems and report.proven["updates"] == 6
    assert report.proven["tasks begin where they were told to"] == 1
    doctor(home, "UPDATE borrowed SET version = 1")
    assert found(audit(home.root, updates=False), "but it was to begin from")
    doctor(home, "UPDATE tasks SET config = json_set(config, '$.train.kl_reference', 'base')")
    assert found(audit(home.root), "updates differ")


async def test_a_task_whose_start_is_damaged_keeps_what_it_learnt(home: Home, base: str) -> None:
    train = replace(spec().train, kl=0.5, kl_reference="start")
    store, later = Store(home.database, base, "print"), replace(spec(train), policy=replace(spec().policy, start="1@2"))
    with Reader(home.database) as reader:
        (task,) = submit(home.database, find_starts([submission(later)], reader, "tiny"))
    await go_on(home, store, base, task, replace(later, steps=1))
    first = store.versions.first(store.versions.policy(task, "policy", {}))
    Path(first.path).write_bytes(b"damaged")
    with pytest.raises(AdapterError, match="The version that the KL term pulls to cannot be read"):
        await go_on(home, store, base, task, later)
    assert [version.number for version in store.versions.candidates(store.versions.policy(task, "policy", {}))] == [
        1,
        0,
    ]
    store.close()


async def test_a_step_without_signal_is_made_again(base: str, tmp_path: Path) -> None:
    """It leaves the adapter and its optimizer as they are."""
    train = replace(spec().train, weight_decay=0.1)
    made = await make_home(tmp_path / "home", base, spec(train), Slip(silent=1))
    report = audit(made.root)
    assert not report.problems and report.proven["updates"] == 3
    first, second = (read_state(made.adapters / f"task-1/policy-v{number}-i1.safetensors") for number in (1, 2))
    assert checksum(first.adapter) == checksum(second.adapter) and first.header.updates == second.header.updates == 1


LOSSES: dict[str, dict[str, Any]] = {
    "dr_grpo": {"kl": 0.1, "importance": "mask", "importance_floor": 0.2},
    "grpo": {"kl": 0.1, "schedule": "linear", "warmup": 2, "clip_high": 0.3, "clip_dual": 1.001},
    "dapo": {"schedule": "cosine", "weight_decay": 0.1, "importance": "mask"},
    "cispo": {"clip_high": 1.5, "clip_norm": 0.0, "importance": "sequence_mask", "importance_cap": 1.05},
    "gspo": {"entropy": 0.3, "clip_low": 0.5, "clip_high": 0.5, "importance": "geometric_mask", "geometric_cap": 4.0},
    "reinforce": {"entropy": 0.1, "importance": "sequence_truncate", "importance_cap": 1.01, "advantage": "mean"},
    "ppo": {"epochs": 2, "clip_low": 0.02, "clip_high": 0.02, "importance": "none"},
}


@pytest.mark.parametrize("loss", often(("gspo", "ppo"), LOSSES))
async def test_every_loss_is_made_again(loss: str, base: str, tmp_path: Path) -> None:
    train = TrainSpec(loss=loss, groups_per_step=BATCH, group_size=SIZE, max_staleness=1, learning_rate=1e-3)
    made = await make_home(tmp_path / "home", base, spec(replace(train, **LOSSES[loss])))
    report = audit(made.root)
    assert not report.problems and report.proven["updates"] == 3
    if loss in ("cispo", "ppo"):  # whatever the loss, the checker sees a wrong rate
        doctor(made, "UPDATE tasks SET config = replace(config, '0.001', '0.0011')")
        assert found(audit(made.root), "updates differ")


TURNS = TrainSpec(
    groups_per_step=BATCH, group_size=SIZE, max_staleness=1, learning_rate=1e-3, advantage_level="turn", discount=0.9
)


@pytest.mark.parametrize("loss", ["dr_grpo", seldom("grpo"), seldom("gspo")])
async def test_advantages_of_turns_are_made_again(loss: str, base: str, tmp_path: Path) -> None:
    """The last member of each group is paid after its first reply and after its second."""
    made = await make_home(tmp_path / "home", base, spec(replace(TURNS, loss=loss, **LOSSES.get(loss, {}))))
    report = audit(made.root)
    assert not report.problems and report.proven["updates"] == 3
    assert report.proven["turns and payments"] == 3 * BATCH * (SIZE + 1)
    for change, says in (
        ("UPDATE tasks SET config = replace(config, '0.9', '0.8')", "turns and payments differ"),
        ("UPDATE trajectories SET paid = NULL", "turns and payments differ"),
        ("UPDATE trajectories SET spans = json_set(spans, '$[0][4]', advantage + 0.1)", "first moments differ"),
    ):
        doctored = Home(tmp_path / "doctored")
        shutil.copytree(made.root, doctored.root)
        doctor(doctored, change)
        assert found(audit(doctored.root, updates="moments" in says), says)
        shutil.rmtree(doctored.root)


async def test_an_update_that_lacks_a_group_is_found(base: str, tmp_path: Path) -> None:
    made = await make_home(tmp_path / "home", base, spec(), Slip(forgotten=3))
    report = audit(made.root)
    assert {problem.split(":")[0] for problem in report.problems} == {"task 1, step 2"}


def test_what_is_gone_is_counted_as_unknown(home: Home) -> None:
    doctor(home, "UPDATE versions SET state = 'pruned' WHERE number = 1")
    doctor(home, "UPDATE trajectories SET tokens = x'', mask = x'', logprobs = x''")
    report = audit(home.root)
    assert not report.problems and not report.proven["updates"]
    assert report.unknown["updates: a state file is gone"] == 2
    assert report.unknown["updates: tokens were given up for room"] == 1


LIES: dict[str, tuple[str, str]] = {
    "a step is lost": ("DELETE FROM steps WHERE number = 2", "its steps are 1, 3"),
    "a version is lost": ("DELETE FROM versions WHERE number = 1", "there is no version 1"),
    "a group is lost": ("DELETE FROM groups WHERE number = 3", "3 never"),
    "a group came twice": (
        "INSERT INTO groups (policy, split, number, instance, version, environment_version, state, step, created)"
        " SELECT policy, split, number, instance, version, environment_version, state, step + 1, created"
        " FROM groups WHERE number = 2",
        "2 came twice",
    ),
    "a group in another step": ("UPDATE groups SET step = 3 WHERE number = 2", "step 3 took it, not 2"),
    "a trajectory trained on twice": (
        "UPDATE trajectories SET (tokens, mask, logprobs, spans, reward, advantage) ="
        ' (SELECT tokens, mask, logprobs, spans, reward, advantage FROM trajectories t WHERE t."group" ='
        " (SELECT id FROM groups WHERE number = 4) AND t.member = trajectories.member LIMIT 1)"
        ' WHERE "group" = (SELECT id FROM groups WHERE number = 5)',
        "step 3: first moments differ",
    ),
    "a stale span": (
        "UPDATE trajectories SET spans = replace(spans, '2]', '0]')"
        ' WHERE "group" = (SELECT id FROM groups WHERE number = 4)',
        "tokens of version 0 in step 3",
    ),
    "a stale group": ("UPDATE groups SET version = 0 WHERE number = 4", "group 4: tokens of version 2"),
    "a span that is none": (
        "UPDATE trajectories SET spans = '[]' WHERE id = 1",
        "member 0 has other spans",
    ),
    "members that failed": (
        "UPDATE trajectories SET status = 'error' WHERE member = 0",
        f"{SIZE - 1} of {SIZE} ended well, not {SIZE}",
    ),
    "a changed reward": ("UPDATE trajectories SET reward = reward + 0.1 WHERE id = 1", "advantages and rewards differ"),
    "a changed metric": ("UPDATE metrics SET value = 7 WHERE step = 1 AND name = 'tokens'", "metric tokens"),
    "a missing metric": ("DELETE FROM metrics WHERE step = 1 AND name = 'reward'", "metric reward is missing"),
    "a changed advantage": (
        "UPDATE trajectories SET reward = NULL, advantage = 0 WHERE id = 2",
        "metric reward and trajectories differ",
    ),
    "a changed token": (
        "UPDATE trajectories SET tokens = zeroblob(length(tokens)) WHERE id IN (1, 2, 3)",
        "step 1: first moments differ",
    ),
    "a changed log-probability": (
        "UPDATE trajectories SET logprobs = zeroblob(length(logprobs)) WHERE id = 1",
        "step 1: first moments differ",
    ),
    "an orphan": ('UPDATE trajectories SET "group" = 999 WHERE id = 1', "1 rows belong to nothing"),
    "a swapped file": (
        "UPDATE versions SET path = (SELECT path FROM versions v WHERE v.number = 3 - versions.number)"
        " WHERE number IN (1, 2)",
        "version 1: its file holds",
    ),
    "another base": ("UPDATE tasks SET base = 'other'", "it belongs to base print"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_found(home: Home, lie: str) -> None:
    sql, words = LIES[lie]
    doctor(home, sql)
    assert found(audit(home.root, updates="moments" in words), words)


def test_an_adapter_that_no_step_made_is_found(home: Home) -> None:
    path = files(home)[2]
    state = read_state(path)
    adapter = {name: array * 1.001 for name, array in state.adapter.items()}
    write_state(path, replace(state, adapter=adapter), sync=False)
    told = [checksum(adapter)]
    doctor(home, "UPDATE versions SET checksum = ? WHERE number = 2", told)
    assert found(audit(home.root), "step 2: updates differ")


def test_a_missing_file_and_a_damaged_one_are_named(home: Home) -> None:
    files(home)[1].unlink()
    files(home)[2].write_bytes(b"damaged")
    report = audit(home.root)
    assert found(report, "version 1: ") and found(report, "version 3: ")


async def test_training_begun_anew_is_reported_as_a_loss(home: Home, base: str) -> None:
    """All state files are damaged: the task begins anew, and all that it says then is true of its second try."""
    for file in files(home):
        file.write_bytes(b"damaged")
    store = Store(home.database, base, "print")
    await go_on(home, store, base, 1, spec())
    store.close()
    report = audit(home.root, updates=False)
    assert not report.problems and not report.sound
    assert report.lost == ["task 1: the versions 0, 1, 2, 3 could not be used; training began anew."]
    assert report.verdict() == "1 loss."


async def test_a_lost_step_is_not_taken_for_a_rollback(home: Home, base: str) -> None:
    store = Store(home.database, base, "print")
    asked = command(home.database, "rollback", 1, version=2)
    await roll_back(store, 1, 2)
    store.tasks.finish_command(asked)
    await go_on(home, store, base, 1, spec())
    (newest,) = (version for version in store.versions.on_disk(1) if version.number == 3)
    (home.root / newest.path).unlink()
    await go_on(home, store, base, 1, spec())
    store.close()
    report = audit(home.root, updates=False)
    assert report.lost == ["task 1: version 3 could not be used; training went on from what was before."]


def test_rows_that_hold_what_cannot_be_are_a_finding(home: Home) -> None:
    doctor(home, "UPDATE trajectories SET tokens = x'01'")
    doctor(home, "UPDATE steps SET version = 999 WHERE number = 1")
    report = audit(home.root, updates=False)
    assert found(report, "task 1: its rows hold what cannot be")
    assert found(report, "1 rows of steps name versions that are not there")


def test_a_true_home_of_several_policies_is_proven(talk: Home) -> None:
    report = audit(talk.root, updates=False)
    assert not report.problems
    assert report.proven["every group is consumed once"] == 2  # policies
    assert report.proven["somebody learned from each play"] == TALK.steps  # those that both are trained on
    assert report.proven["partners are who they should be"] > 0


CRITIC = "(SELECT id FROM policies WHERE name = 'critic')"
FIRST = f"(SELECT id FROM groups WHERE policy = {CRITIC} AND split = 'train' AND number = 0)"

LIES_OF_TALK = {
    "a stale span": (
        f"UPDATE trajectories SET spans = replace(spans, '0]', '7]') WHERE \"group\" = {FIRST}",
        "task 1, critic, group 0: tokens of version 7",
    ),
    "another's batch": (
        "UPDATE tasks SET config = json_remove(config, '$.policies.critic.groups_per_step')",
        "critic: of 3 steps of 2 groups",
    ),
    "two plays that are said to be one": (
        "UPDATE groups SET play = (SELECT min(id) FROM groups WHERE split = 'train') WHERE play IS NOT NULL",
        "one policy has several groups of one play",
    ),
    "half a play": (
        "DELETE FROM groups WHERE number = 0 AND split = 'train' AND play IS NOT NULL",
        "and 0 never",
    ),
    "another instance": (
        "UPDATE groups SET instance = instance + 1000003 WHERE play IS NOT NULL AND number = 1 AND split = 'train'",
        "of several instances",
    ),
    "words of another's agent": (
        f"UPDATE trajectories SET agent = 'solver' WHERE \"group\" = {FIRST}",
        "it learns from ['solver']",
    ),
    "a partner's words that are trained on": (
        "UPDATE trajectories SET speaker = '' WHERE speaker = 'old'",
        "it learns from ['rival']",
    ),
    "an unknown partner": (
        "UPDATE trajectories SET speaker = 'who' WHERE speaker = 'still'",
        "'who' acts as 'judge'",
    ),
    "a frozen version that moved": (
        "UPDATE trajectories SET spans = replace(spans, '0]', '2]') WHERE speaker = 'still'",
        "'still' is versions [2]",
    ),
    "a version that no pool holds": (
        "UPDATE trajectories SET spans = '[[1, 2, 99]]' WHERE speaker = 'old'",
        "'old' is versions [99]",
    ),
    "a play that nobody learned from": (
        'DELETE FROM trajectories WHERE "group" IN (SELECT id FROM groups WHERE number = 0)',
        "all of its policies skipped it",
    ),
}


@pytest.mark.parametrize("lie", LIES_OF_TALK)
def test_lies_about_who_spoke_are_found(talk: Home, lie: str) -> None:
    sql, words = LIES_OF_TALK[lie]
    doctor(talk, sql)
    assert found(audit(talk.root, updates=False), words)


def test_a_borrowed_version_that_goes_too_early_is_found(talk: Home) -> None:
    doctor(talk, "UPDATE tasks SET state = 'paused', config = json_set(config, '$.policies.still.frozen', '1@2')")
    doctor(talk, "INSERT INTO borrowed (task, words, version, plays) SELECT 1, '1@2', min(id), 1 FROM versions")
    doctor(talk, "UPDATE versions SET state = 'committed' WHERE id = (SELECT version FROM borrowed)")
    assert not any("which its policy" in problem for problem in audit(talk.root, updates=False).problems)
    doctor(talk, "UPDATE versions SET state = 'pruned' WHERE id = (SELECT version FROM borrowed)")
    assert any("which its policy still is, is pruned" in one for one in audit(talk.root, updates=False).problems)


LAST = (
    '(SELECT max(t.id) FROM trajectories t JOIN groups g ON g.id = t."group"'
    " WHERE g.split = 'train' AND g.number = 9)"
)


def test_a_true_home_with_redundant_samples_is_proven(redundant: Home) -> None:
    with closing(sqlite3.connect(redundant.database)) as database:
        (highest,) = database.execute("SELECT max(member) FROM trajectories").fetchone()
    report = audit(redundant.root, updates=False)
    assert highest == 4 and not report.problems and report.proven["groups are whole"] == 10


@pytest.mark.parametrize(
    "lie",
    [
        f"UPDATE trajectories SET member = 5 WHERE id = {LAST}",
        f"DELETE FROM trajectories WHERE id = {LAST}",
        "UPDATE tasks SET config = json_set(config, '$.train.redundant', 0)",
    ],
)
def test_lies_about_redundant_samples_are_found(redundant: Home, lie: str) -> None:
    doctor(redundant, lie)
    assert found(audit(redundant.root, updates=False), "its members are")


async def test_redundant_members_of_an_open_play_are_in_order(tmp_path: Path) -> None:
    world = World(tmp_path, REDUNDANT, most=6)
    world.environments = Held(world.chance, holds=lambda spec: spec.member < REDUNDANT.train.group_size)
    await dies(world, lambda: environment(world).well >= REDUNDANT.train.redundant)
    assert {member for _, member in kept(world)} == {3, 4}
    report = audit(tmp_path, updates=False)
    assert not report.problems and report.proven["open plays keep to their versions"] > 0
    doctor(Home(tmp_path), "UPDATE open_trajectories SET member = 5 WHERE member = 4")
    assert found(audit(tmp_path, updates=False), "member 5 says")
