"""What operations read from files and write into them."""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.app.operations import log_files
from marlaas.app.operations.api import Request, requests_in
from marlaas.app.operations.commands import written
from marlaas.app.operations.environments.source_lines import (
    definition,
    place_to_mend,
    source_line,
    source_lines,
    task_place,
)
from marlaas.app.operations.estimating import Estimates, Workers, told
from marlaas.app.operations.log_files import LogLine, Tail, tail
from marlaas.app.operations.settings_file import Setting, settings, with_setting, write_setting
from marlaas.engine.errors import ConfigError
from marlaas.engine.gateway.http.logs import Log
from marlaas.engine.gateway.limits import Limits
from marlaas.engine.home.settings import DOCUMENTED
from marlaas.engine.queue.submission.estimate import DiskEstimate, TaskEstimate, TimeEstimate
from marlaas.engine.spec.task import TOGETHER
from marlaas.engine.store.queries.machine import EnvironmentUse, EpisodeFailure
from marlaas.engine.store.rows import EnvironmentRow

from ..rows import task

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=30)
LINES = st.sampled_from(
    [
        "# a comment",
        "",
        '# base = "tiny"',
        '  # base = "other"',
        "[engine]",
        "[rollout]  # the sampler",
        "[[list]]",
        'text = """',
        '"""',
        "number = 3",
        'base = "mine"  # chosen with care',
        "'base' = 'quoted'",
        "x = [",
        "]",
    ]
)


def test_a_sampler_goes_into_its_table_and_comments_stay(tmp_path: Path) -> None:
    text = with_setting(DOCUMENTED, "sampler", "llama.cpp", "rollout")
    assert tomllib.loads(text)["rollout"] == {"sampler": "llama.cpp"}
    assert [line for line in text.splitlines() if line not in DOCUMENTED.splitlines()] == ['sampler = "llama.cpp"']
    assert tomllib.loads(with_setting(text, "sampler", "torch", "rollout"))["rollout"] == {"sampler": "torch"}
    path = tmp_path / "marlaas.toml"
    write_setting(path, "sampler", "torch", "rollout")
    assert tomllib.loads(path.read_text()) == {"rollout": {"sampler": "torch"}}


@given(st.lists(LINES, max_size=12).map("\n".join), NAMES)
def test_any_file_says_the_same_and_the_base(text: str, name: str) -> None:
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert tomllib.loads(with_setting(text, "base", name)) == before | {"base": name}


def test_a_file_keeps_its_rights_and_its_link(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text(DOCUMENTED)
    (tmp_path / "real.toml").chmod(0o640)
    (tmp_path / "marlaas.toml").symlink_to("real.toml")
    write_setting(tmp_path / "marlaas.toml", "base", "x")
    assert (tmp_path / "marlaas.toml").is_symlink()
    assert tomllib.loads((tmp_path / "real.toml").read_text())["base"] == "x"
    assert stat.S_IMODE((tmp_path / "real.toml").stat().st_mode) == 0o640
    assert len(list(tmp_path.iterdir())) == 2


def test_a_broken_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "marlaas.toml"
    for data in (b"base = ", b"\xff\xfe"):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match="cannot be read"):
            write_setting(path, "base", "x")
        assert path.read_bytes() == data


SCALARS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)


def tables(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), values, max_size=4)


VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | tables(inner), max_leaves=12)


@given(tables(VALUES))
def test_it_is_read_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(written(table)) == table


def test_plain_values_come_first_and_none_is_left_out() -> None:
    assert written({"train": {"seed": 1, "kl": None}, "name": "a", "base": None}) == 'name = "a"\n\n[train]\nseed = 1\n'


def test_what_toml_does_not_know() -> None:
    with pytest.raises(ConfigError, match="cannot be written as TOML"):
        written({"a": object()})


def texts(end: Tail) -> list[tuple[str, str]]:
    return [(line.level, line.text) for line in end.lines]


def test_lines_after_an_error_belong_to_it(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"info: one\r\nerror: two\nTraceback\n\n  File\nwarning: \xff\n")
    assert texts(tail(log, None)) == [
        ("info", "one"),
        ("error", "two"),
        ("error", "Traceback"),
        ("error", "  File"),
        ("warning", "\ufffd"),
    ]


