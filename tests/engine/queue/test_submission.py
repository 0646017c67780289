"""Submissions: environments, rows and dependencies that fit, names of tasks, a home's base, and what a task takes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.daemon import control
from marlaas.engine.errors import ConfigError, EnvironmentMissing, UnknownTask
from marlaas.engine.home.paths import TINY_BASE, Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.models.find import load_base
from marlaas.engine.models.memory import adapter_bytes
from marlaas.engine.queue.submission.estimate import disk_of, estimate_task, time_of, together
from marlaas.engine.queue.submission.queue import (
    HomeBase,
    check_data,
    check_environment,
    check_use,
    find_environment,
)
from marlaas.engine.queue.submission.references import family_of, link, task_number
from marlaas.engine.queue.submission.taskfile import load, submission
from marlaas.engine.queue.submission.transitions import TRANSITIONS, next_state
from marlaas.engine.spec.task import (
    DataSpec,
    EvalSpec,
    KeepSpec,
    PolicySpec,
    QueueSpec,
    SamplingSpec,
    TaskSpec,
    TrainSpec,
    parse,
)
from marlaas.engine.store.queries.learning import PastRun
from marlaas.engine.store.rows import FINISHED, EnvironmentRow, KnownTask
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import Submission, submit


def served(name: str, *parameters: dict[str, object], version: str = "abc") -> EnvironmentRow:
    return EnvironmentRow(name, version, "ready", tuple(parameters), "", "", "", 0, "", 0.0)


DIGITS: dict[str, object] = {"name": "digits", "type": "int", "default": 2, "required": False}


def task(environment: str, **config: object) -> TaskSpec:
    return TaskSpec("t", "n", environment, environment_config=dict(config))


ON_AGAIN = {
    ("retry", "failed"),
    ("retry", "cancelled"),
    ("extend", "done"),
    *(("rollback", state) for state in FINISHED),
}


def test_finished_tasks_accept_only_ways_to_go_on() -> None:
    for command in TRANSITIONS:
        for state in FINISHED:
            if (command, state) in ON_AGAIN:
                assert next_state(command, state) == "queued"
            else:
                with pytest.raises(ConfigError, match=state):
                    next_state(command, state)


@pytest.mark.parametrize(
    ("rows", "path", "says"),
    [
        ("", "x.jsonl", "'a/add' draws its tasks from no rows"),
        ("task", "", "'a/add' has no rows of its own"),
        ("", "", None),
        ("own", "", None),
        ("own", "x.jsonl", None),
        ("task", "x.jsonl", None),
    ],
)
def test_rows_are_named_where_the_environment_takes_them(rows: str, path: str, says: str | None) -> None:
    given = submission(replace(task("add"), data=DataSpec(path)))
    if says is None:
        return check_environment(given, [replace(served("a/add"), rows=rows)])
    with pytest.raises(ConfigError, match=says):
        check_environment(given, [replace(served("a/add"), rows=rows)])


def test_difficulty_needs_rows_to_choose_from() -> None:
    given = submission(replace(task("add"), train=TrainSpec(sampling="difficulty")))
    for environment in (replace(served("a/add"), rows="own"), served("a/add", version="")):
        check_environment(given, [environment])
    with pytest.raises(ConfigError, match=r"so 'train.sampling' has n") as caught:
        check_environment(given, [replace(served("a/add"), rows="")])
    assert caught.value.path == "train.sampling"


def test_a_plugins_own_name_is_not_ambiguous() -> None:
    """A person's plugin ``sums`` stands beside an environment of that name which ships with marlaas."""
    rows = [served("instruct/sums"), served("sums/sums", DIGITS)]
    check_environment(submission(task("sums", digits=3)), rows)
    with pytest.raises(ConfigError, match=r"'sums' could be instruct/sums or other/sums\. Write its"):
        check_environment(submission(task("sums")), [served("instruct/sums"), served("other/sums")])


def test_configuration_is_checked_before_the_queue_takes_it() -> None:
    rows = [served("a/add", DIGITS)]
    check_environment(submission(task("add", digits=3)), rows)
    with pytest.raises(ConfigError, match="Did you mean 'digits'"):
        check_environment(submission(task("add", digit=3)), rows)
    with pytest.raises(ConfigError, match="'digits' of a/add must be a whole number, not '3'"):
        check_environment(submission(task("add", digits="3")), rows)
    with pytest.raises(ConfigError, match="must be a whole number, not True"):
        check_environment(submission(task("add", digits=True)), rows)


