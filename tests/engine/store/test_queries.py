"""What screens and commands read of tasks, steps, environments and the machine."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from marlaas.engine.clock import wall_time
from marlaas.engine.environments.outcomes import OutcomeCounts
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.fairness.line import Standing, Usage
from marlaas.engine.spec.task import SamplingSpec, TaskSpec
from marlaas.engine.store.experience import PolicyGroup
from marlaas.engine.store.queries import machine as timeline
from marlaas.engine.store.queries.learning import (
    Change,
    FirstStep,
    History,
    Matchup,
    evals_made,
    first_step,
    history,
    matchups,
    metric_samples,
    past_runs,
    prompt_scores,
    recent_means,
)
from marlaas.engine.store.queries.machine import EnvironmentUse, StageSample, StandingRow, TenantUse, environment_use
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import PaceRow, PolicyRow, ScoreBasis, day_of
from marlaas.engine.store.store import Store
from marlaas.engine.store.tasks import today
from marlaas.engine.store.versions import Evaluation, NewVersion
from marlaas.engine.trajectories import Episode, EpisodeStatus, Failure, Group
from tests.app.filling import NOW, Filling
from tests.engine.store.playing import beside, duel, part, said
from tests.engine.store.test_training_rows import group
from tests.examples import examples


def train(store: Store, policy: int, steps: range, environment: str = "e1", **metrics: float) -> None:
    for step in steps:
        store.experience.add_group(policy, "train", replace(group(step), environment_version=environment), {})
        name = store.versions.unused(f"v{step}")
        version = NewVersion(step, name, "sum", "path", 9)
        store.versions.commit_step(policy, version, [step], 0.5, {"reward": step / 10, "loss": -step} | metrics)


def values(found: History, name: str) -> list[tuple[int, float]]:
    return list(zip(found.tracks[name].steps, found.tracks[name].values, strict=True))


def test_later_steps_are_added_to_a_history(store: Store, policy: int, database: Path) -> None:
    train(store, policy, range(1, 4))
    with Reader(database) as reader:
        first = history(reader, 1, ["reward"])
        train(store, policy, range(4, 6), "e2")
        second = history(reader, 1, ["reward", "loss"], first)
    assert values(first, "reward") == [(1, 0.1), (2, 0.2), (3, 0.3)] and first.last[0] == 3
    assert [step for step, _ in values(second, "reward")] == [1, 2, 3, 4, 5]
    assert [step for step, _ in values(second, "loss")] == [1, 2, 3, 4, 5], "a metric that was not asked for before"
    assert second.environments == (Change(1, "e1"), Change(4, "e2"))
    assert [second.environment_at(step) for step in (0, 3, 4)] == ["", "e1", "e2"]


def test_steps_that_were_made_anew_are_read_anew(store: Store, policy: int, database: Path) -> None:
    train(store, policy, range(1, 6))
    with Reader(database) as reader:
        before = history(reader, 1, ["reward"])
        store.versions.void_after(policy, 2)
        train(store, policy, range(3, 8), "e2", reward=0.9)
        after = history(reader, 1, ["reward"], before)
    assert [value for _, value in values(after, "reward")] == [0.1, 0.2, *[0.9] * 5]
    assert after.environments == (Change(1, "e1"), Change(3, "e2"))


def test_samples_are_spread_and_stay(store: Store, policy: int, database: Path) -> None:
    train(store, policy, range(1, 42))
    with Reader(database) as reader:
        found = metric_samples(reader, 1, most=8)
        assert list(found["reward"].steps) == [8, 16, 24, 32, 40, 41] and set(found) == {"reward", "loss"}
        assert list(metric_samples(reader, 1)["loss"].steps) == list(range(1, 42))


def test_recent_means_are_of_the_last_steps(store: Store, policy: int, database: Path) -> None:
    with Reader(database) as reader:
        assert recent_means(reader, 1) == {}
        train(store, policy, range(1, 21))
        assert recent_means(reader, 1, over=4)["loss"] == pytest.approx(-(17 + 18 + 19 + 20) / 4)
        train(store, policy, range(21, 23), cut=0.5)
        assert recent_means(reader, 1, over=10)["cut"] == 0.5, "of the steps that recorded it"


def write(database: Path, sql: str, rows: Sequence[Sequence[float]] = ((),)) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.executemany(sql, rows)


@pytest.fixture
def made(store: Store, policy: int, database: Path) -> Store:
    """Nine steps, ten seconds apart, with an hour between the fifth and the sixth."""
    train(store, policy, range(1, 10), tokens=100.0)
    times = [[1000.0 + 10 * step + (3600 if step > 5 else 0), step] for step in range(1, 10)]
    write(database, "UPDATE steps SET created = ? WHERE number = ?", times)
    return store


def pace(database: Path) -> PaceRow | None:
    with Reader(database) as reader:
        return reader.pace(1)


def test_a_pause_of_an_hour_is_no_slow_step(made: Store, database: Path) -> None:
    made.telemetry.event("task", "The task is queued (resume).", 1)
    write(database, "UPDATE events SET created = 2000")
    assert pace(database) == PaceRow(10.0, 100.0, 7)


def test_a_slow_step_is_slow(made: Store, database: Path) -> None:
    """What is said of other tasks, or of what the task does as it goes on, is no pause."""
    made.telemetry.event("task", "The task is queued (resume).", None)
    made.telemetry.event("evaluation", "No held-out score at step 5.", 1)
    write(database, "UPDATE events SET created = 2000")
    found = pace(database)
    assert found is not None and found.seconds == (7 * 10 + 3610) / 8 and found.steps == 8


TRAIN = {"groups_per_step": 2, "group_size": 8}


@pytest.fixture
def filling(tmp_path: Path) -> Filling:
    fill = Filling(tmp_path / "marlaas.db")
    fill.task(made=0)
    return fill


def configure(fill: Filling, **config: object) -> None:
    fill.execute("UPDATE tasks SET config = ?", json.dumps({"train": TRAIN} | config))


def add_group(fill: Filling, number: int, state: str = "complete") -> None:
    fill.insert(
        "groups", policy=1, split="train", number=number, instance=1, version=0, environment_version="e", state=state,
        created=NOW,
    )  # fmt: skip


def play(fill: Filling, number: int, members: int) -> None:
    row = dict(
        attempt=0, instance=1, component="", environment_version="e", speaking="{}", replaced=0, lost=0, replayed=0
    )
    own = fill.insert("open_plays", task=1, number=number, policies="[]", created=NOW, **row)
    empty = dict.fromkeys(("tokens", "mask", "logprobs"), b"") | {"spans": "[]", "turns": "[]", "cut": 0}
    for member in range(members):
        for agent in ("first", "second"):
            fill.insert("open_trajectories", play=own, member=member, agent=agent, **empty)


def asked(fill: Filling, policy: str | None = None) -> FirstStep | None:
    with closing(Reader(fill.path)) as reader:
        return first_step(reader, 1, policy)


def test_complete_groups_and_members_of_open_plays_count(filling: Filling) -> None:
    configure(filling)
    assert asked(filling) == FirstStep(0, 16)
    add_group(filling, 0)
    play(filling, 1, 4)
    assert asked(filling) == FirstStep(12, 16)
    play(filling, 0, 8)
    assert asked(filling) == FirstStep(12, 16), "a play that waits for another policy counts once"
    add_group(filling, 2)
    play(filling, 3, 5)
    assert asked(filling) == FirstStep(12, 16), "of later steps"
    add_group(filling, 1)
    assert asked(filling) == FirstStep(16, 16)


CONFIG = json.dumps(TaskSpec("lab", "sums", "arithmetic", sampling=SamplingSpec(max_tokens=32)).to_json())


def test_a_run_in_figures(database: Path) -> None:
    filling = Filling(database)
    filling.task(made=12)
    filling.execute("UPDATE tasks SET started = created, base = 'b', config = ?", CONFIG)
    for stage, seconds in (("rollout", 6.0), ("training", 24.0)):
        for day in ("2026-11-20", "2026-11-21"):
            filling.insert("usage", day=day, task=1, stage=stage, tokens=1, seconds=seconds / 2)
    with Reader(database) as reader:
        (run,) = past_runs(reader, ["arithmetic"], "b")
        assert past_runs(reader, ["calculator"], "b") == [] and past_runs(reader, ["arithmetic"], "c") == []
    assert (run.task, run.episodes, run.max_tokens, run.steps) == (1, 64, 32, 12)
    assert run.seconds == pytest.approx(12 * 0.41) and run.tokens == 12 * 1480
    assert (run.rollout, run.training) == (0.5, 2.0)
    assert run.trajectory_tokens == 19 and 60 < run.trajectory_text < 200


def test_all_policies_of_a_task_in_the_order_of_its_file(store: Store, database: Path) -> None:
    task, _ = duel(store, database)
    with Reader(database) as reader:
        row = reader.task(task)
        alone = reader.task(1)
    assert row is not None and alone is not None and alone.policies == ()
    player, judge, opponent_pool, old = row.policies
    assert player == PolicyRow(
        "player",
        ("first",),
        step=1,
        reward=0.6,
        score=0.75,
        best=0.75,
        floor=0.25,
        adapter_version=f"task-{task}/player-v1",
        staleness=1.0,
        tokens=6,
        basis=ScoreBasis(0.1, 4, prompts=4),
    )
    assert (judge.reward, judge.score, judge.tokens, judge.trained) == (0.5, 0.625, 5, True)
    assert opponent_pool == PolicyRow("rivals", ("second",), pool="player") and not opponent_pool.trained
    assert old == PolicyRow("old", ("guest",), frozen="player@0") and not old.trained
    assert (row.reward, row.score) == (0.6, 0.75), "the task's own are those of the first that it trains"


def test_what_a_task_learned_is_asked_of_one_policy(store: Store, database: Path) -> None:
    task, _ = duel(store, database)
    with Reader(database) as reader:
        for policy, reward, score in ((None, 0.6, 0.75), ("player", 0.6, 0.75), ("judge", 0.5, 0.625)):
            (step,) = reader.steps(task, policy=policy)
            assert step.metrics["reward"] == reward and reader.rewards(task, policy=policy) == [reward]
            assert [row.score for row in reader.evals(task, policy=policy)] == [score]
            assert history(reader, task, ["reward"], policy=policy).tracks["reward"].at(1) == reward
            assert metric_samples(reader, task, policy=policy)["reward"].at(1) == reward
        assert evals_made(reader, task, "player") != evals_made(reader, task, "judge")
        assert reader.steps(task, policy="nobody") == [] and reader.evals(task, policy="rivals") == []


def test_the_newest_group_comes_with_its_whole_play(store: Store, database: Path) -> None:
    task, _ = duel(store, database)
    with Reader(database) as reader:
        (own, guest) = reader.newest_group(task)
        assert [row.agent for row in reader.newest_group(task, "judge")] == ["first", "guest"], "it did not speak there"
    assert (own.agent, own.policy, own.speaker) == ("first", "player", "")
    assert (guest.agent, guest.policy, guest.speaker) == ("guest", "player", "old")


def prompt_group(number: int, *episodes: Episode, version: str = "e1") -> Group:
    return Group(number, number, 0, version, episodes, 0)


def test_prompts_are_means_of_their_episodes(store: Store, policy: int, database: Path) -> None:
    ok, bad = Episode(0, "ok", (said("a", 1.0),)), Episode(1, "ok", (said("a", 0.0), said("b", 0.5)))
    failed = Episode(2, "error", (said("a", None),))
    rewritten = Episode(0, "ok", (said("a", 0.25), said("a", 0.25), said("b", 0.75)))
    for split, suite, one in (
        ("eval", "", prompt_group(0, ok, bad, failed)),
        ("eval", "", prompt_group(1, rewritten)),
        ("eval", "", prompt_group(2, failed)),
        ("eval", "other", prompt_group(1, ok)),
        ("test", "", prompt_group(1, ok)),
        ("eval", "", prompt_group(1, ok, version="e2")),
    ):
        store.experience.add_play(split, [PolicyGroup(policy, one, {})], step=4, suite=suite)  # type: ignore[arg-type]
    store.evaluations.add(
        policy, 0, Evaluation(step=4, environment_version="e1", score=0.5, stderr=0.1, n=3, floor=None, metrics={})
    )
    with Reader(database) as reader:
        (row,) = reader.evals(1)
        assert prompt_scores(reader, 1, row) == {0: pytest.approx((1.0 + 0.25) / 2), 1: 0.5}


def test_pairs_of_training_and_of_held_out_plays(store: Store, database: Path) -> None:
    task, _ = duel(store, database)
    with Reader(database) as reader:
        found = matchups(reader, task)
    assert [pair for pair in found if pair.who == "player"] == [
        Matchup("player", 1, "judge", 2, 2, 1.0, 1.0),
        Matchup("player", 1, "old", 0, 1, 0.5, 0.25),
        Matchup("player", 1, "player@0", 0, 1, 1.0, 1.0),
        Matchup("player", 1, "rivals", 3, 2, 1.0, 1.0),
    ]
    assert Matchup("judge", 2, "rivals", 3, 2, 1.25, 0.8125) in found
    assert Matchup("rivals", 3, "player", 1, 2, 1.0, 1.0) in found


def test_the_agents_of_one_side_count_as_one(store: Store, policy: int, database: Path) -> None:
    """Two agents of the policy are paid 1 and 0.5; what was not paid counts for nobody."""
    ours = (said("first", 1.0, 4), said("second", 0.5, 4))
    unpaid = (said("first", None, 4), said("second", None, 4))
    theirs = ((said("third", 0.0, 2),), (said("third", 0.25, 2),))
    store.experience.add_play("train", [part(policy, 0, 4, ours, unpaid)], [beside("17@2", *theirs)])
    with Reader(database) as reader:
        assert matchups(reader, 1) == [
            Matchup("17@2", 2, "policy", 4, 2, 0.25, 0.0625),
            Matchup("policy", 4, "17@2", 2, 1, 0.75, 0.5625),
        ]


NAMES = count()
"""No two versions have the same name."""
COUNTS = st.dictionaries(st.sampled_from(("tokens", "lost", "errors", "reward")), st.integers(0, 99).map(float))


@pytest.fixture
def reader(store: Store, database: Path) -> Iterator[Reader]:
    with Reader(database) as reader:
        yield reader


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(COUNTS | st.integers(-1, 8), max_size=12))
def test_a_sum_is_that_of_all_steps(
    store: Store, policy: int, reader: Reader, database: Path, moves: list[dict[str, float] | int]
) -> None:
    """A move commits a step with these metrics, or takes steps above a number back."""
    other = store.versions.policy(1, "other", {})
    store.versions.void_after(policy, -1)
    step = 0
    with closing(sqlite3.connect(database)) as connection:
        for move in moves:
            if isinstance(move, int):
                store.versions.void_after(policy, move)
                step = max(0, min(step, move))
            else:
                step += 1
                version = NewVersion(step, f"v{next(NAMES)}", "sum", "path", 9)
                store.versions.commit_step(policy, version, [], 1.0, move)
                store.versions.add_metrics(policy, step, {"publish_seconds": 0.5})
            sums = [
                connection.execute("SELECT total(value) FROM metrics WHERE name = ?", [name]).fetchone()[0]
                for name in ("tokens", "lost", "errors")
            ]
            rows = connection.execute("SELECT id, tokens, lost, errors FROM policies").fetchall()
            assert rows == [(policy, *sums), (other, 0, 0, 0)] and reader.tasks()[0].tokens == sums[0]


TODAY = 1_800_000_000.0


class World:
    """A store, and its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store(path, "tiny")

    def ended(
        self,
        status: EpisodeStatus,
        count: int = 1,
        seconds: float = 0.5,
        version: str = "v1",
        at: float = TODAY,
    ) -> None:
        """Some episodes that ended alike."""
        counts = OutcomeCounts()
        failure = Failure(f"{status} of {version}", "shop.py", 7) if status in ("error", "timeout") else None
        for _ in range(count):
            counts.add("shop/buy", version, EpisodeOutcome(status, seconds=seconds, failure=failure))
        self.store.environments.add_outcomes(counts.take(), at)

    def use(self, now: float = TODAY) -> EnvironmentUse:
        """What a screen reads."""
        with Reader(self.path) as reader:
            return environment_use(reader, now).get("shop/buy", EnvironmentUse())

    def rows(self) -> int:
        """In the table."""
        with closing(sqlite3.connect(self.path)) as connection:
            return int(connection.execute("SELECT count(*) FROM outcomes").fetchone()[0])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "marlaas.db")
    yield world
    world.store.close()


