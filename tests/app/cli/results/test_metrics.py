"""metrics: every step and every evaluation, for eyes and for other programs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from ...commanding import Commander
from ...filling import HOSTILE, Filling, reward


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
    assert float(rows[1]["reward"]) == reward(1, 1) and rows[1]["lenient"] == "" and rows[1]["n"] == ""
    assert float(rows[3]["lenient"]) == 0.7 and rows[3]["n"] == "64" and float(rows[5]["loss"]) == float("inf")


def test_json_lines(filling: Filling, marlaas: Commander) -> None:
    filling.task(made=2)
    filling.execute("UPDATE metrics SET value = 9e999 WHERE name = 'loss' AND step = 1")
    rows = [json.loads(text) for text in marlaas("metrics", "1", "--jsonl").out.splitlines()]
    assert rows == marlaas("metrics", "1", "--json").json
    assert [(row["kind"], row["step"]) for row in rows] == [("eval", 0), ("step", 1), ("step", 2), ("eval", 2)]
    assert rows[1]["metrics"]["loss"] is None and rows[1]["metrics"]["entropy"] == 0.74


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
    files = sorted(path for path in (tmp_path / "logs").rglob("*") if path.is_file())
    assert sorted(said.out.split("\n")[:2]) == [str(path) for path in files]
    assert files[0].parent.name == "1-..-sums-rate=1e-4" and files[0].parent.parent == tmp_path / "logs"
    data = files[0].read_bytes()
    assert all(
        tag in data for tag in (b"train/reward", b"train/entropy", b"eval/score", b"eval/lenient", b"eval/baseline")
    )


def test_scores_on_older_environments_have_tags_of_their_own(
    filling: Filling, marlaas: Commander, tmp_path: Path
) -> None:
    filling.task(name="sums", made=12)
    filling.execute("UPDATE evals SET series = 'old' WHERE step = 0")
    marlaas("metrics", "1", "--tensorboard", str(tmp_path))
    data = (tmp_path / "1-sums" / "events.out.tfevents.marlaas").read_bytes()
    assert data.count(b"eval old/score") == 1 and data.count(b"eval/score") == 2


def test_a_folder_that_cannot_be_written(filling: Filling, marlaas: Commander, tmp_path: Path) -> None:
    filling.task(made=1)
    (tmp_path / "file").write_text("")
    said = marlaas("metrics", "1", "--tensorboard", str(tmp_path / "file"))
    assert said.code == 1 and "cannot be written" in said.err


def test_hostile_names_of_metrics(filling: Filling, marlaas: Commander) -> None:
    filling.task(made=1)
    filling.execute("INSERT INTO metrics VALUES (1, 1, ?, 1.0)", HOSTILE.replace("\ud800", ""))
    for form in ("--csv", "--jsonl"):
        said = marlaas("metrics", "1", form)
        assert said.code == 0 and "\x1b" not in said.out and len(said.out.splitlines()) <= 4
