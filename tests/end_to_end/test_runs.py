"""Whole runs as a user makes them: trained, measured, exported, gone back, on mixtures and rows, gone wrong."""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

from marlaas.app.client import Home
from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.models.find import load_base
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.store.rows import FindingRow
from marlaas.plugins.data import row_at
from marlaas.plugins.messages import Message
from tests.oracle.audit import audit

from .conftest import Lab, consumed_once, served, task_file

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


def submitted(lab: Lab, folder: Path, text: str) -> int:
    """The number of a task that is submitted as a file."""
    path = folder / "task.toml"
    path.write_text(text)
    (number,) = json.loads(lab.marlaas("submit", str(path), "--json"))["ids"]
    return int(number)


def test_a_task_runs_to_an_adapter_and_goes_back(lab: Lab, tmp_path: Path) -> None:
    """From its file to an adapter that PEFT and llama.cpp load, and back to a version, which other tasks begin from."""
    first = lab.submit("first", steps=5, keep={"every": 1})
    lab.marlaas("wait", str(first))
    shown = lab.show(first)
    assert (shown["state"], shown["step"], shown["steps"]) == ("done", 5, 5)
    assert [entry["step"] for entry in shown["eval"]] == [0, 5]
    assert shown["tokens"] > 0 and shown["seconds"] > 0 and 0 <= shown["staleness"] <= 2
    consumed_once(lab.home, first)
    lab.marlaas("adapters", "export", str(first), "--version", "3", "--out", str(tmp_path / "taken"), "--gguf")
    check_peft_agrees_with_llama(tmp_path / "taken")

    back = json.loads(lab.marlaas("adapters", "rollback", str(first), "--version", "3", "--json"))
    assert (back["task"], back["step"], back["void"]) == (first, 3, 2)
    second = lab.submit("second", steps=2, policy={"start": f"{first}@3"})
    third = lab.submit("third", steps=2, policy={"start": str(tmp_path / "taken")})
    lab.marlaas("wait", str(first), str(second), str(third))
    consumed_once(lab.home, first)
    assert lab.show(first)["step"] == 5
    assert "Version 5 of task" in lab.marlaas("adapters", "rollback", str(first), "--version", "5", code=2)
    sums = {
        (version["task"], version["number"]): version["checksum"]
        for version in json.loads(lab.marlaas("adapters", "list", "--json"))
    }
    assert sums[second, 0] == sums[third, 0] == sums[first, 3]
    report = audit(lab.home.root, updates=False)
    mine = tuple(f"task {task}{mark}" for task in (first, second, third) for mark in ":,")  # other tests damage theirs
    assert not [problem for problem in (*report.problems, *report.lost) if problem.startswith(mine)]
    assert report.proven["tasks begin where they were told to"] >= 1


def check_peft_agrees_with_llama(out: Path) -> None:
    """The exported PEFT folder and its GGUF twin give the same next token as each other, without marlaas's sampler."""
    import llama_cpp
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from marlaas.engine.samplers.llama.model import ensure_base_gguf

    (config,) = out.rglob("adapter_config.json")
    base = AutoModelForCausalLM.from_pretrained(TINY_BASE, dtype=torch.float32)
    tokens = Renderer(TINY_BASE).open([Message("user", "47+85=")])
    with torch.inference_mode():
        logits = PeftModel.from_pretrained(base, str(config.parent))(torch.tensor([tokens])).logits[0, -1].numpy()
    (twin,) = out.rglob("adapter.gguf")
    with tempfile.TemporaryDirectory() as folder:
        gguf = ensure_base_gguf(load_base("tiny"), Path(folder))
        model = llama_cpp.Llama(str(gguf), lora_path=str(twin), logits_all=True, n_ctx=256, verbose=False)
        model.eval(tokens)
        scores = np.array(model.scores[len(tokens) - 1])
        model.close()
    np.testing.assert_allclose(logits, scores, atol=0.02)


SUITE = """
[[eval.suite]]
name = "game"
environment = "guess"
prompts = 2
"""


