"""Rows on their way from a file to an episode, through a real process, confined or not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.environments.process.launch import lend
from marlaas.engine.environments.protocol import DataFacts
from marlaas.engine.errors import ConfigError, EnvironmentFailure
from marlaas.plugins.data import Source

from .conftest import World, a_spec, echoing

TOPICS = """
from marlaas.plugins import env

@env(data="topics.{split}.jsonl")
async def topics(ep, task):
    await ep.ask(task["topic"])
    ep.log(topic=task["topic"], number=task["number"])
    return 1

@env
async def endless(ep):
    await ep.ask("x")
    return 1

@env(data=lambda split: [1, 2, 3])
async def listed(ep, task):
    await ep.ask(str(task))
    ep.log(number=task)
    return 1

@env(data="gone.jsonl")
async def gone(ep, task, needed: int):
    return 1
"""


def save(world: World, rows: int = 40) -> None:
    """Four topics, one after the other, in both splits."""
    table = [{"topic": "abcd"[4 * n // rows], "number": n} for n in range(rows)]
    for split in ("train", "eval"):
        world.save(f"topics.{split}.jsonl", "".join(json.dumps(row | {"of": split}) + "\n" for row in table))
    world.save("topics.py", TOPICS)


async def drawn(world: World, name: str, log: str, count: int, **spec: Any) -> list[float | str]:
    return [(await world.play(f"topics/{name}", index=index, **spec)).metrics[log] for index in range(count)]


@pytest.mark.processes
async def test_a_sorted_file_is_shuffled_by_seed_and_epoch(world: World) -> None:
    save(world)
    await world.service.start()
    first = await drawn(world, "topics", "number", 80)
    assert sorted(first[:40]) == sorted(first[40:]) == list(range(40))
    assert first[:40] != first[40:] != list(range(40))
    assert len(set(await drawn(world, "topics", "topic", 12))) == 4
    assert await drawn(world, "topics", "number", 12, seed=1) != first[:12]
    assert await drawn(world, "topics", "number", 80) == first
    topics = await drawn(world, "topics", "topic", 16, split="eval")
    assert set(topics) == set("abcd"), "evaluation covers all topics, whatever the seed"
    assert await drawn(world, "topics", "topic", 16, split="eval", seed=5) == topics
    orders = {tuple(await drawn(world, "listed", "number", 3, seed=seed)) for seed in range(8)}
    assert len(orders) > 2 and all(sorted(order) == [1, 2, 3] for order in orders), "of a data function, too"


@pytest.mark.processes
async def test_a_task_names_other_rows(world: World, tmp_path: Path) -> None:
    """With other columns, in another file; the plugin's processes read it."""
    save(world)
    await world.service.start()
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"subject": "e", "nr": 100 + n}) + "\n" for n in range(40)))
    data = Source(path, {"topic": "subject", "number": "nr"}, {"eval": 0.25}, limit=10).record()
    with await world.service.bind("topics/topics", data=data) as lease:
        facts = await world.service.facts(lease)
        train = [await world.service.play(lease, a_spec(index=index), echoing) for index in range(10)]
        held = [await world.service.play(lease, a_spec(split="eval", index=index), echoing) for index in range(10)]
    assert (facts.train, facts.held_out) == (10, 10)
    numbers = [{outcome.metrics["number"] for outcome in played} for played in (train, held)]
    assert len(numbers[0]) == len(numbers[1]) == 10 and not numbers[0] & numbers[1]
    assert await drawn(world, "topics", "number", 40) != list(range(40))
    with pytest.raises(
        ConfigError, match=r"endless draws its tasks from no rows, so 'data\.path' would have no effect"
    ):
        await world.service.bind("topics/endless", data=data)


GIVEN = """
from marlaas.plugins import env

@env
async def given(ep, task):
    await ep.ask(task["topic"])
    ep.log(topic=task["topic"])
    return 1
"""


@pytest.mark.processes
async def test_an_environment_may_live_on_the_task_s_rows_alone(world: World, tmp_path: Path) -> None:
    """A file that changes is read again: else an older process would draw other rows than a younger one."""
    await world.serve(given=GIVEN)
    (info,) = world.service.infos()
    assert (info.state, info.rows) == ("ready", "task")
    with pytest.raises(ConfigError, match="given has no rows of its own"):
        await world.service.bind("given")
    (tmp_path / "eval.jsonl").write_text('{"topic": "x"}\n')
    seen, keys = [], set()
    for topic in ("a", "another"):
        (tmp_path / "new").write_text(f'{{"topic": "{topic}"}}\n')
        (tmp_path / "new").replace(tmp_path / "train.jsonl")
        with await world.service.bind("given", data=Source(tmp_path / "{split}.jsonl").record()) as lease:
            seen.append((await world.service.play(lease, a_spec(), echoing)).metrics["topic"])
            keys.add(lease.rows)
    assert seen == ["a", "another"] and len(keys) == 2