def test_only_what_was_added_is_read_even_in_parts(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("one\ntw")
    first = tail(log, None)
    with log.open("a") as more:
        more.write("o\nthree\n")
    second = tail(log, first)
    assert texts(second) == [("info", "one"), ("info", "two"), ("info", "three")]
    assert [line.id for line in second.lines] == [0, 4, 8] and second.lines[0] is first.lines[0]
    assert tail(log, second) is second


def test_long_files_and_lines_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "MOST_BYTES", 1000)
    monkeypatch.setattr(log_files, "MOST_LINES", 5)
    monkeypatch.setattr(log_files, "LONGEST", 20)
    log = tmp_path / "rollout.log"
    log.write_text("".join(f"line {number}\n" for number in range(1000)) + "x" * 500 + "\n")
    end = tail(log, None)
    assert [line.text for line in end.lines] == ["line 996", "line 997", "line 998", "line 999", "x" * 20]
    with log.open("a") as more:
        more.write("y" * 5000)
    assert [line.text for line in tail(log, end).lines][-1] == "y" * 20


def lines(*texts: str) -> list[LogLine]:
    return [LogLine(number, "info", text) for number, text in enumerate(texts)]


def test_what_the_gateway_writes_is_read(tmp_path: Path) -> None:
    log = Log(Limits(log=str(tmp_path / "api.log")))
    for number in range(3):
        line, began = log.begin("/v1/messages")
        line.key, line.model, line.status = "tml-ada-" + "x" * 43, f"17@{number}", 429 if number else 200
        line.error, line.prompt_tokens, line.completion_tokens = "quota_exceeded" if number else "", 11, 7
        log.end(line, began)
    log.close()
    found = requests_in(tail(tmp_path / "api.log", None).lines)
    assert [(one.model, one.status, one.error) for one in found] == [
        ("17@2", 429, "quota_exceeded"),
        ("17@1", 429, "quota_exceeded"),
        ("17@0", 200, ""),
    ]
    first = found[0]
    assert (first.key, first.route, first.tokens) == ("tml-ada-xxxxxx", "/v1/messages", (11, 7))
    assert first.seconds >= 0 and first.when > 1.7e9


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"route": "/"}', '{"time": 5, "route": "/"}', "[" * 9999])
def test_what_is_none_of_it_is_left_out(text: str) -> None:
    whole = '{"time": "2026-11-26T12:00:00+00:00", "route": "/"}'
    assert requests_in(lines(text, whole, text)) == (Request("", 1795694400.0, "/", "", 0, "", 0.0, (0, 0)),)


@given(st.lists(st.text() | st.dictionaries(st.text(), st.text()).map(str), max_size=5))
def test_any_text_is_no_error(texts: list[str]) -> None:
    requests_in(lines(*texts))


def by_key(rows: list[Setting]) -> dict[str, Setting]:
    return {row.key: row for row in rows}


def test_what_differs_is_marked_whatever_its_kind() -> None:
    one = {"a": 1, "b": True, "c": {"d": [1, 2]}, "e": None}
    other = {"a": 1.0, "b": 1, "c": {"d": [1, 3]}, "f": "x"}
    rows = by_key(settings([one, other], {}))
    assert [key for key, row in rows.items() if row.differs] == ["b", "c.d", "f"]
    assert rows["c.d"].values == ("[1, 2]", "[1, 3]") and rows["f"].values == ("-", "x")


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A plugin of one file, one that is a package, and a file of somebody else."""
    folder = tmp_path / "plugins"
    (folder / "shop").mkdir(parents=True)
    (folder / "sums.py").write_text("import x\n\n    total = (1 +  \n")
    (folder / "shop" / "__init__.py").write_text("from . import goods\n")
    (folder / "shop" / "goods.py").write_bytes(b"price = \xff\r\nbuy()\n")
    (tmp_path / "secret.py").write_text("password = 1\n")
    return folder


def row(path: Path, file: str, line: int, message: str = "NameError: x") -> EnvironmentRow:
    return EnvironmentRow("a/b", "v", "broken", (), "", message, file, line, str(path), 0.0)


@pytest.mark.parametrize(
    ("plugin", "file", "line"),
    [
        ("sums.py", "sums.py", 9),
        ("sums.py", "sums.py", 0),
        ("sums.py", "sums.py", -1),
        ("sums.py", "", 1),
        ("sums.py", "shop/goods.py", 1),
        ("sums.py", "../secret.py", 1),
        ("shop", "shop/../../secret.py", 1),
        ("shop", "shop", 1),
        ("shop", "a\0b", 1),
        ("gone.py", "gone.py", 1),
    ],
)
def test_what_is_not_there_or_not_its_own_is_not_read(plugins: Path, plugin: str, file: str, line: int) -> None:
    assert source_line(str(plugins / plugin), file, line) == ""


SEVERAL = """import random

