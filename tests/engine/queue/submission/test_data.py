"""Whether the rows that a task names are there is said when it is submitted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.queue.submission.queue import check_data
from marlaas.engine.queue.submission.taskfile import environments_of, load

TASK = 'tenant = "lab"\nname = "sums"\nenvironment = "sums"\n[data]\n'
ROW = json.dumps({"prompt": "1+1", "solution": "2"}) + "\n"


def check(folder: Path, data: str) -> str:
    """The path of the data, which was checked."""
    (folder / "task.toml").write_text(TASK + data)
    submissions = load(folder / "task.toml")
    check_data(submissions)
    path: str = submissions[0].spec.to_json()["data"]["path"]
    return path


def test_rows_are_found_beside_the_task_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROW)
    assert check(tmp_path, 'path = "rows.jsonl"\ncolumns = {question = "prompt"}\n') == str(tmp_path / "rows.jsonl")


MIXED = """tenant = "lab"
name = "both"
[[mixture]]
environment = "sums"
data = { path = "rows.jsonl" }
[[mixture]]
environment = "words"
[mixture.data]
path = "%s"
columns = { question = "%s" }
"""


def test_each_component_of_a_mixture_has_its_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROW)
    (tmp_path / "more.jsonl").write_text(ROW)
    task = tmp_path / "task.toml"
    for file, column, says in (
        ("more.jsonl", "prompt", ""),
        ("gone.jsonl", "prompt", r"task\.toml:9:\d+: no rows for 'train': there is no .*gone\.jsonl"),
        ("more.jsonl", "text", "line 1: there is no column 'text'"),
    ):
        task.write_text(MIXED % (file, column))
        (given,) = load(task)
        assert [one.data and one.data["path"] for one in environments_of(given)] == [
            str(tmp_path / "rows.jsonl"),
            str(tmp_path / file),
        ]
        if not says:
            check_data([given])
            continue
        with pytest.raises(ConfigError, match=says) as caught:
            check_data([given])
        assert caught.value.path == "mixture[1].data.path"


def test_what_only_pyarrow_reads_is_left_to_the_environment(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    assert check(tmp_path, 'path = "rows.parquet"\ncolumns = {question = "prompt"}\n').endswith("rows.parquet")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ('path = "gone.jsonl"', r"no rows for 'train': there is no .*gone\.jsonl"),
        ('path = "rows.{split}.jsonl"', r"no rows for 'eval': there is no .*rows\.eval\.jsonl"),
        (
            'path = "rows.jsonl"\ncolumns = {question = "text"}',
            "line 1: there is no column 'text'; there are prompt, sol",
        ),
        ('path = "numbers.jsonl"\ncolumns = {question = "text"}', "line 1: a row is int, not a table"),
        ('path = "empty.jsonl"', r"empty\.jsonl has no rows"),
        ('path = "broken.jsonl"', r"broken\.jsonl, line 1: Expecting"),
        ('path = "folder"', "folder is a folder without rows"),
        ('path = "saved/dev"', "dev/state.json names no files of rows"),
        ('path = "saved"\nsplit = {eval = "test"}', "none is called 'test': say which is for what"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(tmp_path: Path, data: str, says: str) -> None:
    (tmp_path / "rows.jsonl").write_text(ROW)
    (tmp_path / "rows.train.jsonl").write_text(ROW)
    (tmp_path / "numbers.jsonl").write_text("1\n2\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.jsonl").write_text("{\n")
    (tmp_path / "folder").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "saved" / split).mkdir(parents=True)
        files = [{"filename": "rows.arrow"}] if split == "train" else []
        (tmp_path / "saved" / split / "state.json").write_text(json.dumps({"_data_files": files}))
    (tmp_path / "saved/dataset_dict.json").write_text('{"splits": ["train", "dev"]}')
    with pytest.raises(ConfigError, match=says):
        check(tmp_path, data + "\n")
