"""report: tasks in a folder that opens anywhere."""

from __future__ import annotations

from pathlib import Path

from ...commanding import Commander
from ...filling import Filling
from ...filling_rollouts import fill_rollouts


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


def test_a_task_without_a_step(filling: Filling, marlaas: Commander, tmp_path: Path) -> None:
    filling.task(made=0)
    filling.execute("DELETE FROM evals")
    marlaas("report", "1", "--out", str(tmp_path / "r"))
    assert "No step yet" in (tmp_path / "r" / "report.md").read_text()


def test_mistakes(filling: Filling, marlaas: Commander, tmp_path: Path) -> None:
    filling.task()
    assert "There is no task 9" in marlaas("report", "9").err
    assert "No task is given" in marlaas("report").err
    (tmp_path / "file").write_text("")
    refused = marlaas("report", "1", "--out", str(tmp_path / "file"))
    assert refused.code == 1 and "cannot be written" in refused.err and "--out" in refused.err
