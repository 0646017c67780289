"""Dependencies: what a name means, and circles that are refused by name."""

from __future__ import annotations

import pytest

from marlaas.engine.errors import ConfigError, UnknownTask
from marlaas.engine.queue.submission.references import family_of, link
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import QueueSpec, TaskSpec
from marlaas.engine.store.rows import KnownTask
from marlaas.engine.store.submissions import Submission

HOME = [
    KnownTask(1, "lab", "warm-up", "", 1.0),
    KnownTask(2, "lab", "warm-up", "", 2.0),
    KnownTask(3, "bio", "warm-up", "", 3.0),
    KnownTask(4, "lab", "sums [a=1]", "sums", 4.0),
    KnownTask(5, "lab", "sums [a=1]", "sums", 5.0),
    KnownTask(6, "lab", "sums [a=2]", "sums", 5.0),
]


def task(name: str, *depends_on: int | str, tenant: str = "lab", family: str = "") -> Submission:
    return submission(TaskSpec(tenant, name, "e", queue=QueueSpec(depends_on=depends_on)), family=family)


def test_a_name_is_the_newest_task_of_the_same_tenant() -> None:
    (linked,) = link([task("next", "warm-up", 1, 1)], HOME)
    assert (linked.needs, linked.after) == ((2, 1), ())


def test_a_name_is_rather_a_task_of_the_same_submission() -> None:
    tasks = [task("next", "warm-up"), task("warm-up"), task("warm-up", tenant="bio")]
    assert [(linked.needs, linked.after) for linked in link(tasks, HOME)] == [((), (1,)), ((), ()), ((), ())]


def test_the_name_of_a_sweep_is_all_of_its_newest_members() -> None:
    assert link([task("next", "sums")], HOME)[0].needs == (5, 6)
    assert link([task("next", "sums [a=1]")], HOME)[0].needs == (5,)
    beside = [task("sums [a=1]", family="sums"), task("sums [a=2]", family="sums"), task("next", "sums")]
    assert link(beside, HOME)[2].after == (0, 1)
    assert [known.id for known in family_of(HOME, "sums")] == [5, 6]


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ([task("a", "a")], "The task 'a' depends on itself."),
        ([task("a", "b"), task("b", "a")], "These tasks wait for each other: 'a' -> 'b' -> 'a'."),
        (
            [task("x", "b"), task("b", "c"), task("c", "d"), task("d", "b")],
            "These tasks wait for each other: 'b' -> 'c' -> 'd' -> 'b'.",
        ),
        ([task("s [a=1]", "s", family="s")], "The task 's [a=1]' depends on itself."),
    ],
)
def test_circles_are_named(tasks: list[Submission], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        link(tasks, [])
    assert caught.value.message == sentence


def test_a_lattice_is_no_circle() -> None:
    layers = [[task(f"{layer}.{place}", *(f"{layer - 1}.{below}" for below in range(5 * (layer > 0))))
               for place in range(5)] for layer in range(30)]  # fmt: skip
    linked = link([one for layer in reversed(layers) for one in layer], [])
    assert sum(len(one.after) for one in linked) == 29 * 25


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownTask, match="'a' depends on task 9, which does not exist"):
        link([task("a", 9)], HOME)
    with pytest.raises(UnknownTask, match="Did you mean 'warm-up'"):
        link([task("a", "warmup")], HOME)
    with pytest.raises(UnknownTask, match="tenant 'chem' has no task of that name"):
        link([task("a", "warm-up", tenant="chem")], HOME)


def test_sweeps_that_depend_on_sweeps_have_a_limit() -> None:
    first = [task(f"a{place}", family="a") for place in range(101)]
    then = [task(f"b{place}", "a", family="b") for place in range(100)]
    with pytest.raises(ConfigError, match="10,100 dependencies; at most 10,000"):
        link([*first, *then], [])
