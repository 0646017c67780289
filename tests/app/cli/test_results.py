"""What tasks have learned: metrics, reports, rollouts, costs, comparisons."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from pathlib import Path

import pytest

from marlaas.app.operations.results import Scalars, crc32c, event_file
from marlaas.engine.home.paths import Home

from ..commanding import Commander
from ..filling import HOSTILE, Filling, fill_hostile, reward
from ..filling_policies import fill_duel
from ..filling_rollouts import fill_rollouts


def test_a_table_for_people(filling: Filling, marlaas: Commander) -> None:
    filling.task(made=3)
    lines = marlaas("metrics", "1").out.splitlines()
    assert lines[0].split()[:3] == ["STEP", "REWARD", "LOSS"] and lines[0].split()[-1] == "HELD-OUT"
    assert [row.split()[0] for row in lines[1:]] == ["0", "1", "2", "3", "3"]
    assert lines[-1].split()[1:] == [f"{reward(1, 3) - 0.05:.2f}", "±", "0.03", "(64", "prompts)"]
    filling.task()
    filling.execute("DELETE FROM evals WHERE policy = 2")
    assert marlaas("metrics", "2").err == "Nothing was measured yet; the first step does that.\n"


def test_csv_has_all_and_reads_back(filling: Filling, marlaas: Commander) -> None:
    filling.task(made=2)
    filling.task(made=1)
    filling.execute("UPDATE metrics SET value = 9e999 WHERE name = 'loss' AND policy = 2")
    rows = list(csv.DictReader(io.StringIO(marlaas("metrics", "1", "2", "--csv").out)))
    assert [(row["task"], row["kind"], row["step"]) for row in rows] == [
        ("1", "eval", "0"), ("1", "step", "1"), ("1", "step", "2"), ("1", "eval", "2"),
        ("2", "eval", "0"), ("2", "step", "1"), ("2", "eval", "1"),
    ]  # fmt: skip
    lines = [json.loads(text) for text in marlaas("metrics", "1", "--jsonl").out.splitlines()]
    assert lines == marlaas("metrics", "1", "--json").json and lines[1]["metrics"]["entropy"] == 0.74
    assert float(rows[1]["reward"]) == reward(1, 1) and rows[1]["lenient"] == "" and rows[1]["n"] == ""
    assert float(rows[3]["lenient"]) == 0.7 and rows[3]["n"] == "64" and float(rows[5]["loss"]) == float("inf")


def test_tables_and_json_have_one_name_for_each_figure(filling: Filling, marlaas: Commander) -> None:
    """The older names are still in JSON and CSV."""
    filling.task(made=2)
    rows = marlaas("metrics", "1", "--json").json
    step, held_out = rows[1]["metrics"], rows[3]
    assert (step["gap"], step["largest_gap"]) == (step["gap_mean"], step["gap_max"]) == (0.0004, 0.0021)
    assert (held_out["episodes"], held_out["failed"]) == (held_out["n"], held_out["failures"]) == (64, 0)
    assert held_out["baseline"] == held_out["floor"] and held_out["best_at"] == held_out["best_of"]
    assert "GAP" in marlaas("metrics", "1").out.splitlines()[0].split()
    table = list(csv.DictReader(io.StringIO(marlaas("metrics", "1", "--csv").out)))
    assert (table[1]["gap"], table[3]["episodes"]) == (table[1]["gap_mean"], table[3]["n"]) == ("0.0004", "64")
    shown = marlaas("show", "1")
    assert "\n  gap           4.0e-04\n" in shown.out and "\n  largest gap   0.002\n" in shown.out
    assert "gap_" not in shown.out and "grad_norm" not in shown.out
    told = marlaas("show", "1", "--json").json
    assert told["metrics"]["gap"] == told["metrics"]["gap_mean"] and told["baseline"] == told["floor"]
    assert told["eval"][0]["episodes"] == told["eval"][0]["n"] and told["basis"]["episodes"] == told["basis"]["n"]


def test_event_files_lie_in_a_folder_for_each_task(filling: Filling, marlaas: Commander, tmp_path: Path) -> None:
    filling.task(name="../sums [rate=1e-4]", made=2)
    filling.task(name=HOSTILE, made=1)
    for _ in range(2):  # a second time replaces what the first wrote
        said = marlaas("metrics", "1", "2", "--tensorboard", str(tmp_path / "logs"))
        assert said.code == 0
    (tmp_path / "file").write_text("")
    assert "cannot be written" in marlaas("metrics", "1", "--tensorboard", str(tmp_path / "file")).err
    files = sorted(path for path in (tmp_path / "logs").rglob("*") if path.is_file())
    assert sorted(said.out.split("\n")[:2]) == [str(path) for path in files]
    assert files[0].parent.name == "1-..-sums-rate=1e-4" and files[0].parent.parent == tmp_path / "logs"
    data = files[0].read_bytes()
    assert all(
        tag in data for tag in (b"train/reward", b"train/entropy", b"eval/score", b"eval/lenient", b"eval/baseline")
    )


def test_one_task(filling: Filling, marlaas: Commander, tmp_path: Path) -> None:
    fill_rollouts(filling, 20)
    said = marlaas("report", "1", "--out", str(tmp_path / "r"))
    assert said.out == f"{tmp_path}/r/report.html\n{tmp_path}/r/report.md\n"
    text, page = (tmp_path / "r" / "report.md").read_text(), (tmp_path / "r" / "report.html").read_text()
    for heading in ("How it went", "Curves", "Scores", "Rollouts worth reading", "What it cost", "The task file"):
        assert f"## {heading}\n" in text and f"<h2>{heading}</h2>" in page
    assert "What is" in text and "An episode that failed" in text
    pictures = {path.name for path in (tmp_path / "r" / "pictures").iterdir()}
    assert "1-reward.svg" in pictures and all(f"pictures/{name}" in text for name in pictures)
    assert page.count("<svg") == len(pictures)


def test_several_tasks_are_compared(filling: Filling, marlaas: Commander, tmp_path: Path) -> None:
    filling.task(name="first", made=4)
    filling.task(name="second", made=4)
    said = marlaas("report", "1", "2", "--out", str(tmp_path / "r"), "--json").json
    assert said["tasks"] == [1, 2] and said["files"][0].endswith("report.html")
    text = (tmp_path / "r" / "report.md").read_text()
    assert "## How they compare" in text and "Against 1" in text and "## Task 2: second" in text
    assert (tmp_path / "r" / "pictures" / "rewards.svg").exists()


def test_several_policies_say_whom_they_speak_for(home: Home, marlaas: Commander, tmp_path: Path) -> None:
    fill_duel(home.database)
    marlaas("report", "2", "--out", str(tmp_path / "r"))
    text = (tmp_path / "r" / "report.md").read_text()
    assert "| Policy player | trained; acts as " in text and "| Policy judge | trained; acts as " in text
    assert "## Curves of player" in text and "## Scores of judge" in text
    assert "The best of the group with the widest rewards" in text and "## Rollouts worth reading of player" in text


def test_what_happened_since_somebody_last_asked(
    filling: Filling, home: Home, marlaas: Commander, tmp_path: Path
) -> None:
    filling.task("bio", "sums", made=5, state="paused", reason="All 64 rewards were 0.00: nothing to climb.")
    filling.task("physics", "idle", made=0)
    filling.event("A worker died.", None, "error")
    filling.event("A worker died.", None, "error")
    filling.execute("UPDATE steps SET created = unixepoch() - 1700 * (6 - number)")
    filling.execute("UPDATE events SET created = unixepoch() - 60")
    said = marlaas("report", "--since", "1h").out
    assert "2 steps, 0 tasks ended" in said and "+2 to 5/" in said and "idle" not in said
    assert "sums: All 64 rewards were 0.00: nothing to climb." in said and "A worker died. (2 times)" in said
    assert ": nothing." in marlaas("report").out, "the time of the last report"
    marlaas("report", "--since", "1d", "--out", str(tmp_path / "r"))
    assert "+5 to 5/" in (tmp_path / "r" / "report.md").read_text() and (tmp_path / "r" / "report.html").exists()
    assert [row["steps"] for row in marlaas("report", "--since", "1d", "--json").json["progress"]] == [5]
    assert "is no moment" in marlaas("report", "--since", "soon").err


@pytest.fixture
def played(filling: Filling) -> Filling:
    fill_rollouts(filling, 10)
    return filling


def test_steps_and_evaluations(played: Filling, marlaas: Commander) -> None:
    lines = marlaas("rollouts", "1").out.splitlines()
    assert lines[0].split() == ["STEP", "KIND", "REWARD", "GROUPS", "FAILED"] and len(lines) == 12
    assert lines[1].split() == ["1", "training", "0.05", "8", "1"] and lines[-1].split()[:2] == ["10", "held-out"]
    rows = marlaas("rollouts", "1", "--json").json
    row = {"split": "train", "step": 1, "groups": 8, "reward": rows[0]["reward"], "failed": 1, "failures": 1}
    assert rows[0] == row
    assert len(marlaas("rollouts", "1", "--eval", "--json").json) == 1


def test_the_groups_of_a_step(played: Filling, marlaas: Commander) -> None:
    played.execute("UPDATE groups SET number = 999 WHERE number = 17")  # stored before those of lower numbers
    lines = marlaas("rollouts", "1", "--step", "3").out.splitlines()
    assert [row.split()[0] for row in lines[1:]] == ["16", *map(str, range(18, 24)), "999"]
    assert lines[0].split() == [
        "GROUP", "PROMPT", "MEMBERS", "REWARD", "REPLIES", "STALENESS", "INSTANCE", "ENVIRONMENT"
    ]  # fmt: skip
    assert lines[1].split()[0] == "16" and "1 old" in lines[1] and "What is 16 + 0?" in lines[1]
    assert "✗ 16, …kes room, ✗ 17, …" in lines[1] and ", +5 others" in lines[1]
    assert "!" in lines[3] and "!" not in lines[1], "failures have a sign of their own"
    groups = marlaas("rollouts", "1", "--step", "3", "--json").json
    assert groups[0]["number"] == 16 and groups[0]["staleness"] == 1 and len(groups[0]["members"]) == 8
    assert groups[0]["prompt"] == "What is 16 + 0?" and groups[0]["members"][1]["reply"].startswith("17, so that")
    assert "has no groups of an evaluation at step 3" in marlaas("rollouts", "1", "--step", "3", "--eval").err


def test_what_was_said_in_a_group(played: Filling, marlaas: Commander) -> None:
    said = marlaas("rollouts", "1", "--group", "16").out
    assert said.count("What is 16 +") == 8 and "step 3" in said
    records = marlaas("rollouts", "1", "--group", "16", "--json").json
    assert [record["member"] for record in records] == list(range(8)) and len(records[0]["trajectories"]) == 1
    (failed,) = marlaas("rollouts", "1", "--group", "19", "--failures", "--json").json
    assert failed["failure"]["line"] == 12
    assert marlaas("rollouts", "1", "--search", "IS 16 +").out.count("What is 16 +") == 8
    assert marlaas("rollouts", "1", "--search", "IS 16 +", "--step", "4").out == ""
    assert len(marlaas("rollouts", "1", "--eval", "--step", "10", "--group", "2", "--json").json) == 1


def test_taking_away(played: Filling, marlaas: Commander, tmp_path: Path) -> None:
    def count(*arguments: str) -> int:
        return len([json.loads(line) for line in marlaas("rollouts", "1", "--jsonl", *arguments).out.splitlines()])

    assert [count(), count("--failures"), count("--step", "3"), count("--eval")] == [648, 10, 64, 8]
    file = tmp_path / "group.jsonl"
    said = marlaas("rollouts", "1", "--group", "16", "--out", str(file))
    assert said.out == f"{file}\n" and "8 conversations written" in said.err and len(file.read_text().splitlines()) == 8
    again = marlaas("rollouts", "1", "--out", str(file))
    assert again.code == 2 and "is there already" in again.err
    assert marlaas("rollouts", "1", "--step", "3", "--failures", "--out", str(tmp_path / "a.txt")).code == 0
    assert "the sum was no number" in (tmp_path / "a.txt").read_text()
    played.task()
    assert marlaas("rollouts", "2").err == "There are no episodes yet.\n"
    nowhere = marlaas("rollouts", "1", "--out", str(tmp_path / "no" / "where"))
    assert nowhere.code == 2 and "cannot be written" in nowhere.err


def test_foreign_words_are_safe(filling: Filling, marlaas: Commander) -> None:
    fill_hostile(filling.path)
    for arguments in (("1",), ("1", "--step", "12"), ("1", "--group", "96")):
        said = marlaas("rollouts", *arguments).out
        assert not {"\x1b", "\x00", "\x07", "\u202e", "\ud800"} & set(said)
    assert marlaas("rollouts", "1", "--jsonl").out.isascii()
    assert marlaas("rollouts", "1", "--group", "96", "--json").json[0]["turns"][0]["text"] == HOSTILE


TODAY, DAY_BEFORE = (time.strftime("%Y-%m-%d", time.gmtime(time.time() - ago)) for ago in (0, 86400))


def fill(filling: Filling) -> None:
    """Two tenants, three tasks; one second of each stage now, and one yesterday."""
    for name, weight in (("lab", 2.0), ("club", 1.0)):
        filling.insert("tenants", name=name, weight=weight, created=0.0)
    for number, tenant in enumerate(("lab", "lab", "club"), start=1):
        config = '{"train": {"groups_per_step": 2}}'
        filling.insert(
            "tasks",
            id=number,
            tenant=tenant,
            name=f"sums {number}",
            environment="e",
            state="running" if number == 1 else "done",
            config=config,
            created=0.0,
            steps=9,
        )
        for stage, seconds in (("rollout", 6.0 * number), ("training", 3.0), ("environment", 90.0)):
            filling.insert("usage", day=TODAY, task=number, stage=stage, tokens=100 * number, seconds=seconds)
    filling.insert("usage", day=DAY_BEFORE, task=3, stage="rollout", tokens=5, seconds=1.0)
    filling.insert("policies", id=1, task=1, name="policy", config="{}", step=3)
    for number, state in ((5, "consumed"), (6, "complete"), (8, "complete")):
        filling.insert(
            "groups",
            policy=1,
            split="train",
            number=number,
            instance=0,
            version=0,
            environment_version="",
            state=state,
            created=0.0,
        )
    for begun in (time.time() - 0.5, time.time() - 90000):
        sample(filling, "rollout", begun, "core 0", 0.9, 4.0, 12.0, 700)
        sample(filling, "environment", begun, "cpu", 0.2, 0.0, 6.0, 100)
        sample(filling, "training", begun, "core 1", 0.5, 1.0, 1.5, 20)
        sample(filling, "engine", begun, "cpu", 0.02, 0.0, 0.0, 0)


def sample(
    filling: Filling, name: str, begun: float, device: str, busy: float, waiting: float, active: float, ended: int
) -> None:
    filling.insert(
        "stages",
        incarnation=1,
        stage=name,
        device=device,
        begun=begun,
        wall=1.0,
        busy=busy,
        waiting=waiting,
        active=active,
        ended=ended,
    )


def test_the_tables_fit_eighty_columns(filling: Filling, marlaas: Commander) -> None:
    fill(filling)
    said = marlaas("stats")
    assert said.code == 0 and max(map(len, said.out.splitlines())) <= 80
    lines = [text.split() for text in said.out.splitlines()]
    assert ["rollout", "core", "0", "90", "%", "4.0", "12.0", "700", "turns"] in lines
    assert ["engine", "cpu", "2", "%"] in lines
    assert ["lab", "2", "53", "%", "900", "18", "s", "6", "s", "3", "min", "00", "s"] in lines
    assert ["1", "lab", "sums", "1", "300", "6", "s", "3", "s", "1", "min", "30", "s", "2"] in lines
    assert "0.2 ms of processor time an episode" in said.out and "of adapters" in said.out


def test_a_home_in_which_nothing_ran_says_so(home: Home, marlaas: Commander) -> None:
    said = marlaas("stats")
    assert (said.code, said.out) == (0, "") and "Nothing has run" in said.err


def configured(filling: Filling, task: int, **config: object) -> None:
    filling.execute("UPDATE tasks SET config = ? WHERE id = ?", json.dumps(config), task)


def test_scores_of_different_series_do_not_compare(filling: Filling, marlaas: Commander) -> None:
    for _ in range(2):
        filling.task(made=3)
    assert marlaas("compare", "1", "2").err == "Their configurations are the same.\n"
    filling.execute("UPDATE evals SET series = 'e2' WHERE policy = 2")
    assert "do not compare" in marlaas("compare", "1", "2").err


def test_side_by_side(filling: Filling, marlaas: Commander) -> None:
    filling.task(name="slow", state="done", steps=20, made=20)
    filling.task(name="fast", state="running", made=3)
    configured(filling, 1, steps=20, train={"learning_rate": 1e-4, "loss": "grpo", "deterministic": True})
    configured(filling, 2, steps=60, train={"learning_rate": 1e-3, "loss": "grpo"})
    lines = [row.split() for row in marlaas("compare", "1", "2").out.splitlines()]
    assert lines[0] == ["TASK", "1", "2"] and ["step", "20/20", "3/60"] in lines
    assert lines[lines.index([]) + 1 :] == [
        ["KEY", "1", "2"],
        ["steps", "20", "60"],
        ["train.learning_rate", "0.0001", "0.001"],
        ["train.deterministic", "true", "-"],
    ]
    assert ["train.loss", "grpo", "grpo"] in [
        row.split() for row in marlaas("compare", "1", "2", "--all").out.splitlines()
    ]
    said = marlaas("compare", "1", "2", "--json").json
    assert said["config"]["steps"] == [20, 60] and [task["id"] for task in said["tasks"]] == [1, 2]


RECORD = bytes.fromhex(
    "33000000000000000ca72056090000000000448f4010ac022a250a130a0c747261696e2f726577617264150000003f0a0e0a076576616c2fc3bc"
    "150000c07f03f64e6d"
)
"""What tensorboard 2.21's ``RecordWriter`` writes for the event of the test below."""


def test_a_record_as_the_original_writes_it() -> None:
    scalars = Scalars(300, 1000.5, {"train/reward": 0.5, "eval/ü": math.nan})
    assert event_file([scalars], 1000.5).endswith(RECORD)


def test_the_checksum_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4