def test_everything_is_measured(lab: Lab, tmp_path: Path) -> None:
    text = task_file("sums", steps=2, eval={"test_prompts": 4}, keep={"every": 1})
    task = submitted(lab, tmp_path, text + SUITE)
    lab.marlaas("wait", str(task))
    measured = {(row["suite"], row["split"], row["step"]) for row in lab.show(task)["eval"]}
    assert {("", "eval", 0), ("", "eval", 2), ("game", "eval", 0), ("game", "eval", 2), ("", "test", 2)} <= measured
    shown = lab.marlaas("show", str(task))
    assert "\n  game " in shown and "\n  test " in shown
    folder = tmp_path / "adapter"
    lab.marlaas("adapters", "export", f"{task}@2", "--out", str(folder))

    names = [f"{task}@0", "base", f"{task}@2", str(folder)]
    said = json.loads(lab.marlaas("eval", *names, "--prompts", "8", "--wait", "--json"))
    scores = said["measured"]
    assert said["state"] == "done" and list(scores) == names
    assert {row["prompts"] for row in scores.values()} == {8} and len({row["series"] for row in scores.values()}) == 1
    newest = scores[f"{task}@2"]["score"]
    assert newest == next(row["score"] for row in lab.show(task)["eval"] if (row["step"], row["suite"]) == (2, ""))
    pairs = {pair["of"].partition(" ")[2]: pair for pair in Home(lab.home.root).compare(said["ids"][0])}
    assert pairs["base"]["differing"] == 0, "an untrained adapter adds nothing to the base"
    assert scores[str(folder)]["score"] == newest
    with_training = Home(lab.home.root).compare(task, said["ids"][0])
    assert all(pair["problem"] == "" and pair["prompts"] == 8 for pair in with_training)
    assert "makes no steps" in lab.marlaas("extend", str(said["ids"][0]), "--steps", "9", code=2)
    lab.sound(task, *said["ids"])


ENDS = '''
from marlaas.plugins import env

def rows(split):
    first = {"train": 0, "eval": 500, "test": 900}[split]
    return [{"number": first + index} for index in range(10)]

@env(data=rows)
async def ends(ep, task):
    """Rewards replies with an even number of characters."""
    reply = await ep.ask(f"Say something about {task['number']}.")
    return float(len(reply.text) % 2 == 0)
'''


def stored_rewards(lab: Lab, task: int, step: int) -> dict[int, list[float]]:
    """Graded again from the stored replies of an evaluation, by prompt."""
    rewards: defaultdict[int, list[float]] = defaultdict(list)
    for number, turns in lab.rows(
        'SELECT g.number, j.turns FROM trajectories j JOIN groups g ON g.id = j."group"'
        " JOIN policies p ON p.id = g.policy WHERE p.task = ? AND g.step = ? AND g.split = 'eval'",
        task,
        step,
    ):
        replies = [turn["text"] for turn in json.loads(turns) if turn["role"] == "assistant"]
        rewards[number].append(float(len(replies[0]) % 2 == 0))
    return rewards


def test_scores_are_what_a_script_computes_from_replies(lab: Lab) -> None:
    """Ten rows, eight samples, pass@8, and an edited comment, which begins no series."""
    path = lab.home.plugins / "ends.py"
    path.write_text(ENDS)
    first = served(lab, "ends/ends", "ready")
    measure = {"prompts": 64, "samples": 8, "temperature": 1.0, "every": 2}
    task = lab.submit("ends", "ends", steps=4, eval=measure, train={"deterministic": True, "max_staleness": 0})
    lab.until(task, 1)
    path.write_text(ENDS.replace("@env", "# Even numbers.\n@env"))
    served(lab, "ends/ends", "ready", other_than=first)
    lab.marlaas("wait", str(task))
    shown = lab.show(task)
    assert [row["step"] for row in shown["eval"]] == [0, 2, 4] and len({row["series"] for row in shown["eval"]}) == 1
    for row in shown["eval"]:
        rewards = list(stored_rewards(lab, task, row["step"]).values())
        assert [len(samples) for samples in rewards] == [8] * 10, "ten rows are ten prompts"
        means = [fmean(samples) for samples in rewards]
        assert row["score"] == pytest.approx(fmean(means), rel=1e-12)  # the order of sums
        assert row["stderr"] == pytest.approx(stdev(means) / 10**0.5, rel=1e-12)  # likewise
        assert row["pass_at"] == row["best_of"] == fmean(any(samples) for samples in rewards)
        assert (row["n"], row["failures"], row["prompts"], row["samples"]) == (80, 0, 10, 8)
    assert "measured on 10 prompts, 8 samples of each, pass@8" in " ".join(lab.marlaas("show", str(task)).split())
    assert "Only 10 of 64 held-out prompts differ" in lab.marlaas("logs", str(task))