def test_a_broken_environment_is_no_reason_to_refuse() -> None:
    check_environment(submission(task("add", anything=1)), [served("a/add", version="")])


def test_an_environment_may_be_queued_before_its_plugin_serves() -> None:
    """It waits for a person to allow its libraries, or is being loaded: which environments it has is not sure yet."""
    waiting = replace(served("chain", version=""), state="waiting")
    unknown = replace(served("games", version=""), state="building")
    rows = [waiting, unknown, served("add/sums")]
    for name in ("chain", "chain/uses", "chain/another"):
        assert find_environment(name, rows) is waiting
    assert find_environment("games/guess", rows) is unknown
    for nowhere in ("guess", "nowhere/uses", "add/uses"):
        with pytest.raises(EnvironmentMissing):
            find_environment(nowhere, rows)
    with pytest.raises(EnvironmentMissing) as caught:
        find_environment("guess", rows)
    assert "Those of chain, games are not known yet: write `chain/guess` if it is one of them." in caught.value.hint
    assert find_environment("guess", [*rows, served("other/guess")]).name == "other/guess", "what serves goes first"


def test_a_command_of_a_newer_program_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="knows no command 'hurry'"):
        next_state("hurry", "failed")


def test_environments_of_suites_are_checked() -> None:
    def measured(**suite: object) -> Submission:
        one = {"name": "far", "environment": "far", "config": {}, **suite}
        table = {"tenant": "t", "name": "n", "environment": "sums", "eval": {"suite": [one]}}
        return submission(parse(table, "the task"))

    rows = [served("a/sums"), served("b/far")]
    check_environment(measured(), rows)
    with pytest.raises(EnvironmentMissing, match="The suite 'far': There is no environment 'fra'"):
        check_environment(measured(environment="fra"), rows)
    with pytest.raises(ConfigError, match=r"The suite 'far': .* has no parameter 'size'"):
        check_environment(measured(config={"size": 3}), rows)
    table = [rows[0], replace(rows[1], rows="task")]
    check_environment(measured(data={"path": "x.jsonl"}), table)
    with pytest.raises(ConfigError, match=r"The suite 'far': .* Name some as 'path' below \[eval.suite.data\]"):
        check_environment(measured(), table)
    with pytest.raises(ConfigError, match=r"so 'eval.suite\[0\].data.path' would have no effect"):
        check_environment(measured(data={"path": "x.jsonl"}), [rows[0], replace(rows[1], rows="")])


def test_agents_of_an_evaluation_are_checked() -> None:
    def check(agents: dict[str, str], declared: tuple[str, ...]) -> None:
        table = {"tenant": "t", "name": "n", "environment": "duel", "kind": "eval", "versions": ["base"]}
        spec = parse({**table, "eval": {"agents": agents}}, "the task")
        check_environment(submission(spec), [replace(served("a/duel"), agents=declared)])

    check({"second": "base"}, ("first", "second"))
    check({}, ())
    for agents, declared, sentence in (
        ({"second": "base"}, (), "does not declare its agents"),
        ({"third": "base"}, ("first", "second"), "has no agent 'third'"),
        ({"first": "base", "second": "base"}, ("first", "second"), "leaves no agent"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            check(agents, declared)


TASK = 'tenant = "lab"\nname = "sums"\nenvironment = "sums"\n[data]\n'
ROW = json.dumps({"prompt": "1+1", "solution": "2"}) + "\n"


def check(folder: Path, data: str) -> str:
    """The path of the data, which was checked."""
    (folder / "task.toml").write_text(TASK + data)
    submissions = load(folder / "task.toml")
    check_data(submissions)
    path: str = submissions[0].spec.to_json()["data"]["path"]
    return path


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


HOME = [
    KnownTask(1, "lab", "warm-up", "", 1.0),
    KnownTask(2, "lab", "warm-up", "", 2.0),
    KnownTask(3, "bio", "warm-up", "", 3.0),
    KnownTask(4, "lab", "sums [a=1]", "sums", 4.0),
    KnownTask(5, "lab", "sums [a=1]", "sums", 5.0),
    KnownTask(6, "lab", "sums [a=2]", "sums", 5.0),
]


def depending(name: str, *depends_on: int | str, tenant: str = "lab", family: str = "") -> Submission:
    return submission(TaskSpec(tenant, name, "e", queue=QueueSpec(depends_on=depends_on)), family=family)


def test_a_name_is_the_newest_task_of_the_same_tenant() -> None:
    (linked,) = link([depending("next", "warm-up", 1, 1)], HOME)
    assert (linked.needs, linked.after) == ((2, 1), ())


def test_a_name_is_rather_a_task_of_the_same_submission() -> None:
    tasks = [
        depending("next", "warm-up"),
        depending("warm-up"),
        depending("warm-up", tenant="bio"),
    ]
    assert [(linked.needs, linked.after) for linked in link(tasks, HOME)] == [((), (1,)), ((), ()), ((), ())]


def test_the_name_of_a_sweep_is_all_of_its_newest_members() -> None:
    assert link([depending("next", "sums")], HOME)[0].needs == (5, 6)
    assert link([depending("next", "sums [a=1]")], HOME)[0].needs == (5,)
    beside = [depending("sums [a=1]", family="sums"), depending("sums [a=2]", family="sums"), depending("next", "sums")]
    assert link(beside, HOME)[2].after == (0, 1)
    assert [known.id for known in family_of(HOME, "sums")] == [5, 6]


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ([depending("a", "a")], "The task 'a' depends on itself."),
        (
            [depending("a", "b"), depending("b", "a")],
            "These tasks wait for each other: 'a' -> 'b' -> 'a'.",
        ),
        (
            [
                depending("x", "b"),
                depending("b", "c"),
                depending("c", "d"),
                depending("d", "b"),
            ],
            "These tasks wait for each other: 'b' -> 'c' -> 'd' -> 'b'.",
        ),
        ([depending("s [a=1]", "s", family="s")], "The task 's [a=1]' depends on itself."),
    ],
)
def test_circles_are_named(tasks: list[Submission], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        link(tasks, [])
    assert caught.value.message == sentence


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownTask, match="'a' depends on task 9, which does not exist"):
        link([depending("a", 9)], HOME)
    with pytest.raises(UnknownTask, match="Did you mean 'warm-up'"):
        link([depending("a", "warmup")], HOME)
    with pytest.raises(UnknownTask, match="tenant 'chem' has no task of that name"):
        link([depending("a", "warm-up", tenant="chem")], HOME)


