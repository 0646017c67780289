"""The environments for real models, and what the benchmark reads off stored runs; no model is trained here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import PLUGINS
from benchmarks.plugins.real import grading
from benchmarks.real import runs, section
from benchmarks.real.runs import ENVIRONMENTS, Record
from benchmarks.report import pages
from benchmarks.report.machine import Machine
from benchmarks.report.results import stamp
from marlaas.engine.queue.submission import taskfile
from marlaas.plugins.host.loading import load
from marlaas.plugins.messages import Ask

from ...plugins.adapters.playing import Said, calls, played


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_held_out_rows_share_no_question(name: str) -> None:
    train, held_out = grading.rows(name, "train"), grading.rows(name, "eval")
    assert len(train) >= 90 and 50 <= len(held_out) <= 64
    prompts = [row["prompt"] for row in (*train, *held_out)]
    assert len(set(prompts)) == len(prompts)
    keys: dict[str, Callable[[dict[str, str]], object]] = {
        "number": lambda row: frozenset(word for word in row["prompt"].split() if word.strip("?").isdigit()),
        "facts": lambda row: json.loads(row["answer"])["name"],
        "format": lambda row: row["prompt"].split()[1],
    }
    key = keys.get(name, lambda row: row["answer"])
    assert not set(map(key, train)) & set(map(key, held_out))


@pytest.mark.parametrize(
    ("environment", "answer", "reply", "worth"),
    [
        ("capital", "Paris", "Paris", 1.0),
        ("capital", "Paris", " paris.\n", 1.0),
        ("capital", "Brasilia", "Brasília", 1.0),
        ("capital", "Paris", "The capital of France is Paris.", 0.4),
        ("capital", "Male", "Malena", 0.0),
        ("number", "19", "19", 1.0),
        ("number", "19", "7 + 12 = 19.", 0.3),
        ("number", "19", "192", 0.0),
        ("number", "19", "1.19", 0.0),
        ("facts", '{"name": "Ann", "age": 30}', '{"name": "Ann", "age": 30}', 1.0),
        ("facts", '{"name": "Ann", "age": 30}', '```json\n{"name": "Ann", "age": "30"}\n```', 1.0),
        ("facts", '{"name": "Ann", "age": 30}', '{"name": "Bob", "age": 30}', 0.6),
        ("facts", '{"name": "Ann", "age": 30}', "{}", 0.2),
        ("facts", '{"name": "Ann", "age": 30}', '["Ann", 30]', 0.0),
        ("facts", '{"name": "Ann", "age": 30}', "[" * 100_000, 0.0),
        ("format", "capitals", "BEES MAKE HONEY FROM FLOWERS.", 1.0),
        ("format", "capitals", "BEES MAKE honey FROM FLOWERS.", 0.0),
        ("format", "no commas", "Bees make honey and they dance.", 1.0),
        ("format", "no commas", "Bees, wasps and ants are insects.", 0.0),
        ("format", "no commas", "Bees.", 0.0),
        ("format", "sentences 2", "Bees make honey. They dance!", 1.0),
        ("format", "sentences 2", "Bees make 2.5 litres of honey.", 0.0),
        ("format", "sentences 2", "Bees make honey. They dance! And then", 0.0),
    ],
)
def test_rewards_by_hand(environment: str, answer: str, reply: str, worth: float) -> None:
    assert grading.reward(reply, answer, environment) == pytest.approx(worth)


@pytest.mark.parametrize("form", ["prompt", "base"])
async def test_a_tool_is_called_once_and_its_result_reported(form: str) -> None:
    environments = load(PLUGINS / "real")
    assert set(environments) == set(ENVIRONMENTS)
    row = {"preamble": "", "prompt": "What is 47 times 6?", "answer": "47*6"}
    in_text = form == "prompt"
    right = "47*6" if in_text else calls("calc", expression="47*6")
    wrong = "47 * 7" if in_text else calls("calc", expression="47*7")
    scripts: list[tuple[list[Said], float]] = [
        ([right, "282"], 1.0),
        ([right, "The answer is 282"], 0.7),
        ([wrong, "329"], 0.3),
        (["I call 6 x 47 now."], 0.1 if in_text else 0.0),
        (["It is 282, not 47*7."], 0.0),
    ]
    for script, worth in scripts:
        reward, ep, model = await played(environments["tool"], script, row, config={"form": form})
        assert reward == pytest.approx(worth), (script, reward)
        assert len(model.asks) == len(script), ep


async def test_others_ask_once() -> None:
    environments = load(PLUGINS / "real")

    def answer(ask: Ask) -> str:
        return "19"

    row = {"preamble": "", "prompt": "What is 7 + 12? Reply with the number only.", "answer": "19"}
    assert (await played(environments["number"], answer, row))[0] == 1.0
    for name in set(ENVIRONMENTS) - {"tool", "number"}:
        reward, _, model = await played(environments[name], answer, grading.rows(name, "train")[0])
        assert reward == 0.0 and len(model.asks) == 1


def record(environment: str, arm: str, seed: int = 0, better: float = 0.0) -> Record:
    rewards = tuple(0.1 + 0.05 * step + better for step in range(12))
    held_out = ((0, 0.1, 0.03), (10, 0.4 + better, 0.05), (12, 0.3 + better, 0.05))
    seconds = 20.0 if arm == runs.OURS else 60.0
    return Record(
        environment, arm, seed, rewards, (9.0,) * 12, held_out, seconds, 20 * seconds, 0.0, "2026-01-01", "CPU"
    )


def fill(folder: Path) -> None:
    for name in ENVIRONMENTS:
        runs.save(record(name, runs.ALONE), folder)
        runs.save(record(name, runs.AT_ONCE, better=0.1), folder)
    for name in runs.TOKENS:
        for seed in range(3):
            runs.save(record(name, runs.OURS, seed, 0.01 * seed), folder)
            runs.save(record(name, runs.THEIRS, seed), folder)


def test_stored_runs_become_a_page_with_curves(tmp_path: Path) -> None:
    fill(tmp_path)
    assert runs.load(tmp_path, runs.OURS, "number")[2] == record("number", runs.OURS, 2, 0.02)
    found = section.section(tmp_path)
    rows = {row.what: row for row in found.rows}
    ratio = rows["facts: a step"].ratio
    assert ratio is not None and ratio.middle == pytest.approx(3.0)
    picks = [pick for pick in pages.PICKS if pick.section == "real"]
    assert len(picks) == 2 and all(pick.of(found.rows) for pick in picks)
    low, mean, high = rows["number: held-out score after, marlaas − TRL: mean and 95 % interval"].ours.values
    assert mean == pytest.approx(1.0) and low < 0 < high
    last = rows["tool, by itself: held-out score after 12 steps"]
    assert last.ours.values == pytest.approx((20.2, 30.0, 39.8)) and "| 30.0 [20.2–39.8] |" in pages.table(found)
    assert [picture.name for picture in found.pictures] == ["real_number", "real_facts", "real_alone", "real_at_once"]
    result = stamp(found, Machine("Some CPU", 2, 24.0, 106.0, 0.03, 0.2), tmp_path)
    assert set(pages.pictures([result])) == {picture.name for picture in found.pictures}
    assert "(pictures/real_alone.svg)" in pages.sections([result], "BENCHMARKS.md")["real"]


def test_a_part_continues_after_the_stored_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[tuple[str, int]] = []

    def theirs(environment: str, seed: int, *unused: object) -> Record:
        made.append((runs.THEIRS, seed))
        return record(environment, runs.THEIRS, seed)

    def ours(files: dict[str, str], arm: str, seed: int, *unused: object) -> list[Record]:
        made.append((arm, seed))
        return [record(name, arm, seed) for name in files]

    monkeypatch.setattr(runs, "theirs", theirs)
    monkeypatch.setattr(runs, "ours", ours)
    monkeypatch.setattr(runs, "HOMES", tmp_path / "homes")
    assert not runs.compare("facts", tmp_path, -math.inf) and made == [], "nothing begins without time"
    runs.save(record("facts", runs.THEIRS, 1), tmp_path)
    assert runs.compare("facts", tmp_path, math.inf)
    assert made == [(runs.THEIRS, 0), (runs.OURS, 0), (runs.OURS, 1), (runs.THEIRS, 2), (runs.OURS, 2)]
    assert runs.compare("facts", tmp_path, math.inf) and len(made) == 5
    assert runs.train(ENVIRONMENTS, runs.AT_ONCE, tmp_path, math.inf) and made[-1] == (runs.AT_ONCE, 0)
    assert runs.train(ENVIRONMENTS, runs.AT_ONCE, tmp_path, math.inf) and len(made) == 6


def test_task_files_are_valid_and_leave_defaults(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text(runs.compared("facts", 2, 12))
    (submission,) = taskfile.load(path)
    assert (
        submission.spec.to_json()["train"]["seed"],
        submission.spec.to_json()["sampling"]["max_episode_tokens"],
    ) == (2, 48)
    assert submission.spec.to_json()["train"]["learning_rate"] == runs.LEARNING_RATE
    path.write_text(runs.default("facts", 60))
    assert "learning_rate" not in path.read_text() and "max_tokens" not in path.read_text()
    (submission,) = taskfile.load(path)
    assert submission.spec.to_json()["steps"] == 60