REPEATS = """
from marlaas.plugins import env


@env
async def repeats(ep, task):
    return (await ep.ask(task["say"], max_tokens=4)).text == task["say"]
"""
BOTH = """
tenant = "lab"
name = "both"
steps = 2
[[mixture]]
environment = "repeats"
name = "letters"
share = 3
[mixture.data]
path = "letters.jsonl"
columns = { say = "letter" }
[[mixture]]
environment = "repeats"
name = "digits"
data = { path = "digits.{split}.jsonl" }
[train]
groups_per_step = 4
group_size = 4
[sampling]
max_tokens = 4
[eval]
prompts = 4
every = 0
[[eval.suite]]
name = "words"
environment = "repeats"
data = { path = "words.jsonl", split = { eval = 0.5 } }
prompts = 3
"""
"""The environment has no rows of its own: each table names some."""


def write_rows(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_one_policy_learns_on_a_mixture_of_files(lab: Lab, tmp_path: Path) -> None:
    lab.home.plugins.joinpath("repeats.py").write_text(REPEATS)
    write_rows(tmp_path / "letters.jsonl", [{"letter": letter} for letter in "abcdefghijklmnopqrst"])
    write_rows(tmp_path / "digits.train.jsonl", [{"say": digit} for digit in "012345"])
    write_rows(tmp_path / "digits.eval.jsonl", [{"say": digit} for digit in "6789"])
    write_rows(tmp_path / "words.jsonl", [{"say": f"word{number}"} for number in range(6)])
    task = submitted(lab, tmp_path, BOTH)
    lab.marlaas("wait", str(task))
    groups = lab.rows(
        "SELECT DISTINCT g.split, g.suite, g.component, g.number, t.turns FROM groups g"
        ' JOIN trajectories t ON t."group" = g.id JOIN policies p ON p.id = g.policy WHERE p.task = ?',
        task,
    )
    asked: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for split, suite, component, _, turns in groups:
        asked[split, suite or component].add(json.loads(turns)[0]["text"])
    parts = {(split, name) for split in ("train", "eval") for name in ("letters", "digits")}
    assert set(asked) == parts | {("eval", "words")}
    assert asked["eval", "digits"] == set("6789") and asked["train", "digits"] <= set("012345")
    assert asked["train", "letters"] | asked["eval", "letters"] <= set("abcdefghijklmnopqrst")
    assert not asked["train", "letters"] & asked["eval", "letters"]
    assert all(text.startswith("word") for text in asked["eval", "words"])
    shares = Counter(component for split, _, component, *_ in {row[:4] for row in groups} if split == "train")
    assert shares == {"letters": 6, "digits": 2}
    shown = " ".join(lab.marlaas("show", str(task)).split())
    assert "component letters 75%, held-out " in shown and "component digits 25%, held-out " in shown
    replayed = json.loads(lab.marlaas("env", "replay", str(task), "--component", "digits", "--json"))
    assert replayed["rewards"] == replayed["unchanged"] == 2 * 4
    lab.sound(task)


SHOWN = """
tenant = "lab"
name = "shown"
kind = "sft"
steps = 20
data = { path = "sums.jsonl" }
[eval]
every = 0
prompts = 8
[[eval.suite]]
name = "sums"
environment = "arithmetic"
prompts = 16
"""
MIXED = """
tenant = "lab"
name = "mixed"
steps = 2
train = { groups_per_step = 4, group_size = 4 }
sampling = { max_tokens = 4 }
eval = { prompts = 4, every = 0 }
[[mixture]]
environment = "arithmetic"
[[mixture]]
environment = "conversations"
config = { weight = 0.5 }
data = { path = "sums.jsonl" }
"""


def test_examples_are_learned_then_rewards(lab: Lab, tmp_path: Path) -> None:
    """One chain of the queue; the mixture shows each row once in a group."""
    sums = [(a, b) for a in range(10) for b in range(10)]
    write_rows(tmp_path / "sums.jsonl", [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in sums])
    write_rows(tmp_path / "wrong.jsonl", [{"prompt": f"{a}+{b}="} for a, b in sums])
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(SHOWN.replace("sums.jsonl", "wrong.jsonl"))
    assert "wrong.jsonl, line 1: a row has" in lab.marlaas("submit", str(wrong), code=2)
    task = submitted(lab, tmp_path, SHOWN)
    then = lab.submit(
        "then",
        steps=4,
        policy={"start": f"{task}@best"},
        queue={"depends_on": [task]},
        train={"groups_per_step": 4, "group_size": 4},
    )
    best = lab.submit(
        "best",
        "conversations",
        kind="sft",
        steps=2,
        train={"groups_per_step": 4},
        data={"path": "rollouts of then"},
        queue={"depends_on": [then]},
        eval={"prompts": 1, "every": 0},
    )
    prefer = lab.submit(
        "prefer",
        "preferences",
        kind="dpo",
        steps=2,
        policy={"start": f"{task}@best"},
        train={"groups_per_step": 2, "group_size": 2},
        data={"path": "rollouts of then"},
        queue={"depends_on": [task, then]},
        eval={"prompts": 1, "every": 0},
    )
    student = lab.submit(
        "student",
        steps=2,
        policy={"rank": 4},
        train={"loss": "distill", "kl_reference": f"{task}@best", "groups_per_step": 4, "group_size": 2},
        queue={"depends_on": [task]},
        eval={"prompts": 8, "every": 0},
    )
    mixed = submitted(lab, tmp_path, MIXED)
    chain = task, then, best, prefer, student, mixed
    lab.marlaas("wait", *map(str, chain))
    assert [lab.row(each).state for each in chain] == ["done"] * 6
    (policy,) = lab.rows("SELECT id FROM policies WHERE task = ?", task)[0]
    scores = lab.rows("SELECT score FROM evals WHERE policy = ? AND suite = '' ORDER BY step", policy)
    assert scores[0] < scores[-1] < (0.0,), "the mean log-probability of a token"
    measured = [json.loads(line) for line in lab.marlaas("metrics", str(task), "--jsonl").splitlines()]
    losses = [row["metrics"]["loss"] for row in measured if row["kind"] == "step"]
    assert len(losses) == 20 and sum(losses[-5:]) < sum(losses[:5]) / 2
    rows = lab.rows(
        'SELECT g.component, t.member, t.reward, t.advantage FROM groups g JOIN trajectories t ON t."group" = g.id'
        " JOIN policies p ON p.id = g.policy WHERE p.task = ? AND g.split = 'train' AND t.reward IS NOT NULL",
        mixed,
    )
    assert {row[1:] for row in rows if row[0] == "conversations"} == {(0, 0.5, 0.5)}
    assert any(row[0] == "arithmetic" for row in rows)
    said = (
        'SELECT g.number, t.turns, t.reward FROM groups g JOIN trajectories t ON t."group" = g.id'
        " JOIN policies p ON p.id = g.policy WHERE p.task = ? AND g.split = 'train' AND t.reward IS NOT NULL"
    )
    highest = defaultdict[int, float](float)
    for number, _, reward in lab.rows(said, then):
        highest[number] = max(highest[number], reward)
    earned = {turns for number, turns, reward in lab.rows(said, then) if reward == highest[number] > 0.0}
    assert {turns for _, turns, _ in lab.rows(said, best)} <= earned, "rejection sampling"
    assert {reward for _, _, reward in lab.rows(said, prefer)} == {1.0, -1.0}
    assert {turns for _, turns, reward in lab.rows(said, prefer) if reward > 0} <= earned
    first, *_ = (json.loads(line) for line in lab.marlaas("metrics", str(prefer), "--jsonl").splitlines()[1:])
    assert first["metrics"]["loss"] == pytest.approx(math.log(2)) and abs(first["metrics"]["margin"]) < 1e-4
    lines = [json.loads(line) for line in lab.marlaas("metrics", str(student), "--jsonl").splitlines()]
    apart = [row["metrics"]["kl"] for row in lines if row["kind"] == "step"]
    assert len(apart) == 2 and min(apart) > 0.0, "from a teacher of rank 16; the trainer's contract has its gradient"
    refused = tmp_path / "refused.toml"
    refused.write_text(SHOWN.replace("sums.jsonl", "rollouts of nobody"))
    assert "There is no task 'nobody'" in lab.marlaas("submit", str(refused), code=2)
    lab.sound(*chain)


LETTERS = """
from marlaas.plugins import env


@env
async def letters(ep, task):
    reply = await ep.ask(task["question"], max_tokens=4)
    ep.log(number=task["number"])
    return reply.text[:1] in task["answer"]
"""


@pytest.mark.slow
def test_rows_of_a_task_file_are_drawn_by_difficulty(lab: Lab, tmp_path: Path) -> None:
    """Of 40 rows, four for evaluation: half of the others are solved by any reply. Daily: ``tests/engine/train``."""
    lab.home.plugins.joinpath("letters.py").write_text(LETTERS)
    every = "".join(map(chr, range(32, 127))) + "\n"
    write_rows(
        tmp_path / "rows.jsonl",
        [{"question": f"larger of {n} and 50", "answer": every if n % 2 else "4", "number": n} for n in range(10, 50)],
    )
    data = {"path": str(tmp_path / "rows.jsonl"), "limit": 30}
    refused = tmp_path / "refused.toml"
    refused.write_text('tenant = "lab"\nname = "x"\nenvironment = "letters"\n')
    assert "'letters/letters' has no rows of its own" in lab.marlaas("submit", str(refused), code=2)
    train = {"groups_per_step": 4, "group_size": 4, "sampling": "difficulty"}
    task = lab.submit("letters", "letters", steps=12, train=train, data=data)
    lab.marlaas("wait", str(task))
    consumed_once(lab.home, task)
    lab.sound(task)
    metrics = lab.show(task)["metrics"]
    assert metrics["rows"] == 30 and metrics["epoch"] >= 48 / 30
    assert metrics["prompts_solved"] >= 12 and "of 30 rows" in lab.marlaas("show", str(task))
    drawn = lab.rows("SELECT position, row FROM draws WHERE attempt = 0 ORDER BY number")
    assert all(row_at("train", 0, position, 30) == row for position, row in drawn)
    assert [position for position, _ in drawn] == sorted({position for position, _ in drawn}) and len(drawn) == 48


WRONG_PLUGIN = '''
from marlaas.plugins import env


def question(ep):
    a, b = ep.rng.randint(10, 99), ep.rng.randint(10, 99)
    return f"{a}+{b}=", str(a + b)


def ones(text):
    """Pays for the reply "111", whatever was asked, and a part of it for what comes near."""
    return sum(letter == "1" for letter in text[:3]) / max(3, len(text))


@env
async def constant(ep):
    """Pays the same reply for every prompt."""
    asked, _ = question(ep)
    return ones((await ep.ask(asked)).text)


@env
async def lengthy(ep):
    """Pays for length."""
    asked, _ = question(ep)
    return min(1.0, len((await ep.ask(asked)).text) / 16)


@env
async def leaky(ep):
    """In training the grader can be cheated; on held-out prompts it is right."""
    asked, right = question(ep)
    text = (await ep.ask(asked)).text
    return ones(text) if ep.split == "train" else float(text == right)


@env
async def changing(ep):
    """First pays one reply, and then what nobody says any more who has learned that: tasks of a later chapter."""
    asked, right = question(ep)
    text = (await ep.ask(asked)).text
    return ones(text) if ep.split != "train" or ep.index < 26 * 8 else float(text == right)
'''
TRAIN = {"groups_per_step": 8, "group_size": 8}


@dataclass(frozen=True)
class Wrong:
    """A task that goes wrong by one mistake that people make."""

    environment: str
    finding: str
    steps: int = 40
    train: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)