def test_sweeps_that_depend_on_sweeps_have_a_limit() -> None:
    first = [depending(f"a{place}", family="a") for place in range(101)]
    then = [depending(f"b{place}", "a", family="b") for place in range(100)]
    with pytest.raises(ConfigError, match="10,100 dependencies; at most 10,000"):
        link([*first, *then], [])


TASKS = [
    KnownTask(1, "lab", "first run", "", 1.0),
    KnownTask(2, "lab", "7", "", 2.0),
    KnownTask(3, "bio", "warm-up", "", 3.0),
    KnownTask(4, "lab", "warm-up", "", 4.0),
    KnownTask(5, "lab", "sums [seed=1]", "sums", 5.0),
    KnownTask(6, "lab", "sums [seed=2]", "sums", 5.0),
    KnownTask(7, "lab", "long", "", 6.0),
]


@pytest.mark.parametrize(
    ("said", "number"),
    [(1, 1), ("first run", 1), ("lab/first run", 1), ("bio/warm-up", 3), ("sums [seed=2]", 6), (7, 7), ("7", 2)],
)
def test_a_number_or_a_name(said: int | str, number: int) -> None:
    assert task_number(said, TASKS) == number


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (8, "There is no task 8. `marlaas list`"),
        ("frist run", "There is no task 'frist run'. Did you mean 'first run'? `marlaas list`"),
        ("nothing like it", "There is no task 'nothing like it'. `marlaas list` shows the tasks."),
        ("sums", "'sums' is a sweep, not a task. Give one of its tasks, 5, 6; verbs that take several"),
        ("", "There is no task ''."),
    ],
)
def test_what_is_no_task(said: int | str, sentence: str) -> None:
    with pytest.raises(UnknownTask) as caught:
        task_number(said, TASKS)
    assert str(caught.value).startswith(sentence)