def test_rates_count_episodes_whose_groups_never_closed(world: World) -> None:
    world.ended("ok", 1)
    for _ in range(3):
        world.ended("error", 100)
    world.ended("skip", 99)
    use = world.use()
    assert use.statuses == {"ok": 1, "error": 300, "skip": 99} and use.episodes == 400 and use.failed == 0.75
    assert use.failure is not None and (use.failure.message, use.failure.file, use.failure.line) == (
        "error of v1",
        "shop.py",
        7,
    )


def test_old_minutes_become_hours_and_a_day_is_all_that_is_kept(world: World) -> None:
    for minute in range(0, 26 * 60, 10):
        world.ended("ok", 1, at=TODAY - 60 * minute)
    world.store.environments.thin_outcomes(TODAY)
    world.store.environments.thin_outcomes(TODAY)
    assert world.rows() <= 7 + 5 + 24
    assert world.use().episodes in (6, 7)
    with closing(sqlite3.connect(world.path)) as connection:
        assert connection.execute("SELECT sum(episodes) FROM outcomes").fetchone()[0] in range(24 * 6 - 6, 24 * 6 + 2)


BEGUN = 1_000_000.0
SAMPLE = StageSample("rollout", "core 0", BEGUN, 1.0, 0.5, 3.0, 8.0, 10, 100)


