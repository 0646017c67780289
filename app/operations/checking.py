"""Checks a home: the database is intact, steps and groups are gapless, rows and files agree.

Reads only, also while an engine runs. Rows are of one moment; a file may be pruned meanwhile.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marlaas.engine.adapters.statefile import read_expected
from marlaas.engine.errors import AdapterError, StoreError

MOST_SHOWN = 40
"""Printed findings of one kind."""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_HINT = "`marlaas engine start` brings an older database up to date."

_DOUBLED_NAMES = "SELECT name FROM versions GROUP BY name HAVING count(*) > 1"
_ORPHANS = """SELECT (SELECT count(*) FROM trajectories WHERE "group" NOT IN (SELECT id FROM groups))
    + (SELECT count(*) FROM groups WHERE policy NOT IN (SELECT id FROM policies))"""
_TRAINED_EVALUATIONS = """SELECT DISTINCT p.task FROM policies p JOIN tasks t ON t.id = p.task AND t.kind = 'eval'
    WHERE EXISTS (SELECT 1 FROM steps WHERE policy = p.id) OR EXISTS (SELECT 1 FROM versions WHERE policy = p.id)"""
_POLICIES = """SELECT p.id, p.task, p.name, p.step, t.steps, t.base, t.config FROM policies p
    JOIN tasks t ON t.id = p.task AND t.kind = 'train' ORDER BY p.id"""
_ROLLBACKS = """SELECT arguments, done FROM commands WHERE kind = 'rollback' AND task = ? AND done IS NOT NULL
    AND outcome = ''"""


@dataclass
class Report:
    """The findings of one check."""

    proven: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Versions that could not be used later, by the home's own record."""
    spare: list[str] = field(default_factory=list)
    """Files that nothing needs."""

    @property
    def sound(self) -> bool:
        return not self.problems and not self.lost

    def check(self, holds: bool, what: str, where: str, problem: str) -> None:
        """Count a proof of ``what``, or note the problem."""
        if holds:
            self.proven[what] += 1
        else:
            self.problems.append(f"{where}: {problem}")

    def lines(self) -> list[str]:
        """Problems first, the verdict last."""
        lines = []
        for word, findings in (("WRONG", self.problems), ("LOST", self.lost), ("spare", self.spare)):
            lines += [f"{word:<8} {finding}" for finding in findings[:MOST_SHOWN]]
            if len(findings) > MOST_SHOWN:
                lines.append(f"{word:<8} and {len(findings) - MOST_SHOWN} more.")
        lines += [f"proven   {what}: {count:,}" for what, count in sorted(self.proven.items())]
        lines += [f"unknown  {what}: {count:,}" for what, count in sorted(self.unknown.items())]
        counts = [(len(self.problems), "problem"), (len(self.lost), "loss")]
        plurals = {"problem": "problems", "loss": "losses"}
        words = [f"{count} {name if count == 1 else plurals[name]}" for count, name in counts if count]
        return [*lines, f"{', '.join(words)}." if words else "Nothing is wrong."]


def check_home(home: Path, talk: Callable[[str], None]) -> Report:
    """Check a home; ``talk`` gets a line for each task. Raises ``StoreError``."""
    report = Report()
    try:
        with _connected(home / "marlaas.db") as database:
            files = [path for path in (home / "adapters").rglob("[!.]*") if path.is_file()]
            database.execute("BEGIN")  # all rows are of one moment, also while an engine commits
            _check_database(database, report)
            _report_spare(database, home, files, report)
            for policy, task, name, step, steps, base, config in database.execute(_POLICIES).fetchall():
                where = f"task {task}, {name}" if json.loads(config).get("policies") else f"task {task}"
                talk(f"Checking {where}: {step} steps.")
                _check_steps(database, policy, where, step, steps, report)
                _report_lost(database, policy, where, task, name, report)
                _check_groups(database, policy, where, step, json.loads(config)["train"], report)
                _check_files(database, policy, where, home, base, report)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _DAMAGED:
            raise StoreError(f"cannot be read: {error}.", _HINT, where=str(home / "marlaas.db")) from error
        report.check(False, "the database is whole", "home", f"{home / 'marlaas.db'} is damaged: {error}")
    except OSError as error:
        raise StoreError(f"cannot be read: {error}.", _HINT, where=str(home)) from error
    return report


def _check_database(database: sqlite3.Connection, report: Report) -> None:
    damage = [text for (text,) in database.execute("PRAGMA integrity_check") if text != "ok"]
    missing = Counter((table, parent) for table, _, parent, _ in database.execute("PRAGMA foreign_key_check"))
    damage += [
        f"{count} rows of {table} name {parent} that are not there" for (table, parent), count in missing.items()
    ]
    report.check(not damage, "the database is whole", "home", "; ".join(damage[:3]))
    doubled = [name for (name,) in database.execute(_DOUBLED_NAMES)]
    report.check(not doubled, "version names are unique", "home", f"names stand for several versions: {doubled}")
    (orphans,) = database.execute(_ORPHANS).fetchone()
    report.check(not orphans, "every row has its owner", "home", f"{orphans} rows belong to nothing")
    trained = [task for (task,) in database.execute(_TRAINED_EVALUATIONS)]
    report.check(not trained, "evaluations train nothing", "home", f"the evaluations {trained} have trained")