def test_a_name_of_several_is_refused_with_their_numbers() -> None:
    with pytest.raises(ConfigError) as caught:
        task_number("warm-up", TASKS)
    assert str(caught.value) == "Several tasks are named 'warm-up': 3, 4. Give a number: 4 is the newest."
    many = [KnownTask(number, "lab", "again", "", 1.0) for number in range(1, 31)]
    with pytest.raises(ConfigError, match="9, 10 and 20 more"):
        task_number("again", many)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with an unfinished task of the base "old", whose fingerprint is aaaa."""
    monkeypatch.delenv("MARLAAS_BASE", raising=False)
    home = Home(tmp_path / "home").create()
    store = Store(home.database, "old", "aaaa")
    submit(home.database, [submission(TaskSpec("lab", "sums", "arithmetic"))])
    store.tasks.adopt("aaaa")
    store.close()
    return home


def test_the_ways_out_of_another_base(home: Home) -> None:
    check_use(home, HomeBase("other name", "aaaa"), "aaaa")
    with pytest.raises(ConfigError, match=r"cannot be 'new'.*task 1 \(lab/sums\).*\(old\)") as said:
        check_use(home, HomeBase("new", "bbbb"), "bbbb")
    for way in ("`marlaas --home DIR base use new`", "`marlaas base use old`", "`marlaas cancel 1`"):
        assert way in said.value.hint
    with pytest.raises(ConfigError, match=r"what its files held before\. Put the old files back, use another home"):
        check_use(home, HomeBase("old", "bbbb"), None)


def test_relative_folders(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(TINY_BASE, home.root / "mine")
    shutil.copytree(TINY_BASE, tmp_path / "here" / "mine")
    monkeypatch.chdir(tmp_path / "here")
    home.config.write_text('base = "mine"\n')
    assert load_settings(home).base == str(home.root / "mine")
    monkeypatch.setenv("MARLAAS_BASE", "mine")
    assert load_settings(home).base == str(tmp_path / "here" / "mine")
    assert control.base_variable() == {"MARLAAS_BASE": str(tmp_path / "here" / "mine")}
    assert control.served_base(home).fingerprint == load_base("tiny").fingerprint


BASE = load_base("tiny").config
SPEC = TaskSpec("bio", "sums", "arithmetic", steps=10, sampling=SamplingSpec(1.0, 8, 256))
RUN = PastRun(1, 8, 8, 8, steps=60, seconds=120.0, tokens=9000, rollout=0.5, training=1.5,
              trajectory_tokens=20.0, trajectory_text=100.0)  # fmt: skip


def test_time_is_that_of_the_episodes_of_tasks_before() -> None:
    time = time_of(SPEC, [RUN])
    assert time is not None and time.seconds == pytest.approx(10 * 64 * (120 / 60 / 64)) and time.alike
    assert time.rollout == pytest.approx(5.0) and time.training == pytest.approx(15.0)
    assert time.least == time.most == time.seconds and time.runs == 1
    half, twice = replace(SPEC, train=TrainSpec(group_size=4)), replace(SPEC, steps=20)
    for spec, factor in ((half, 0.5), (twice, 2.0)):
        other = time_of(spec, [RUN])
        assert other is not None and other.seconds == pytest.approx(factor * time.seconds)
    assert time_of(SPEC, []) is None


def test_the_disk_holds_what_retention_keeps() -> None:
    adapter = adapter_bytes(BASE, 16)
    spec = replace(SPEC, eval=EvalSpec(every=5, prompts=16))
    disk = disk_of(spec, [RUN], BASE, token_steps=4)
    assert disk.adapters == 7 * adapter and disk.measured
    held_out = 16 * 3
    assert disk.trajectories == (640 + held_out) * 300 + (4 * 64 + held_out) * 9 * 20
    assert disk_of(spec, [RUN], BASE, token_steps=0).trajectories > disk.trajectories
    sampled = replace(spec, eval=replace(spec.eval, samples=8, temperature=1.0))
    more = 7 * held_out * (300 + 9 * 20)
    assert disk_of(sampled, [RUN], BASE, token_steps=4).trajectories == disk.trajectories + more
    every = replace(spec, keep=KeepSpec(every=2), policy=PolicySpec(rank=32))
    assert disk_of(every, [RUN], BASE, 4).adapters == 2 * adapter * (7 + 5)
    bound = disk_of(spec, [], BASE, token_steps=4)
    assert not bound.measured and bound.trajectories > disk.trajectories, "nothing is known but the limits"


def test_all_together_take_as_long_as_the_busiest_worker() -> None:
    one = estimate_task(SPEC, [RUN], BASE, 100, True, 512)
    assert one.time is not None and together([one]) == one.time.seconds
    assert together([one, one]) == pytest.approx(30.0), "the trainer's seconds add up"
    unknown = replace(one, time=None)
    assert together([one, unknown]) is None and together([]) is None


@given(st.lists(st.builds(replace, st.just(RUN), seconds=st.floats(0.1, 1e6), group_size=st.integers(1, 64))))
def test_the_middle_lies_between_the_ends(runs: list[PastRun]) -> None:
    time = time_of(SPEC, runs)
    assert (time is None) == (not runs)
    if time is not None:
        assert time.least <= time.seconds <= time.most