# how many
MOST = 3
def helper():
    return MOST
# Sums.
@env(
    on_error=0.0,
)
async def sums(
    ep,
):
    reply = await ep.ask("1 + 1")

    return reply.text == "2"


@env
class Other:
    pass
"""


def test_an_environment_is_shown_as_it_is_defined(plugins: Path) -> None:
    path = plugins / "sums.py"
    path.write_text(SEVERAL)
    sums = replace(row(path, "", 0, ""), name="sums/sums")
    found = definition(sums)
    assert found is not None and (found.file, found.first, found.line) == ("sums.py", 7, 11)
    assert found.lines[:2] == ("# Sums.", "@env(") and found.lines[-1] == '    return reply.text == "2"'
    other = definition(replace(sums, name="sums/Other"))
    assert other is not None and other.lines == ("@env", "class Other:", "    pass") and other.line == 20
    unnamed = definition(replace(sums, name="sums/renamed"))
    assert unnamed is not None and unnamed.lines[0] == "import random" and unnamed.line == 0, "the plugin's beginning"
    path.write_text("async def sums(ep):\n    return 1\n")
    os.utime(path, ns=(1, 1))
    again = definition(sums)
    assert again is not None and again.lines == ("async def sums(ep):", "    return 1"), "as it is now"


def test_the_editor_opens_where_it_is_wrong(plugins: Path) -> None:
    sums, shop = row(plugins / "sums.py", "sums.py", 3), row(plugins / "shop", "", 0, "")
    failed = EnvironmentUse({"error": 1}, failure=EpisodeFailure("KeyError", "shop/goods.py", 2, "v", 0.0))
    assert place_to_mend(sums, EnvironmentUse()) == (plugins / "sums.py", 3)
    assert place_to_mend(replace(sums, file="/etc/passwd"), EnvironmentUse()) == (plugins / "sums.py", 0)
    ready = replace(shop, name="shop/buy", state="ready")
    assert place_to_mend(ready, failed) == (plugins / "shop" / "goods.py", 2)
    mixed = task(1, environment=TOGETHER.join(("sums", "shop/buy")))
    fine = replace(sums, name="sums/sums", state="ready", message="", file="", line=0)
    assert task_place(mixed, [fine, ready], {"shop/buy": failed}) == (plugins / "shop" / "goods.py", 2)
    assert task_place(mixed, [fine, ready], {}) == (plugins / "sums.py", 0), "nothing is wrong: the first"
    assert source_lines(sums, failed) == {("sums.py", 3): "total = (1 +"}


TIME = TimeEstimate(720.0, 700.0, 800.0, runs=3, alike=True, rollout=300.0, training=500.0)
TASK = TaskEstimate(TIME, DiskEstimate(5_000_000, 9_000_000, True), 8_000_000, 983_040)
WORKERS = Workers(1_100_000_000, False, 21_000_000_000, 2048)


def words(*tasks: TaskEstimate, workers: Workers = WORKERS, free: int = 10**12) -> dict[str, str]:
    return dict(told(Estimates(tasks, workers, free), ["arithmetic"] * len(tasks)))


def test_estimates_say_what_they_rest_on() -> None:
    assert words(TASK)["time"] == "about 12 min, from 3 earlier tasks on arithmetic"
    assert words(TASK)["memory"] == "the workers take 1.1 GB of 21.0 GB that are free; this task adds 8 MB"
    assert words(TASK)["disk"] == "about 14 MB: adapters 5 MB, trajectories 9 MB"
    wide = replace(TASK, time=replace(TIME, most=1500.0, runs=1, alike=False))
    assert words(wide)["time"] == "12 min to 25 min, from 1 earlier task on arithmetic, with another max_tokens"
    unknown = words(replace(TASK, time=None))["time"]
    assert unknown == "unknown: no task here has trained on arithmetic yet; at most 983.0k tokens are sampled"
    several = words(TASK, TASK, TASK)
    assert several["time"] == "about 25 min until all are done, from 3 earlier tasks on arithmetic"
    assert several["memory"].endswith("these tasks add 24 MB")
    running = words(TASK, workers=replace(WORKERS, running=True))["memory"]
    assert running == "the workers take 1.1 GB now; this task adds 8 MB"
    cards = words(TASK, workers=replace(WORKERS, cards="gpu 0", problem="It does not fit.\x1b[2J"))["memory"]
    assert cards.startswith("on the processor alone (an engine would use gpu 0, ") and cards.endswith(" not fit.")
    assert words(TASK, free=1_000_000)["disk"].endswith("only 1 MB are free, and tasks will wait for room")