def test_samples_are_put_together_by_the_clock(store: Store, reader: Reader) -> None:
    assert timeline.newest_samples(reader) == (0.0, 0.0)
    store.telemetry.add_stages(
        1, [replace(SAMPLE, begun=BEGUN + n, busy=n / 10, waiting=n, tokens=n) for n in range(5)]
    )
    store.telemetry.add_stages(
        1, [replace(SAMPLE, stage="training", device="core 1"), replace(SAMPLE, stage="something else")]
    )
    assert timeline.newest_samples(reader) == (BEGUN, BEGUN + 1)  # of the one that was written last
    first, training, second, third = timeline.stage_spans(reader, BEGUN, 2)
    assert first == StageSample("rollout", "core 0", BEGUN, 2.0, 0.1, 0.5, 8.0, 20, 1) and training.stage == "training"
    assert (second.begun, second.busy, third.wall) == (BEGUN + 2, 0.5, 1.0) and third.share == 0.4
    assert [span.begun for span in timeline.stage_spans(reader, BEGUN + 4, 2)] == [BEGUN + 4]


def test_totals_join_devices_and_overlapping_samples(store: Store, reader: Reader) -> None:
    second = replace(SAMPLE, device="core 1", waiting=1.0, busy=1.0)
    store.telemetry.add_stages(1, [SAMPLE, second, replace(SAMPLE, begun=BEGUN - 1)])
    both = StageSample("rollout", "core 1", BEGUN, 1.0, 0.75, 4.0, 16.0, 20, 200)
    assert timeline.stage_totals(reader, BEGUN)["rollout"] == both
    store.telemetry.add_stages(1, [replace(SAMPLE, begun=BEGUN + 1, busy=0.25)])
    later = timeline.stage_totals(reader, BEGUN)["rollout"]
    assert (later.wall, later.busy, later.waiting, later.ended) == (2.0, 1.0, 3.5, 30)