@pytest.mark.processes
async def test_bad_rows_of_one_task_rest_no_other_s(world: World, tmp_path: Path) -> None:
    """An environment that only fails rests: with the rows on which it failed, until they are mended."""
    await world.serve(given=GIVEN)
    rests = {}
    for name, rows in (
        ("good", [{"topic": str(n)} for n in range(20)]),
        ("bad", [{"other": str(n)} for n in range(20)]),
    ):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("bad", "good", "bad", "mended"):
        if name == "mended":
            (tmp_path / "bad.jsonl").write_bytes((tmp_path / "good.jsonl").read_bytes())
        source = Source(tmp_path / f"{name.replace('mended', 'bad')}.jsonl")
        with await world.service.bind("given", data=source.record()) as lease:
            if name not in rests:
                played = [await world.service.play(lease, a_spec(index=n), echoing, counts=True) for n in range(9)]
            rests[name] = lease.rest, {outcome.status for outcome in played}
    assert rests["bad"][0] is not None and "the row has no 'topic', but 'other'" in rests["bad"][0].message
    assert rests["good"] == rests["mended"] == (None, {"ok"})


HANGING = """
import threading
from marlaas.plugins import env

def rows(split):
    if split == "eval":
        threading.Event().wait()
    return [1, 2]

@env(data=rows, timeout=0.2)
async def hanging(ep, task):
    await ep.ask(str(task))
    return 1
"""


@pytest.mark.processes
async def test_what_is_known_of_rows(world: World, tmp_path: Path) -> None:
    """Another row to train on changes nothing about what a score was measured on; another one to evaluate with does."""
    save(world)
    world.save("hanging.py", HANGING)
    await world.service.start()
    with await world.service.bind("topics/topics") as lease:
        facts = await world.service.facts(lease)
        again = await world.service.facts(lease)
    assert (facts.train, facts.held_out) == (40, 40) and len(facts.digest) == 64 and again.digest == facts.digest
    with await world.service.bind("topics/endless") as lease:
        assert await world.service.facts(lease) == DataFacts()
    gone = await world.service.bind("topics/gone", config={"needed": 1})
    with gone, pytest.raises(EnvironmentFailure, match=r"gone\.jsonl is not part of this plugin"):
        await world.service.facts(gone)
    with await world.service.bind("topics/topics", data=Source(tmp_path / "gone.jsonl").record()) as lease:
        outcome = await world.service.play(lease, a_spec(), echoing)
        with pytest.raises(EnvironmentFailure, match=r"There is no .*gone\.jsonl: \[data\] path names it"):
            await world.service.facts(lease)
    assert outcome.status == "error" and outcome.failure is not None
    assert "gone.jsonl: [data] path names it" in outcome.failure.message
    hanging = await world.service.bind("hanging")
    with hanging, pytest.raises(EnvironmentFailure, match=r"the data function took longer than 0\.2 s"):
        await world.service.facts(hanging)
    digests = [facts.digest]
    for split in ("train", "eval"):
        with (world.folder / f"topics.{split}.jsonl").open("a") as file:
            file.write('{"topic": "z", "number": 99}\n')
        await world.service.reload("topics")
        with await world.service.bind("topics/topics") as lease:
            digests.append((await world.service.facts(lease)).digest)
    assert digests[0] == digests[1] != digests[2]


def record(path: Path) -> dict[str, Any]:
    return {"path": str(path), "columns": {"a": "b"}, "split": {}, "limit": 3}


def test_a_file_is_linked_until_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("1\n")
    lent = lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent")
    assert lent | {"path": ""} == record(tmp_path) | {"path": ""}
    path = Path(lent["path"])
    assert path.name == "rows.jsonl" and path.samefile(tmp_path / "rows.jsonl")
    (tmp_path / "new").write_text("1\n2\n")
    (tmp_path / "new").replace(tmp_path / "rows.jsonl")
    assert lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent") == lent and path.read_text() == "1\n2\n"
    (tmp_path / "link.jsonl").symlink_to("rows.jsonl")
    path = Path(lend(record(tmp_path / "link.jsonl"), tmp_path / "lent")["path"])
    assert not path.is_symlink() and path.read_text() == "1\n2\n", "of a link the file is lent"


def test_two_threads_may_lend_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text("1\n")
    link = os.link

    def overtaken(source: Path, target: Path, follow_symlinks: bool = True) -> None:
        monkeypatch.setattr(os, "link", link)
        lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent")  # the other thread's, between two steps of this one
        link(source, target, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "link", overtaken)
    path = Path(lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent")["path"])
    assert path.samefile(tmp_path / "rows.jsonl") and [each.name for each in path.parent.iterdir()] == ["rows.jsonl"]


def test_files_of_splits_and_folders_are_lent_whole(tmp_path: Path) -> None:
    for name in ("of/train.jsonl", "of/eval.jsonl", "saved/train/state.json", "saved/dataset_dict.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    path = lend(record(tmp_path / "of" / "{split}.jsonl"), tmp_path / "lent")["path"]
    assert [Path(path.replace("{split}", split)).read_text() for split in ("train", "eval")] == [
        "of/train.jsonl",
        "of/eval.jsonl",
    ]
    saved = Path(lend(record(tmp_path / "saved"), tmp_path / "lent")["path"])
    assert (saved / "train/state.json").read_text() == "saved/train/state.json"


def test_another_file_system_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "rows.jsonl").write_text("1\n")
    lent = lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent")
    path = Path(lent["path"])
    first = path.stat().st_ino
    assert path.read_text() == "1\n" and not path.samefile(tmp_path / "rows.jsonl")
    assert lend(record(tmp_path / "rows.jsonl"), tmp_path / "lent") == lent and path.stat().st_ino == first
