"""The checker finds nothing in a true home, and every lie in a doctored one."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.adapters.statefile import checksum, read_state, strip_moments, write_state
from marlaas.engine.errors import AdapterError
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.scheduler.commands import roll_back
from marlaas.engine.queue.submission.references import find_starts
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import TrainSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import command, submit
from tests.engine.trainer.tiny_qwen import save_tiny_qwen
from tests.oracle import history
from tests.oracle.audit import audit
from tests.oracle.record import opened
from tests.oracle.report import Report
from tests.oracle.updates import State, read

from .true_home import BATCH, SIZE, Slip, go_on, make_home, spec

Doctor = Callable[[sqlite3.Connection], object]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_qwen(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def made(base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(make_home(tmp_path_factory.mktemp("true") / "home", base, spec())).root


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Home:
    """A copy to doctor, with its own paths."""
    copy = Home(tmp_path / "home")
    shutil.copytree(made, copy.root)
    doctor(copy, lambda db: db.execute("UPDATE versions SET path = replace(path, ?, ?)", [str(made), str(copy.root)]))
    return copy


def doctor(home: Home, treatment: Doctor) -> None:
    with closing(sqlite3.connect(home.database, isolation_level=None)) as database:
        treatment(database)


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
        (task,) = submit(home.database, find_starts([submission(later)], reader))
    await go_on(home, store, base, task, later)
    store.close()
    report = audit(home.root)
    assert not report.problems and report.proven["updates"] == 6
    assert report.proven["tasks begin where they were told to"] == 1
    doctor(home, lambda db: db.execute("UPDATE borrowed SET version = 1"))
    assert found(audit(home.root, updates=False), "but it was to begin from")
    doctor(home, lambda db: db.execute("UPDATE tasks SET config = json_set(config, '$.train.kl_reference', 'base')"))
    assert found(audit(home.root), "updates differ")


async def test_a_task_whose_start_is_damaged_keeps_what_it_learnt(home: Home, base: str) -> None:
    train = replace(spec().train, kl=0.5, kl_reference="start")
    store, later = Store(home.database, base, "print"), replace(spec(train), policy=replace(spec().policy, start="1@2"))
    with Reader(home.database) as reader:
        (task,) = submit(home.database, find_starts([submission(later)], reader))
    await go_on(home, store, base, task, replace(later, steps=1))
    first = store.versions.first(store.versions.policy(task, "policy", {}))
    Path(first.path).write_bytes(b"damaged")
    with pytest.raises(AdapterError, match="The version that the task started from cannot be read"):
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


@pytest.mark.parametrize("loss", LOSSES)
async def test_every_loss_is_made_again(loss: str, base: str, tmp_path: Path) -> None:
    train = TrainSpec(loss=loss, groups_per_step=BATCH, group_size=SIZE, max_staleness=1, learning_rate=1e-3)
    made = await make_home(tmp_path / "home", base, spec(replace(train, **LOSSES[loss])))
    report = audit(made.root)
    assert not report.problems and report.proven["updates"] == 3
    doctor(made, lambda db: db.execute("UPDATE tasks SET config = replace(config, '0.001', '0.0011')"))
    assert found(audit(made.root), "updates differ")


TURNS = TrainSpec(
    groups_per_step=BATCH, group_size=SIZE, max_staleness=1, learning_rate=1e-3, advantage_level="turn", discount=0.9
)


@pytest.mark.parametrize("loss", ["dr_grpo", "grpo", "gspo"])
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
        doctor(doctored, lambda db, change=change: db.execute(change))  # type: ignore[misc]
        assert found(audit(doctored.root, updates="moments" in says), says)
        shutil.rmtree(doctored.root)


async def test_an_update_that_lacks_a_group_is_found(base: str, tmp_path: Path) -> None:
    made = await make_home(tmp_path / "home", base, spec(), Slip(forgotten=3))
    report = audit(made.root)
    assert {problem.split(":")[0] for problem in report.problems} == {"task 1, step 2"}


def test_a_chain_of_moments_is_carried_over_files_without_them(home: Home) -> None:
    for file in files(home)[:-1]:
        strip_moments(file, checksum(read_state(file).adapter))
    report = audit(home.root)
    assert not report.problems and report.proven["updates"] == 3 and report.proven["first moments"] == 1


def test_what_is_gone_is_counted_as_unknown(home: Home) -> None:
    doctor(home, lambda db: db.execute("UPDATE versions SET state = 'pruned' WHERE number = 1"))
    doctor(home, lambda db: db.execute("UPDATE trajectories SET tokens = x'', mask = x'', logprobs = x''"))
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
    doctor(home, lambda db: db.execute(sql))
    assert found(audit(home.root, updates="moments" in words), words)


def test_an_adapter_that_no_step_made_is_found(home: Home) -> None:
    path = files(home)[2]
    state = read_state(path)
    adapter = {name: array * 1.001 for name, array in state.adapter.items()}
    write_state(path, replace(state, adapter=adapter), sync=False)
    told = [checksum(adapter)]
    doctor(home, lambda db: db.execute("UPDATE versions SET checksum = ? WHERE number = 2", told))
    assert found(audit(home.root), "step 2: updates differ")


def test_a_missing_file_and_a_damaged_one_are_named(home: Home) -> None:
    files(home)[1].unlink()
    files(home)[2].write_bytes(b"damaged")
    report = audit(home.root)
    assert found(report, "version 1: ") and found(report, "version 3: ")


def test_a_file_that_an_engine_gives_up_meanwhile_is_no_damage(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows were read, then a version is pruned and its file goes, then the file is looked for."""
    first = files(home)[0]

    def read_late(path: Path) -> State:
        if path == first:
            doctor(home, lambda db: db.execute("UPDATE versions SET state = 'pruned' WHERE number = 0"))
            path.unlink()
        return read(path)

    monkeypatch.setattr(history, "read", read_late)
    report = audit(home.root, updates=False)
    assert report.sound and report.unknown["state files: the version is pruned"] == 1


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
    doctor(home, lambda db: db.execute("UPDATE trajectories SET tokens = x'01'"))
    doctor(home, lambda db: db.execute("UPDATE steps SET version = 999 WHERE number = 1"))
    report = audit(home.root, updates=False)
    assert found(report, "task 1: its rows hold what cannot be")
    assert found(report, "1 rows of steps name versions that are not there")


def test_each_part_of_a_mixture_draws_in_order(home: Home) -> None:
    """Every third group is of the words; group 7 is still under way, so nobody can say whose it is."""
    with opened(home.database) as record:
        policy = record.policies()[0]
    some = policy.groups[0]
    tables = policy.task.tables
    task = replace(policy.task, tables={**tables, "train": {**tables["train"], "max_staleness": 100}})

    def wrong(*instances: int) -> list[str]:
        groups = []
        for number, instance in zip((0, 1, 2, 3, 4, 5, 6, 8), instances, strict=True):
            component = "words" if number % 3 == 2 else "sums"
            waits = replace(some, state="complete", step=None, version=0)
            groups.append(replace(waits, number=number, instance=instance, component=component))
        report = Report()
        history.check_groups(replace(policy, task=task, step=0, groups=tuple(groups)), report)
        return report.problems

    assert wrong(0, 1, 0, 2, 3, 1, 4, 2) == []
    assert wrong(0, 1, 0, 2, 3, 1 + history.STRIDE, 4, 3) == [], (
        "a draw made again, and one that 7 may have come before"
    )
    assert len(wrong(0, 1, 0, 3, 3, 1, 4, 2)) == 1 and len(wrong(0, 1, 0, 2, 3, 1, 4, 4)) == 1