def _check_steps(database: sqlite3.Connection, policy: int, where: str, step: int, most: int, report: Report) -> None:
    rows = database.execute("SELECT number, version FROM steps WHERE policy = ? ORDER BY number", [policy]).fetchall()
    numbers = [number for number, _ in rows]
    gapless = numbers == list(range(1, step + 1))
    report.check(gapless, "steps are gapless", where, f"its steps are {_short(numbers)}, it stands at {step}")
    report.check(step <= most, "no step too many", where, f"it made {step} steps")
    versions = dict(
        database.execute("SELECT id, number FROM versions WHERE policy = ? AND state != 'void'", [policy]).fetchall()
    )
    living = Counter(versions.values())
    doubled = sorted(number for number, count in living.items() if count > 1)
    report.check(not doubled, "one version a step", where, f"several living versions have the numbers {doubled}")
    missing = sorted(set(range(step + 1)) - set(living)) if living else []
    report.check(not missing, "no version is lost", where, f"there is no version {_short(missing)}")
    beyond = sorted(number for number in living if number > step)
    report.check(not beyond, "no version without a step", where, f"versions {beyond} are above its step")
    for number, version in rows:
        place, problem = f"{where}, step {number}", "its version is another's"
        report.check(versions.get(version) == number, "every step has its version", place, problem)
    for number, version in database.execute("SELECT step, version FROM evals WHERE policy = ?", [policy]).fetchall():
        place = f"{where}, score at step {number}"
        report.check(versions.get(version) == number, "every score has its version", place, "of another version")


def _report_lost(database: sqlite3.Connection, policy: int, where: str, task: int, name: str, report: Report) -> None:
    """Void versions without a rollback: their files could not be used."""
    backs = [(json.loads(text), done) for text, done in database.execute(_ROLLBACKS, [task])]
    void = database.execute("SELECT number, created FROM versions WHERE policy = ? AND state = 'void'", [policy])
    lost = {
        number
        for number, created in void.fetchall()
        if not any(
            back.get("policy") in (None, name) and back["version"] < number and created < done for back, done in backs
        )
    }
    if lost:
        after = "training began again from the start" if 0 in lost else "training continued from what was before"
        versions = f"version {min(lost)}" if len(lost) == 1 else f"the versions {_short(sorted(lost))}"
        report.lost.append(f"{where}: {versions} could not be used; {after}.")


def _check_groups(
    database: sqlite3.Connection, policy: int, where: str, step: int, train: dict[str, Any], report: Report
) -> None:
    """Every group is consumed once, and each step consumes as many as the task file asks for."""
    batch = int(train["groups_per_step"])
    rows = database.execute(
        "SELECT number, step FROM groups WHERE policy = ? AND split = 'train' AND state = 'consumed'", [policy]
    ).fetchall()
    used = Counter(number for number, _ in rows)
    doubled = sorted(number for number, count in used.items() if count > 1)
    lacking: list[int] = []
    if train.get("order", "number") == "number":
        lacking = sorted(set(range(step * batch)) - set(used))
        for number, taken in rows:
            due = number // batch + 1
            place = f"{where}, group {number}"
            report.check(taken == due, "in the step it is due", place, f"step {taken} took it, not {due}")
    sizes = Counter(taken for _, taken in rows)
    full = not doubled and not lacking and sizes == {number: batch for number in range(1, step + 1)}
    problem = f"of {step} steps of {batch} groups, {_short(doubled)} came twice and {_short(lacking)} never"
    report.check(full, "every group is consumed once", where, problem)


def _check_files(database: sqlite3.Connection, policy: int, where: str, home: Path, base: str, report: Report) -> None:
    """Every committed version has its file, with the recorded checksum."""
    query = "SELECT id, number, state, checksum, path FROM versions WHERE policy = ? ORDER BY id"
    for version, number, state, checksum, name in database.execute(query, [policy]).fetchall():
        if state != "committed":
            report.unknown[f"state files: the version is {state}"] += 1
            continue
        place, path = f"{where}, version {number}", home / name
        inside = path.resolve().is_relative_to(home.resolve())
        report.check(inside, "files lie in the home", place, f"its file is {path}")
        try:
            header = read_expected(path, checksum, moments=True).header
        except AdapterError as error:
            with _connected(home / "marlaas.db") as current:  # an engine may have pruned the version since
                now = current.execute("SELECT state FROM versions WHERE id = ?", [version]).fetchone()
            if now == ("committed",):
                report.check(False, "state files", place, str(error))
            else:
                report.unknown[f"state files: the version is {now[0] if now else 'gone'}"] += 1
            continue
        report.check(True, "state files", place, "")
        report.check(header.step == number, "headers agree", place, f"its header says step {header.step}")
        report.check(not base or header.base == base, "bases agree", place, f"it belongs to base {header.base}")


def _report_spare(database: sqlite3.Connection, home: Path, files: list[Path], report: Report) -> None:
    """Files that no row names. ``files`` were listed before the rows were read."""
    query = "SELECT path FROM versions WHERE state = 'committed'"
    named = {(home / name).resolve() for (name,) in database.execute(query)}
    spare = sorted(path for path in files if path.resolve() not in named and path.exists())
    if spare:
        shown = ", ".join(str(path.relative_to(home)) for path in spare[:3]) + (", …" if len(spare) > 3 else "")
        count = "1 file" if len(spare) == 1 else f"{len(spare)} files"
        report.spare.append(f"{count} that no version names, of an unfinished step or a pruned version: {shown}")
    if lost := sum(path.is_file() for path in (home / "lost+found").rglob("*")):
        report.spare.append(f"{'1 file' if lost == 1 else f'{lost} files'} in lost+found, of versions that were void")


def _short(numbers: list[int]) -> str:
    if not numbers:
        return "none"
    return ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


@contextmanager
def _connected(database: Path) -> Iterator[sqlite3.Connection]:
    uri = f"{database.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=30)) as connection:
        yield connection