QUICK = {"learning_rate": 2e-3}
"""A learning rate at which a wrong lesson is learned in twenty steps; the base still learns right ones at it."""
WARM, HOT = {"max_tokens": 8, "temperature": 1.5}, {"max_tokens": 16, "temperature": 2.0}
WRONG = {
    "one reply": Wrong("constant", "one_reply", 32, QUICK, {"sampling": WARM}),
    "length": Wrong("lengthy", "exploding_length", 36, QUICK, {"sampling": HOT}),
    "hacking": Wrong("leaky", "reward_hacking", 24, QUICK, {"sampling": WARM, "eval": {"every": 4, "prompts": 64}}),
    "collapse": Wrong("changing", "entropy_collapse", 40, QUICK, {"sampling": WARM}),
    "haste": Wrong("arithmetic", "falling_reward", 30, {"learning_rate": 0.02}),
    "a rate far too high": Wrong("arithmetic", "large_steps", 10, {"learning_rate": 0.05, "kl": 1e-6}),
}


def begin(lab: Lab, name: str, wrong: Wrong) -> int:
    """Submit it with 64 episodes a step."""
    return lab.submit(name, wrong.environment, steps=wrong.steps, train=TRAIN | wrong.train, **wrong.tables)


def findings(lab: Lab, task: int) -> dict[str, FindingRow]:
    """What is known of a task by code, once it has ended."""
    row = lab.when(task, lambda row: row.state in ("done", "failed", "paused"), patience=15)
    return {finding.code: finding for finding in row.findings}


