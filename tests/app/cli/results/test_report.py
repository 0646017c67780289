"""report: tasks in a folder that opens anywhere."""

from __future__ import annotations

import re
from pathlib import Path

from marlaas.engine.home.paths import Home

from ...commanding import Commander
from ...filling import Filling
from ...filling_policies import fill_duel
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


def test_mistakes(filling: Filling, marlaas: Commander, tmp_path: Path) -> None:
    filling.task()
    assert "There is no task 9" in marlaas("report", "9").err
    (tmp_path / "file").write_text("")
    refused = marlaas("report", "1", "--out", str(tmp_path / "file"))
    assert refused.code == 1 and "cannot be written" in refused.err and "--out" in refused.err


def test_several_policies_say_whom_they_speak_for(home: Home, marlaas: Commander, tmp_path: Path) -> None:
    fill_duel(home.database)
    marlaas("report", "2", "--out", str(tmp_path / "r"))
    text = (tmp_path / "r" / "report.md").read_text()
    assert "| Policy player | trained; acts as " in text and "| Policy judge | trained; acts as " in text
    assert "## Curves of player" in text and "## Scores of judge" in text
    heads = re.findall(r"(?m)^\*\*.* reward .*\*\*$", text)
    assert heads and not any(re.search(r" v(\d+) · version \1\b", head) for head in heads), "a version is said once"
    assert not re.search(r"\b(\w+): \1 v\d", text), "nobody is named twice"


def test_of_many_the_best_are_drawn(filling: Filling, marlaas: Commander, tmp_path: Path) -> None:
    for number in range(1, 7):
        filling.task(name=f"rate {number}", made=4)
        filling.execute(
            "UPDATE evals SET score = ? WHERE policy = (SELECT id FROM policies WHERE task = ?)", number / 10, number
        )
    marlaas("report", *map(str, range(1, 7)), "--out", str(tmp_path / "r"))
    text = (tmp_path / "r" / "report.md").read_text()
    drawn = next(row for row in text.splitlines() if "pictures/rewards.svg" in row)
    assert "of the 4 with the best scores" in drawn
    assert re.findall(r"rate (\d)", drawn) == ["3", "4", "5", "6"]


def test_policies_share_one_table_of_the_newest_step(home: Home, marlaas: Commander, tmp_path: Path) -> None:
    """With a column each: what each metric means is said once."""
    fill_duel(home.database)
    assert marlaas("report", "2", "--out", str(tmp_path / "two")).code == 0
    told = (tmp_path / "two" / "report.md").read_text()
    (table,) = [part for part in told.split("\n\n") if part.startswith("| Metric ")]
    header, _, *rows = table.splitlines()
    columns = [cell.strip().rpartition(" ")[0] or cell.strip() for cell in header.strip("|").split("|")]
    assert columns == ["Metric", "player, step", "judge, step", "Meaning"]
    reward = next(row for row in rows if row.startswith("| reward "))
    _, player, judge, meaning = (cell.strip() for cell in reward.strip("|").split("|"))
    assert player and judge and player != judge and meaning


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
