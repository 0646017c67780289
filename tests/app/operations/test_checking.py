"""``home check`` finds nothing in a true home, and what is wrong in a doctored one."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.numpy import save

from marlaas.app.cli.main import main
from marlaas.app.operations import checking
from marlaas.app.operations.checking import check_home
from marlaas.engine.adapters.statefile import PolicyState, read_expected
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.scheduler.commands import roll_back
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import command
from tests.engine.trainer.tiny_qwen import save_tiny_qwen
from tests.oracle.true_home import go_on, make_home, spec


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_qwen(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def made(base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(make_home(tmp_path_factory.mktemp("true") / "home", base, spec())).root


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Home:
    copy = Home(tmp_path / "home")
    shutil.copytree(made, copy.root)
    change(copy, f"UPDATE versions SET path = replace(path, '{made}', '{copy.root}')")
    return copy


def change(home: Home, sql: str) -> None:
    with closing(sqlite3.connect(home.database, isolation_level=None)) as database:
        database.execute(sql)


def files(home: Home) -> list[Path]:
    return sorted(home.adapters.rglob("*.safetensors"))


def check(home: Home) -> checking.Report:
    return check_home(home.root, lambda text: None)


def test_a_true_home_is_proven(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["home", "check", "--home", str(home.root)]) == 0
    out = capsys.readouterr().out
    assert "proven   steps are gapless: 1" in out and "proven   state files: 4" in out and "Nothing is wrong." in out
    assert not any(word in out for word in ("unknown", "LOST", "spare"))


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
    "an orphan": ('UPDATE trajectories SET "group" = 999 WHERE id = 1', "1 rows belong to nothing"),
    "a missing row": ("UPDATE steps SET version = 999 WHERE number = 1", "1 rows of steps name versions"),
    "a swapped file": (
        "UPDATE versions SET path = (SELECT path FROM versions v WHERE v.number = 3 - versions.number)"
        " WHERE number IN (1, 2)",
        "version 1: ",
    ),
    "another base": ("UPDATE tasks SET base = 'other'", "it belongs to base print"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_found(home: Home, lie: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql, words = LIES[lie]
    change(home, sql)
    assert main(["home", "check", "--home", str(home.root)]) == 1
    assert words in capsys.readouterr().out


def test_missing_and_damaged_files_are_named(home: Home, tmp_path: Path) -> None:
    away = tmp_path / "away.safetensors"
    shutil.copy(files(home)[0], away)
    change(home, f"UPDATE versions SET path = '{away}' WHERE number = 0")
    files(home)[2].write_bytes(b"damaged")
    files(home)[1].unlink()
    problems = check(home).problems
    for words in (f"version 0: its file is {away}", "version 1: ", "version 2: "):
        assert any(words in problem for problem in problems), problems


def test_a_file_that_is_pruned_meanwhile_is_no_damage(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    first = files(home)[0]

    def read_late(path: Path, expected: str, moments: bool) -> PolicyState:
        if path == first:
            change(home, "UPDATE versions SET state = 'pruned' WHERE number = 0")
            path.unlink()
        return read_expected(path, expected, moments)

    monkeypatch.setattr(checking, "read_expected", read_late)
    report = check(home)
    assert report.sound and report.unknown["state files: the version is pruned"] == 1


async def test_a_lost_step_is_not_taken_for_a_rollback(home: Home, base: str) -> None:
    store = Store(home.database, base, "print")
    asked = command(home.database, "rollback", 1, version=2)
    await roll_back(store, 1, 2)
    store.tasks.finish_command(asked)
    await go_on(home, store, base, 1, spec())
    assert check(home).sound
    (newest,) = (version for version in store.versions.on_disk(1) if version.number == 3)
    (home.root / newest.path).unlink()
    await go_on(home, store, base, 1, spec())
    store.close()
    report = check(home)
    assert report.lost == ["task 1: version 3 could not be used; training continued from what was before."]
    assert report.lines()[-1] == "1 loss."


def test_a_damaged_database_is_a_finding(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    whole = home.database.read_bytes()
    for broken in (whole[: len(whole) // 2], b"no database" * 1000, whole[:8192] + bytes(8192) + whole[16384:]):
        for path in home.root.glob("marlaas.db*"):
            path.unlink()
        home.database.write_bytes(broken)
        assert main(["home", "check", "--home", str(home.root), "--json"]) == 1
        answer = json.loads(capsys.readouterr().out)
        assert not answer["ok"] and "is damaged" in answer["problems"][0]


def test_a_flipped_bit_in_the_moments_breaks_the_seal(home: Home) -> None:
    """The adapter's own checksum does not cover the optimizer's moments."""
    path = files(home)[2]
    with safe_open(path, framework="np") as file:
        arrays, header = {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["marlaas"])  # noqa: SIM118
    text = json.dumps(header | {"format": 2})
    seal = sha256(text.encode())
    for key in sorted(arrays):
        seal.update(f"{key}{arrays[key].shape}".encode() + arrays[key].tobytes())
    whole = save(arrays, metadata={"marlaas": text, "sha256": seal.hexdigest()})
    path.write_bytes(whole)
    assert check(home).sound
    place = whole.index(arrays[max(arrays)].tobytes())
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert any("version 2: " in problem for problem in check(home).problems)