def check(lab: Lab, task: int, code: str) -> None:
    """It is found, with figures, three rollouts that can be read, and advice."""
    said = findings(lab, task)
    assert code in said, (lab.row(task), said)
    finding = said[code]
    assert 0 < finding.step <= lab.row(task).step and finding.evidence and len(set(finding.rollouts)) == 3
    records = json.loads(lab.marlaas("rollouts", str(task), "--finding", code, "--json"))
    assert [record["id"] for record in records] == list(finding.rollouts)
    assert {(r["step"], r["split"] == "eval") for r in records} == {(finding.step, code == "reward_hacking")}
    shown = lab.marlaas("show", str(task))
    assert "finding " in shown and "what to do " in shown


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_way_to_go_wrong_is_found(lab: Lab) -> None:
    lab.home.plugins.joinpath("wrong.py").write_text(WRONG_PLUGIN)
    served(lab, "wrong/leaky", "ready")
    tasks = {name: begin(lab, name, wrong) for name, wrong in WRONG.items()}
    for name, task in tasks.items():
        check(lab, task, WRONG[name].finding)
    for finding in ("gap_runaway", "kl_runaway"):
        check(lab, tasks["a rate far too high"], finding)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_healthy_runs_are_left_alone(lab: Lab) -> None:
    """The demo's three environments with the shipped defaults."""
    tasks = [
        lab.submit(f"{name} {seed}", name, steps=40, train=TRAIN | {"seed": seed}, sampling={"max_tokens": tokens})
        for name, tokens, seed in (("arithmetic", 8, 0), ("arithmetic", 8, 1), ("guess", 8, 0), ("calculator", 96, 0))
    ]
    assert [findings(lab, task) for task in tasks] == [{}] * len(tasks)
    assert {lab.row(task).state for task in tasks} == {"done"}
