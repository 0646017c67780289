"""Filters, orders and lines of tasks, events, environments and versions."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.app.lists.filters import (
    FIELDS,
    STATES,
    broken_first,
    in_order,
    matches,
    parse,
    parse_log_filter,
    short_names,
    with_field,
)
from marlaas.app.lists.lines import (
    TINY,
    Arrangement,
    arrange,
    filling,
    layout,
    table_cells,
    version_columns,
    version_row,
)
from marlaas.app.text.format import cells
from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.errors import ConfigError
from marlaas.engine.store.queries.learning import KeptVersion
from marlaas.engine.store.queries.machine import EnvironmentUse, EventFilter
from marlaas.engine.store.rows import ACTIVE, FINISHED, EnvironmentRow, TaskRow, VersionRow
from tests.app.rows import task
from tests.test_hostile_text import harmless

TASK = TaskRow(
    id=17, tenant="bio-lab", name="Two words", environment="games/guess", state="running", reason="", priority=2,
    step=8, steps=60, reward=0.6, score=0.3, best=0.35, floor=0.1, adapter_version="", staleness=0.5, tokens=1200,
    seconds=9.5, created=1.0, started=2.0, finished=None, family="sums",
)  # fmt: skip

words = st.text(string.ascii_letters + string.digits + ".-_ ", min_size=1).filter(str.strip)

maybe = st.none() | st.floats(allow_nan=True)

tasks = st.builds(
    replace,
    st.just(TASK),
    id=st.integers(1, 50),
    state=st.sampled_from(STATES),
    tenant=words,
    name=words,
    environment=words,
    reward=maybe,
    score=maybe,
    step=st.integers(0, 60),
)

terms = st.one_of(
    st.builds('{}"{}"'.format, st.sampled_from(["", "name:", "tenant=", "env:", "family:"]), words),
    st.builds("state:{}".format, st.sampled_from(STATES)),
    st.builds(
        "{}{}{}".format,
        st.sampled_from(["reward", "score", "step", "id", "priority"]),
        st.sampled_from([":", "=", ">", ">=", "<", "<=", "!="]),
        st.floats(-10, 60) | st.integers(0, 60),
    ),
)


@pytest.mark.parametrize(
    "query",
    [
        "", "  ", "state:running", "STATE:RUN", "tenant:bio", "tenant=bio-lab", "env:guess", "environment:guess",
        "family:sums", "id:17", "id=17", "reward>0.5", "score>=0.3", "step<10", "step<=8", "priority>0", "words", "BIO",
        "guess", '"Two words"', 'name:"two w', "-state:done", "!tenant:physics", "-nothing",
        "state:running bio step<10", "reward!=1", "state!=done", "-", "!", "two -three", 'name:"two words" !env:sums',
        "tokens>1e3",
    ],
)  # fmt: skip
def test_what_fits(query: str) -> None:
    assert matches(parse(query), TASK)


@pytest.mark.parametrize(
    "query",
    [
        "state:done", "tenant=bio", "reward>0.6", "reward<0.6", "step>8", "id:1", "nothing", "-bio", "!state:running",
        "state:running -guess", '"words two"', "bio nothing",
    ],
)  # fmt: skip
def test_what_does_not_fit(query: str) -> None:
    assert not matches(parse(query), TASK)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("rewards>0.5", "There is no field 'rewards' to filter by. Known are state, tenant, env"),
        ("http://x", "Text with : in it goes in quotes"),
        ("reward>", "compared with a number, as in reward>0.5, not with ''"),
        ("step<ten", "not with 'ten'"),
        ("reward:nan", "not with 'nan'"),
        ("tenant>bio", "'tenant' is text: write tenant:bio"),
        ("a b " * 250_000, "A filter has at most 1,000 characters, not 1,000,000."),
        ("state:runing", "There is no state 'runing'. Known are submitted, queued"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(query: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(query)
    assert says in str(error.value)


@given(st.text(string.printable))
def test_anything_may_be_typed(text: str) -> None:
    for end in range(len(text) + 1):
        try:
            query = parse(text[:end])
        except ConfigError:
            continue
        matches(query, TASK)


@given(terms, terms, tasks)
def test_all_terms_must_hold(one: str, other: str, task: TaskRow) -> None:
    assert matches(parse(f"{one} {other}"), task) == (matches(parse(one), task) and matches(parse(other), task))


@given(terms, tasks)
def test_a_mark_before_a_term_turns_it_round(term: str, task: TaskRow) -> None:
    assert matches(parse(f"-{term}"), task) == matches(parse(f"!{term}"), task) == (not matches(parse(term), task))


@given(st.lists(tasks, max_size=8), st.sampled_from(FIELDS), st.booleans())
def test_order_loses_nobody(rows: list[TaskRow], field: str, backwards: bool) -> None:
    assert sorted(map(id, in_order(rows, field, backwards))) == sorted(map(id, rows))


def test_order() -> None:
    rows = [
        replace(TASK, id=i, reward=reward, name=name)
        for i, reward, name in ((1, 0.2, "b"), (2, None, "C"), (3, 0.9, "a"))
    ]
    assert [row.id for row in in_order(rows, "reward")] == [3, 1, 2]
    assert [row.id for row in in_order(rows, "reward", backwards=True)] == [1, 3, 2]
    assert [row.id for row in in_order(rows, "name")] == [3, 1, 2]
    with pytest.raises(ConfigError, match=r"There is no field 'colour' to sort by\. Known are state"):
        in_order(rows, "colour")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", EventFilter()),
        ("level:error task:17 tenant:bio", EventFilter(level="error", task=17, tenant="bio")),
        ("LEVEL:warn kind:worker", EventFilter(level="warning", kind="worker")),
        ('died "two words" n_ctx:5', EventFilter(words=("died", "two words", "n_ctx:5"))),
        ('tenant:"the lab" "open', EventFilter(tenant="the lab", words=("open",))),
        ("level: task:", EventFilter()),
        ("leve", EventFilter(words=("leve",))),
    ],
)
def test_words_and_fields(text: str, wanted: EventFilter) -> None:
    assert parse_log_filter(text) == wanted


@given(st.text(max_size=60))
def test_whatever_is_typed_is_a_filter_or_a_sentence(text: str) -> None:
    try:
        parse_log_filter(text)
    except ConfigError as error:
        assert error.message.endswith(".")


def test_a_value_takes_the_place_of_another() -> None:
    assert with_field("task:3 level:info  died", "level", "error") == "level:error task:3 died"
    assert with_field("level:error died", "level", "") == "died" and with_field("", "level", "") == ""
    text = with_field('tenant:"the lab" died', "tenant", "two words")
    assert text == 'tenant:"two words" died' and parse_log_filter(text).tenant == "two words"


FINE = EnvironmentRow("a/fine", "v", "ready", (), "", "", "", 0, "/p/a.py", 0.0)

NOTHING = EnvironmentUse()


def test_the_worst_is_the_first() -> None:
    rows = [
        (FINE, NOTHING),
        (replace(FINE, name="b/fails"), EnvironmentUse({"ok": 1, "error": 9})),
        (replace(FINE, name="c/unfit", findings=(Finding("length", "error", "x"),)), NOTHING),
        (replace(FINE, name="d/warned", findings=(Finding("length", "warning", "x"),)), NOTHING),
        *(
            (replace(FINE, name=f"z/{state}", state=state), NOTHING)
            for state in ("waiting", "broken", "stale", "what?")
        ),
    ]
    names = [row.name for row, _ in broken_first(rows)]
    assert names == ["z/broken", "z/what?", "z/stale", "z/waiting", "b/fails", "c/unfit", "a/fine", "d/warned"]
    assert broken_first([]) == []


def test_names_are_as_short_as_they_can_be() -> None:
    names = ["first_letter/first_letter", "shop/buy", "shop/sell", "market/sell", "plain"]
    assert list(short_names(names).values()) == ["first_letter", "buy", "shop/sell", "market/sell", "plain"]


rows = st.lists(
    st.builds(
        task,
        st.integers(1, 10**6),
        tenant=st.sampled_from(["bio", "lab", ""]),
        state=st.sampled_from((*ACTIVE, *FINISHED)),
        family=st.sampled_from(["", "a", "b"]),
        reward=st.none() | st.floats(),
        created=st.sampled_from([1.0, 2.0]),
    ),
    max_size=30,
    unique_by=lambda row: row.id,
)

arrangements = st.builds(
    Arrangement,
    query=st.sampled_from([parse(""), parse("state:running"), parse("tenant:bio reward>0")]),
    sort=st.sampled_from(["", "reward", "tenant", "id"]),
    backwards=st.booleans(),
    by_tenant=st.booleans(),
)


@given(rows, arrangements)
def test_every_task_is_shown_once_when_all_is_unfolded(tasks: list[TaskRow], how: Arrangement) -> None:
    folded = {line.key for line in arrange(tasks, how) if line.key.startswith("sweep:")}
    lines = arrange(tasks, replace(how, toggled=frozenset(folded)))
    singles = [line.single.id for line in lines if line.single]
    wanted = {row.id for row in arrange_flat(tasks, how)}
    assert sorted(singles) == sorted(wanted)
    assert len({line.key for line in lines}) == len(lines)


def arrange_flat(tasks: list[TaskRow], how: Arrangement) -> list[TaskRow]:
    plain = [replace(row, family="") for row in tasks]
    return [line.tasks[0] for line in arrange(plain, replace(how, by_tenant=False))]


def test_columns_fit_at_every_width() -> None:
    for width in range(1, 401):
        assert table_cells(layout(width)) <= max(width - 4, table_cells(TINY)), width


def kept(task: int, number: int, score: float | None = None, size: int = 1_000_000, label: str = "") -> KeptVersion:
    row = VersionRow(
        100 * task + number, task, "lab", f"name {task}", "policy", number, f"task-{task}/policy-v{number}-i1",
        "committed", label, score, "0" * 16, "x", size, 1000.0 - number,
    )  # fmt: skip
    return KeptVersion(row, task, "done", "arithmetic", 60)


@given(st.integers(1, 200), st.text(max_size=40), st.floats(0, 1e9))
def test_rows_of_versions_have_their_width_whatever_they_say(width: int, name: str, seconds: float) -> None:
    version = kept(1, 5, 0.5)
    version = replace(version, row=replace(version.row, task_name=name, tenant=name, policy=name, label=name))
    columns = version_columns(width)
    row = version_row(version, columns, 1000 + seconds)
    for column, cell in zip(columns, row.cells, strict=True):
        text = filling(column, cell.text)
        assert cells(text) == column.width + 1 and harmless(text) and "\n" not in text


def test_the_columns_of_versions_fit_and_leave_room_for_the_task() -> None:
    for width in range(20, 200):
        columns = version_columns(width)
        assert table_cells(columns) <= width and columns[0].name == "task" and columns[0].width >= 11, width
    assert [any(column.name == "resumable" for column in version_columns(width)) for width in (76, 40)] == [True, False]
