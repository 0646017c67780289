"""One policy on several environments: each has its share, instances, versions and held-out prompts of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.environments.protocol import DataFacts, EpisodeOutcome, EpisodeSpec, FinishedEpisode
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import ComponentSpec, DataSpec, EvalSpec, SuiteSpec
from marlaas.engine.store.versions import Evaluation
from marlaas.engine.train.drawing import STRIDE
from marlaas.engine.train.evaluation import mean_score
from marlaas.engine.train.failures import BiasWatch
from marlaas.engine.train.groups import RUNS
from marlaas.engine.trajectories import Episode, Failure, Transcript
from marlaas.plugins.messages import Answer, Ask, Message, Reply

from ..queue.scheduler.fake_environments import FakeEnvironments
from ..queue.scheduler.world import World
from .test_learning import SPEC, check_history

PARTS = (ComponentSpec("sums", 2.0), ComponentSpec("words", 1.0, {"length": 3}))
MIXED = replace(SPEC, environment="", mixture=PARTS, steps=6)


class Several(FakeEnvironments):
    """Each environment by its name: versions, prompts, and the configuration that its episodes were begun with."""

    def __init__(self, world: World) -> None:
        super().__init__(world.chance)
        self.versions = {"sums": "s1", "words": "w1"}
        self.begun_with: set[tuple[str, str, int]] = set()
        self.broken: tuple[str, int] | None = None
        """Of which environment which held-out instance fails."""
        self.drawn_from: set[tuple[str, str]] = set()
        """Of which environment which file of rows."""

    async def bind(
        self, name: str, version: str | None = None, config: dict[str, Any] | None = None, data: Any = None
    ) -> Any:
        self.drawn_from.add((name, data["path"] if data else ""))
        return await super().bind(name, version or self.versions.get(name), config, data)

    async def look(self, lease: Any, spec: EpisodeSpec, opens: object = None) -> Ask | EpisodeOutcome:
        seen = await super().look(lease, spec)
        return self._named(lease, seen) if isinstance(seen, Ask) else seen

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        async def named(ask: Ask) -> Reply:
            return await answer(self._named(lease, ask))

        self.begun_with.add((lease.environment, json.dumps(spec.config), spec.index))
        if spec.split == "eval" and self.broken == (lease.environment, spec.index):
            return EpisodeOutcome("error", failure=Failure("it broke", "env.py", 3))
        outcome = await super().play(lease, spec, named, counts)
        fixed = {"sums": 0.75, "words": 0.0}[lease.environment]
        return replace(outcome, rewards={"agent": fixed}) if spec.split == "eval" else outcome

    def _named(self, lease: Any, ask: Ask) -> Ask:
        return replace(ask, messages=(Message("user", f"{lease.environment} {ask.messages[0].content}"),))


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, MIXED)
    made.environments = Several(made)
    return made


async def ends(world: World) -> Ending:
    return await asyncio.wait_for(world.go(), 50)


def drawn(world: World, split: str = "train") -> list[tuple[str, int]]:
    rows = world.query(f"SELECT component, instance FROM groups WHERE split = '{split}' ORDER BY number, step")
    return [(row["component"], row["instance"]) for row in rows]


STEPS = [0, 2, 4, 6]
EXPECTED = [("sums", 0), ("words", 0), ("sums", 1)]
EXPECTED = [(name, 2 * turn + at if name == "sums" else turn) for turn in range(4) for name, at in EXPECTED]


async def test_each_has_its_share_and_its_own_instances(world: World) -> None:
    assert await ends(world) == Ending("done")
    check_history(world)
    assert drawn(world) == EXPECTED
    assert isinstance(world.environments, Several)
    assert {(name, config) for name, config, _ in world.environments.begun_with} == {
        ("sums", "{}"),
        ("words", '{"length": 3}'),
    }
    assert world.query("SELECT DISTINCT environment FROM tasks") == [{"environment": "sums + words"}]


async def test_the_score_is_the_mean_by_share_and_each_is_kept(world: World) -> None:
    assert await ends(world) == Ending("done")
    rows = world.query("SELECT * FROM evals ORDER BY step")
    whole, sums, words = ([row for row in rows if row["suite"] == name] for name in ("", "sums", "words"))
    measured = [row["step"] for row in whole]
    assert measured == [row["step"] for row in sums] == [row["step"] for row in words]
    assert {STEPS[0], STEPS[-1]} <= set(measured) <= set(STEPS), "what is late is left out, of all components alike"
    keys = ("environment_version", "score", "n", "prompts", "failures")
    assert {tuple(row[key] for key in keys) for row in whole} == {("s1+w1", 0.5, 6, 6, 0)}
    assert {tuple(row[key] for key in keys) for row in sums} == {("s1", 0.75, 3, 3, 0)}
    assert {tuple(row[key] for key in keys) for row in words} == {("w1", 0.0, 3, 3, 0)}
    assert len({row["series"] for row in rows}) == 3
    assert {name for name, _ in drawn(world, "eval")} == {"sums", "words"} and len(drawn(world, "eval")) == 6 * len(
        measured
    )


@pytest.mark.parametrize("turns", [20, 60, 150, 400])
async def test_a_restart_draws_the_same(world: World, turns: int) -> None:
    run = asyncio.ensure_future(world.go())
    for _ in range(turns):
        await asyncio.sleep(0)
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    world.restart()
    assert await ends(world) == Ending("done")
    check_history(world)
    assert drawn(world) == EXPECTED


async def test_a_component_that_is_blocked_blocks_the_task_by_name(world: World) -> None:
    world.spec = replace(MIXED, mixture=(*PARTS, ComponentSpec("broken")))
    ending = await ends(world)
    assert ending.state == "queued" and "'broken'" in ending.reason.words
    assert not world.query("SELECT 1 FROM groups")


async def test_held_out_prompts_of_each_are_kept_out_of_training(world: World) -> None:
    class Overlapping(Several):
        """Training draws what is held out, but of the words alone."""

        def ask_for(self, spec: EpisodeSpec, turn: int, agent: str) -> Ask:
            return Ask(agent=agent, messages=(Message("user", f"{spec.index} {turn}"),))

        def _named(self, lease: Any, ask: Ask) -> Ask:
            return super()._named(lease, ask) if lease.environment == "words" else self._apart(ask)

        def _apart(self, ask: Ask) -> Ask:
            self.asked = getattr(self, "asked", 0) + 1
            return replace(ask, messages=(Message("user", f"sums {self.asked} {ask.messages[0].content}"),))

    world.environments = Overlapping(world)
    assert await ends(world) == Ending("done")
    held = SPEC.eval.prompts
    assert drawn(world) == [(n, i + STRIDE * (n == "words" and i < held)) for n, i in EXPECTED]


async def test_each_draws_from_the_rows_that_are_named_for_it(world: World) -> None:
    assert isinstance(world.environments, Several)
    parts = (replace(PARTS[0], data=DataSpec("/d/sums.jsonl")), PARTS[1])
    suite = SuiteSpec("hard", "words", prompts=2, data=DataSpec("/d/hard.jsonl"))
    world.spec = replace(MIXED, mixture=parts, steps=2, eval=EvalSpec(every=0, prompts=3, suite=(suite,)))
    assert await ends(world) == Ending("done")
    assert world.environments.drawn_from == {("sums", "/d/sums.jsonl"), ("words", ""), ("words", "/d/hard.jsonl")}


async def test_each_follows_its_own_versions(world: World) -> None:
    """A newer version of one opens a new series; a pinned task stays with the first of each."""
    environments = world.environments
    assert isinstance(environments, Several)
    world.spec = replace(MIXED, environment_version="pin", steps=2)
    assert await ends(world) == Ending("done")
    environments.versions["words"] = "w2"
    world.restart()
    world.spec = replace(MIXED, environment_version="pin", steps=4, eval=EvalSpec(every=1, prompts=3))
    assert await ends(world) == Ending("done")
    assert {row["environment_version"] for row in world.query("SELECT * FROM evals WHERE suite = ''")} == {"s1+w1"}
    world.restart()
    world.spec = replace(world.spec, environment_version="follow", steps=6)
    assert await ends(world) == Ending("done")
    versions = world.query("SELECT DISTINCT component, environment_version AS v FROM groups WHERE split = 'train'")
    assert {(row["component"], row["v"]) for row in versions} == {("sums", "s1"), ("words", "w1"), ("words", "w2")}
    assert [row["environment_version"] for row in world.query("SELECT * FROM steps ORDER BY number")][-1] == "s1+w2"
    assert "s1+w2" in {row["environment_version"] for row in world.query("SELECT * FROM evals")}


async def test_too_many_failures_in_one_component_are_no_score(world: World) -> None:
    """One of three fails on the words: no score of theirs, and none of the task; the sums keep theirs."""
    assert isinstance(world.environments, Several)
    world.environments.broken = ("words", 1)
    world.spec = replace(MIXED, steps=2)
    assert await ends(world) == Ending("done")
    rows = world.query("SELECT suite, score, n, failures, prompts FROM evals WHERE step = 0 ORDER BY suite")
    assert [tuple(row.values()) for row in rows] == [
        ("", None, 5, 1, 5),
        ("sums", 0.75, 3, 0, 3),
        ("words", None, 2, 1, 2),
    ]
    said = [row["message"] for row in world.query("SELECT message FROM events WHERE message LIKE 'No held-out%'")]
    assert said and said[0].startswith("No held-out score on words at step 0: 1 of 3 episodes failed.")


async def test_reasons_name_the_component(world: World) -> None:
    assert isinstance(world.environments, Several)
    fails = replace(MIXED, eval=replace(MIXED.eval, every=0), train=replace(MIXED.train, max_staleness=0))
    world.spec, both = fails, world.environments
    play = both.play

    async def broken(lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        if lease.environment == "words" and spec.split == "train":
            return EpisodeOutcome("error", failure=Failure("it broke", "env.py", 3))
        return await play(lease, spec, answer, counts)

    both.play = broken  # type: ignore[method-assign]
    ending = await ends(world)
    assert ending.state == "paused"
    assert ending.reason.words.startswith("The environment words failed 24 groups in a row: it broke (env.py, line 3).")
    assert re.search(r"`marlaas env play words --index \d+` plays the last of them", ending.reason.words)


async def test_what_one_holds_out_no_other_trains_on(world: World) -> None:
    """The sums draw for training what the words hold out, beside many prompts that these do not."""
    held = SPEC.eval.prompts

    class Shared(Several):
        def _named(self, lease: Any, ask: Ask) -> Ask:
            split, index, _ = ask.messages[0].content.split()
            shared = int(index) < held and (lease.environment, split) in (("sums", "train"), ("words", "eval"))
            text = f"shared {index}" if shared else f"{lease.environment} {ask.messages[0].content}"
            return replace(ask, messages=(Message("user", text),))

    world.environments = Shared(world)
    assert await ends(world) == Ending("done")
    assert drawn(world) == [(n, i + STRIDE * (n == "sums" and i < held)) for n, i in EXPECTED]


async def test_the_split_test_is_measured_on_every_component(world: World) -> None:
    world.spec = replace(MIXED, eval=replace(MIXED.eval, test_prompts=2))
    assert await ends(world) == Ending("done")
    rows = world.query("SELECT suite, score, n, step FROM evals WHERE split = 'test' ORDER BY suite, step")
    assert {row["suite"] for row in rows} == {"", "sums", "words"} and max(row["step"] for row in rows) == 6
    assert {(row["suite"], row["n"]) for row in rows} == {("", 4), ("sums", 2), ("words", 2)}


async def test_rows_and_epochs_are_counted_by_component(world: World) -> None:
    """Of five rows each: 12 groups are 8 of the sums and 4 of the words."""
    world.environments.data = DataFacts(train=5)
    assert await ends(world) == Ending("done")
    values = world.query("SELECT name, value FROM metrics WHERE step = 6 AND (name LIKE '%epoch' OR name LIKE '%rows')")
    assert {row["name"]: row["value"] for row in values} == {
        "sums: rows": 5,
        "sums: epoch": 8 / 5,
        "words: rows": 5,
        "words: epoch": 4 / 5,
    }


def test_failures_are_weighed_by_component(world: World) -> None:
    """The same group of survivors twelve times over: on one component it blames the line, spread over twelve it does
    not."""
    failed = EpisodeOutcome("error", failure=Failure("ValueError: no number", "grader.py", 31))
    ends = [EpisodeOutcome("ok", {"agent": 1.0})] * 6 + [failed] * 2
    said = [{(0, "agent", 0): Transcript((("assistant", str(number)),))} for number in range(len(ends))]
    members = [
        FinishedEpisode(Episode(0, end.status, ()), texts, None, end, earlier=(end,) * (RUNS - 1) * (end is failed))
        for end, texts in zip(ends, said, strict=True)
    ]
    warned = []
    for names in ([f"part {number}" for number in range(12)], [""] * 12):
        watch = BiasWatch(world.store, world.task)
        for name in names:
            watch.see("e1", members, name)
        warned.append(len(world.query("SELECT * FROM warnings")))
    assert warned == [0, 1]


def test_the_error_of_a_mean_by_share() -> None:
    parts = [
        Evaluation(3, "a", 1.0, 0.3, 10, 0.5, {"turns": 2.0}, failures=1, prompts=5),
        Evaluation(3, "b", 0.0, 0.4, 20, None, {}, prompts=20),
    ]
    shares = {"easy": 0.75, "hard": 0.25}
    together = mean_score(shares, parts)
    assert (together.score, together.n, together.failures, together.prompts) == (0.75, 30, 1, 25)
    assert together.floor is None and together.metrics == {"easy: turns": 2.0}
    # both sides round each operation once, so they differ by less than a millionth of a millionth
    assert together.stderr == pytest.approx(((0.75 * 0.3) ** 2 + (0.25 * 0.4) ** 2) ** 0.5, rel=1e-12)
    assert mean_score(shares, [parts[0], replace(parts[1], score=None)]).score is None