def test_turns_a_second_are_those_of_all_samplers_lately(store: Store, reader: Reader) -> None:
    assert timeline.turn_rate(reader) is None
    store.telemetry.add_stages(1, [replace(SAMPLE, begun=BEGUN + second, ended=1000) for second in range(-5, 0)])
    store.telemetry.add_stages(1, [replace(SAMPLE, begun=BEGUN + second, ended=10) for second in range(10)])
    store.telemetry.add_stages(
        1, [replace(SAMPLE, begun=BEGUN + second, ended=30, device="core 1") for second in range(10)]
    )
    store.telemetry.add_stages(1, [replace(SAMPLE, stage="training", begun=BEGUN + 9, ended=500)])
    assert timeline.turn_rate(reader) == pytest.approx(40.0), "ten seconds of two samplers; older ones do not count"
    assert timeline.turn_rate(reader, over=1.0) == pytest.approx(40.0)


def test_the_newest_standings_alone_are_known(store: Store, reader: Reader) -> None:
    store.telemetry.standings({"rollout": [Standing("bio", 3, 0.0), Standing("", 1, 0.0)], "training": []})
    store.telemetry.standings({"rollout": [Standing("lab", 2, 7.5)], "training": [Standing("bio", 0, 1.0)]})
    known = [
        StandingRow(stage="training", tenant="bio", waiting=0, behind=1.0),
        StandingRow(stage="rollout", tenant="lab", waiting=2, behind=7.5),
    ]
    assert timeline.standings(reader) == known
    written = reader.changed()
    store.telemetry.standings({"rollout": [Standing("lab", 2, 7.5)], "training": [Standing("bio", 0, 1.0)]})
    assert reader.changed() == written


def test_tenants_by_what_they_used_and_weigh(store: Store, reader: Reader) -> None:
    assert timeline.tenants_used(reader, today()) == []
    store.tenants.add_use([Usage(1, "rollout", 10, 2.0), Usage(1, "training", 5, 1.0), Usage(1, "environment", 0, 9.0)])
    store.tenants.set("lab", weight=3.0)
    tomorrow = day_of(wall_time() + 86_400)
    assert timeline.tenants_used(reader, today()) == [TenantUse("lab", 2.0, 1.0, 9.0, 15, weight=3.0, share=1.0)]
    assert timeline.tenants_used(reader, tomorrow) == []
    store.tasks.set_state(1, "running")
    assert timeline.tenants_used(reader, tomorrow) == [TenantUse("lab", 0.0, 0.0, weight=3.0)]
