"""Which prompts are held out, what their rewards come to, and when scores end a task."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.baselines import ConstantBaselines
from marlaas.engine.environments.protocol import Answering, EpisodeOutcome, EpisodeSpec
from marlaas.engine.errors import Fruitless
from marlaas.engine.machine.services import Services
from marlaas.engine.models.find import load_base
from marlaas.engine.models.memory import Wanted
from marlaas.engine.models.weights import parameters
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.rollout.conversation import overfull
from marlaas.engine.rollout.programs import canned
from marlaas.engine.spec.task import EvalSpec
from marlaas.engine.train.environment import series_of
from marlaas.engine.train.held_out import (
    AT_ONCE,
    DRAWS,
    FEWEST,
    LARGEST_LOSS,
    TRIES,
    HeldOutEpisode,
    HeldOutPrompts,
    Sampled,
    constant_baseline,
    divide,
    pass_at,
    reached,
    remark,
    score,
    stalled,
)
from marlaas.engine.train.selfplay import Match
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Answer, Ask, Fork, Message

from ...seldom import seldom
from ..queue.scheduler.world import World
from .test_learning import SPEC

DIED = EpisodeOutcome("error", failure=Failure("the process was killed"), died=True)
RAISED = EpisodeOutcome("error", failure=Failure("no such word", "env.py", 7))


def world_of(root: Path, unseen: Callable[[EpisodeSpec], EpisodeOutcome | None]) -> World:
    world = World(root, replace(SPEC, steps=2, eval=EvalSpec(every=0, prompts=64)))
    world.environments.unseen = unseen
    return world


async def ends(world: World) -> Ending:
    return await asyncio.wait_for(world.go(), 60)


@pytest.mark.parametrize("lost", [DIED, seldom(EpisodeOutcome("timeout")), seldom(replace(RAISED, overloaded=True))])
async def test_an_incomplete_set_is_never_kept(tmp_path: Path, lost: EpisodeOutcome) -> None:
    world = world_of(tmp_path, lambda spec: lost if spec.index % 10 == 3 else None)
    ending = await ends(world)
    assert (ending.state, ending.reason.code) == ("queued", "blocked")
    assert f"10 of {64 + DRAWS} instances of sums could not be seen in {TRIES} tries" in ending.reason.words
    assert not world.query("SELECT 1 FROM groups"), "nothing was trained on"
    world.environments.unseen = lambda spec: None
    assert await ends(world) == Ending("done"), "it goes on by itself"


async def test_what_failed_once_is_looked_at_again(tmp_path: Path) -> None:
    looked = Counter[tuple[str, int]]()

    def unseen(spec: EpisodeSpec) -> EpisodeOutcome | None:
        looked[spec.split, spec.index] += 1
        return DIED if looked[spec.split, spec.index] < TRIES else None

    world = world_of(tmp_path, unseen)
    assert await ends(world) == Ending("done")
    assert set(looked.values()) == {TRIES}
    assert world.query("SELECT DISTINCT prompts FROM evals") == [{"prompts": 64}]


async def test_where_nothing_is_seen_the_rest_is_not_looked_at(tmp_path: Path) -> None:
    """A program that takes seconds to fail does not keep its task waiting for as long as all instances take."""
    looked = Counter[tuple[str, int]]()

    def unseen(spec: EpisodeSpec) -> EpisodeOutcome:
        looked[spec.split, spec.index] += 1
        return EpisodeOutcome("error", failure=Failure("it ended with exit code 1"))

    world = world_of(tmp_path, unseen)
    ending = await ends(world)
    assert ending.reason.code == "blocked" and "it ended with exit code 1" in ending.reason.words
    assert len(looked) <= AT_ONCE < 64 + DRAWS and max(looked.values()) == TRIES


async def test_what_always_fails_by_itself_is_a_failure_of_its_own(tmp_path: Path) -> None:
    """It has no prompt that training could meet; its evaluation fails, and counts as that."""
    world = world_of(tmp_path, lambda spec: RAISED if spec.index == 3 else None)
    world.environments.failing = lambda spec: spec.index == 3
    assert await ends(world) == Ending("done")
    for row in world.query("SELECT n, failures FROM evals"):
        assert row == {"n": 63, "failures": 1}


BARE = SimpleNamespace(renderer=SimpleNamespace(wanted=None))


async def test_other_rows_under_the_same_code_are_looked_at_anew() -> None:
    """The file that a task names was edited, and so was a comment of its environment: training must not meet the rows
    that are measured now."""

    async def look(lease: Any, spec: EpisodeSpec, opens: object) -> Ask:
        return Ask("agent", (Message("user", f"{lease.digest} {spec.split} {spec.index}"),))

    async def prompt_hash(ask: Ask, room: int) -> bytes:
        return ask.messages[0].content.encode()

    services = SimpleNamespace(
        environments=SimpleNamespace(look=look),
        rollout=SimpleNamespace(prompt_hash=prompt_hash, canned=lambda answer: canned(None, answer), rendering=BARE),
        endpoints={"sampler": SimpleNamespace(context=64)},
    )
    held_out = HeldOutPrompts(cast(Services, services), 1, 16)
    for digest in ("before", "after", "before"):
        lease: Any = SimpleNamespace(
            environment="a/a",
            code="c",
            digest=digest,
            config={},
            declared=SimpleNamespace(rows=True),
            cut=False,
        )
        assert await held_out.of(lease) == {f"{digest} eval {index}".encode() for index in range(16)}


async def test_prompts_without_room_pause_before_a_play() -> None:
    """A program may end in good order after its request was refused, and be paid 0 for ever."""

    async def look(lease: Any, spec: EpisodeSpec, opens: object) -> Ask:
        return Ask("agent", (Message("user", "long"),))

    async def prompt_hash(ask: Ask, room: int) -> bytes:
        raise overfull(900, room)

    services = SimpleNamespace(
        environments=SimpleNamespace(look=look),
        rollout=SimpleNamespace(prompt_hash=prompt_hash, canned=lambda answer: canned(None, answer), rendering=BARE),
        endpoints={"sampler": SimpleNamespace(context=64)},
        store=SimpleNamespace(telemetry=SimpleNamespace(event=lambda *words: None)),
    )
    declared = SimpleNamespace(rows=True)
    lease: Any = SimpleNamespace(environment="a/a", code="c", digest="d", config={}, declared=declared, cut=False)
    says = f"refused in {DRAWS} training instances .*: its first prompt has at least 900 tokens; the context is 64: "
    with pytest.raises(Fruitless, match=says):
        await HeldOutPrompts(cast(Services, services), 1, 16).of(lease)


async def test_what_asks_for_more_room_pauses_before_a_play() -> None:
    base = load_base("tiny")
    renderer = SimpleNamespace(wanted=Wanted(base.config, parameters(base)))
    services = SimpleNamespace(
        rollout=SimpleNamespace(rendering=SimpleNamespace(renderer=renderer)),
        endpoints={"sampler": SimpleNamespace(context=512)},
    )
    lease: Any = SimpleNamespace(environment="a/a", code="c", digest="d", declared=SimpleNamespace(context=800))
    says = "a/a has too little room: it asks for a context of 800 tokens; the context is 512: write `context = 1024`"
    with pytest.raises(Fruitless, match=says):
        await HeldOutPrompts(cast(Services, services), 1, 16).of(lease)


async def test_an_environment_that_never_asks_pauses_before_a_play(tmp_path: Path) -> None:
    silent = EpisodeOutcome("ok", {"agent": 1.0})
    world = world_of(tmp_path, lambda spec: silent)
    world.environments.ended = lambda spec: silent
    ending = await ends(world)
    assert (ending.state, ending.reason.code, ending.again) == ("paused", "itself", False)
    assert ending.reason.words.startswith(f"sums never called `ep.ask` in {DRAWS} training instances")
    assert not world.environments.begun, "not one episode"


@pytest.mark.parametrize("other", [seldom("skip"), "asks"])
async def test_one_that_asks_seldom_is_trained_on(tmp_path: Path, other: str) -> None:
    """Of instances that are only skipped nothing is known of what it asks; of one that asks, enough."""
    ended = EpisodeOutcome("skip") if other == "skip" else EpisodeOutcome("ok", {"agent": 1.0})
    world = world_of(tmp_path, lambda spec: None if other == "asks" and spec.index % 32 == 5 else ended)
    assert (await ends(world)).state == "done"


def prompts(*numbers: int) -> list[bytes]:
    return [bytes([number]) for number in numbers]


def test_ten_rows_are_ten_prompts() -> None:
    found = divide(prompts(*[index % 10 for index in range(64)]), prompts(*range(20, 52)), rows=True)
    assert found.instances == tuple(range(10)) and found.hashes == set(prompts(*range(10)))
    assert found.remark == "Only 10 of 64 held-out prompts differ: each is measured once."


def test_of_a_space_of_ten_half_is_held_out() -> None:
    draw = random.Random(0)
    evaluated, trained = prompts(*draw.choices(range(10), k=64)), prompts(*draw.choices(range(10), k=32))
    found = divide(evaluated, trained, rows=False)
    assert {evaluated[index] for index in found.instances} == found.hashes
    assert len(found.instances) == len(found.hashes) and 4 <= len(found.hashes) <= 6
    assert f"{len(found.hashes)} of its 10 are measured, and kept out of training" in found.remark


def test_a_second_split_counts_what_the_first_has_left() -> None:
    """Of ten prompts five are taken; of the others as many are held out as training can do without."""
    taken = frozenset(prompts(*range(5)))
    found = divide(prompts(*range(10)), prompts(*[5, 6, 7, 8, 9] * 4), rows=False, name="test", taken=taken)
    assert len(found.instances) == len(found.hashes) == 2 and not found.hashes & taken
    assert "2 of its 5 are measured, and kept out of training, which has 3 others" in found.remark


def test_a_game_that_opens_alike_is_measured_on_all() -> None:
    found = divide(prompts(*[1] * 64), prompts(*[1] * 32), rows=False)
    assert found.instances == tuple(range(64)) and not found.hashes
    assert "open with the same prompt. Prompts do not tell one from another, so nothing is held out" in found.remark
    two = divide(prompts(*[1, 2] * 32), prompts(*[1, 2] * 16), rows=False)
    assert two.instances == tuple(range(64)) and "have only 2 different first prompts" in two.remark


@given(
    st.lists(st.none() | st.integers(0, 30).map(lambda number: bytes([number])), min_size=1, max_size=40),
    st.lists(st.integers(0, 30).map(lambda number: bytes([number])), max_size=32),
    st.booleans(),
)
def test_training_keeps_its_share_and_each_prompt_counts_once(
    evaluated: list[bytes | None], trained: list[bytes], rows: bool
) -> None:
    found = divide(evaluated, trained, rows)
    lost = sum(prompt in found.hashes for prompt in trained)
    assert lost <= LARGEST_LOSS * len(trained) and found.instances
    measured = [prompt for index in found.instances if (prompt := evaluated[index]) is not None]
    if found.hashes:
        assert sorted(measured) == sorted(found.hashes), "what is measured is held out, each prompt once"
    elif rows or len({*filter(None, evaluated), *trained}) >= FEWEST:
        assert len(measured) == len(set(measured))
    assert found == divide(evaluated, trained[::-1], rows), "in whatever order training draws"


def rewarded(*rewards: float) -> list[Sampled]:
    return [Sampled((reward,)) for reward in rewards]


def measured(samples: int) -> EvalSpec:
    return EvalSpec(samples=samples, pass_at_least=1.0)


def test_a_score_with_all_that_it_rests_on() -> None:
    found = score([Sampled((1.0, 0.0)), Sampled((1.0, 1.0)), Sampled((0.0, 0.0)), Sampled((0.5, 0.0))], measured(2))
    means = [0.5, 1.0, 0.0, 0.25]
    assert found.score == fmean(means) and found.stderr == pytest.approx(stdev(means) / 2, rel=1e-12)  # rounding
    assert (found.n, found.failures, found.prompts) == (8, 0, 4)
    assert (found.best_of, found.pass_at) == (fmean([1.0, 1.0, 0.0, 0.5]), 0.5)
    alone = score(rewarded(1.0, 0.0), measured(1))
    assert (alone.best_of, alone.pass_at) == (None, None)


def test_samples_of_a_prompt_are_no_independent_measurements() -> None:
    """Eight equal samples of ten prompts are as sure as one of each."""
    once = score(rewarded(*[1.0, 0.0] * 5), measured(1))
    often = score([Sampled((one.rewards[0],) * 8) for one in rewarded(*[1.0, 0.0] * 5)], measured(8))
    assert (once.score, once.stderr) == (often.score, often.stderr) and often.n == 80


@pytest.mark.parametrize(("failed", "is_score"), [(0, True), (6, True), (7, False), (63, False)])
def test_more_than_a_tenth_of_failures_is_no_score(failed: int, is_score: bool) -> None:
    found = score([*rewarded(*[1.0] * (64 - failed)), *[Sampled((), 1)] * failed], measured(1))
    assert (found.score is not None) is is_score and (found.n, found.failures) == (64 - failed, failed)


def test_prompts_with_a_lost_sample_say_nothing_of_pass_and_best() -> None:
    whole = [Sampled((0.0, 1.0))] * 10
    found = score([*whole, Sampled((0.0,), 1)], measured(2))
    assert found.pass_at == 1.0 and found.best_of == 1.0 and found.score == pytest.approx(5 / 11, rel=1e-12)  # rounding


@given(
    st.integers(1, 8).flatmap(lambda n: st.tuples(st.lists(st.booleans(), min_size=n, max_size=n), st.integers(1, n)))
)
def test_pass_at_is_the_mean_over_all_choices(drawn: tuple[list[bool], int]) -> None:
    passed, k = drawn
    mean = fmean(any(chosen) for chosen in combinations(passed, k))
    assert pass_at(len(passed), sum(passed), k) == pytest.approx(mean, abs=1e-12)  # the rounding of 70 summands


AGENTS = ("first", "second")


def asked(agent: str, branch: int = 0, fork: Fork | None = None) -> Ask:
    return Ask(agent, (Message("user", "?"),), branch=branch, fork=fork)


@dataclass
class Duel:
    """Higher numbers win. Stands for the environments and for the rollout; ``failing`` instances have no reward."""

    failing: int = 0
    episodes: int = 0

    async def play(self, _lease: Any, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        self.episodes += 1
        if spec.index >= 4 - self.failing:
            return EpisodeOutcome("error")
        texts = [(await answer(asked(agent))).text for agent in AGENTS]
        said = [int(text) if text.isdigit() else -1 for text in texts]
        rewards = [0.5 if said[0] == said[1] else float(mine == max(said)) for mine in said]
        return EpisodeOutcome("ok", dict(zip(AGENTS, rewards, strict=True)))

    def canned(self, answer: Answer) -> AbstractContextManager[Answering]:
        return canned(None, answer)


def held_out(agents: Mapping[str, str], count: int = 1) -> list[HeldOutEpisode]:
    match = Match(agents, {})
    return [HeldOutEpisode(EpisodeSpec("eval", index, 0, 0), match, cast(Any, None)) for index in range(count)]


async def baseline(duel: Duel, episodes: list[HeldOutEpisode], known: Any = None, **lease: Any) -> float | None:
    baselines = known or ConstantBaselines()
    services = cast(Services, SimpleNamespace(environments=duel, rollout=duel, baselines=baselines))
    facts = dict(environment="duel", environment_version="v1", config={}, cut=False, data=None, digest="") | lease
    return await constant_baseline(services, "player", cast(Any, SimpleNamespace(**facts)), episodes, ["9"])


@pytest.mark.parametrize("agents", [{}, dict.fromkeys(AGENTS, "player")])
async def test_no_model_is_asked(agents: dict[str, str]) -> None:
    assert await baseline(Duel(), held_out(agents)) == 0.5


async def test_where_others_speak_there_is_no_baseline() -> None:
    duel = Duel()
    assert await baseline(duel, held_out(dict(first="player", second="old"))) is None and not duel.episodes


async def test_tasks_on_other_rows_share_no_baseline() -> None:
    """The rows that a task names are no parameter of its environment."""
    baselines, scores = ConstantBaselines(), []
    for path, digest in (("a.jsonl", "d1"), ("b.jsonl", "d1"), ("a.jsonl", "d2"), ("a.jsonl", "d2")):
        duel = Duel()
        await baseline(duel, held_out({}), baselines, data={"path": path}, digest=digest)
        scores.append(duel.episodes)
    assert scores[:3] == [6, 6, 6] and scores[3] == 0, "the same rows are measured once"


async def test_a_text_that_mostly_fails_has_no_baseline() -> None:
    """One success among failures would be a baseline that no policy beats."""
    assert await baseline(Duel(failing=3), held_out({}, 4)) is None
    assert await baseline(Duel(), held_out({}, 4)) == 0.5


TARGET = EvalSpec(target=0.95)
PATIENT = EvalSpec(patience=2)
BOTH = EvalSpec(target=0.95, patience=2)


@pytest.mark.parametrize(
    ("scores", "whether"),
    [({}, False), ({0: 0.99}, False), ({0: 0.1, 10: 0.94}, False), ({10: 0.95}, True), ({10: 0.97, 20: 0.5}, True)],
)
def test_a_trained_version_reaches_the_target(scores: dict[int, float], whether: bool) -> None:
    assert reached(scores, TARGET) is whether
    assert not reached(scores, EvalSpec())


@pytest.mark.parametrize(
    ("scores", "whether"),
    [
        ({}, False),
        ({0: 0.5, 10: 0.4}, False),
        ({0: 0.5, 10: 0.4, 20: 0.5}, True),  # as good is not better
        ({0: 0.1, 10: 0.4, 20: 0.3}, False),
        ({30: 0.2, 10: 0.4, 20: 0.3, 0: 0.1}, True),
        ({0: 0.1, 10: 0.4, 20: 0.3, 30: 0.41}, False),
    ],
)
def test_patience_counts_evaluations_since_the_best(scores: dict[int, float], whether: bool) -> None:
    assert stalled(scores, PATIENT) is whether
    assert not stalled(scores, EvalSpec())


@pytest.mark.parametrize(
    ("scores", "spec", "early", "says"),
    [
        ({}, BOTH, True, ""),
        ({0: 0.1, 40: 0.83}, EvalSpec(), False, ""),
        ({0: 0.1, 40: 0.96}, TARGET, True, ""),
        ({0: 0.1, 40: 0.8333, 60: 0.5}, TARGET, False, "Target 0.95 was not reached; best was 0.833 at step 40."),
        (
            {0: 0.1, 10: 0.5, 20: 0.4, 30: 0.5},
            PATIENT,
            True,
            "The held-out score did not rise in 2 evaluations; best was 0.5 at step 10.",
        ),
        ({0: 0.1, 10: 0.5, 20: 0.4, 30: 0.5}, PATIENT, False, ""),  # it ended with its last step, not for that
        (
            {0: 0.1, 10: 0.5, 20: 0.4, 30: 0.5},
            BOTH,
            True,
            "The held-out score did not rise in 2 evaluations and target 0.95 was not reached; best was 0.5 at step"
            " 10.",
        ),
    ],
)
def test_what_is_said_at_the_end(scores: dict[int, float], spec: EvalSpec, early: bool, says: str) -> None:
    assert remark(scores, spec, early) == says


def lease(**changed: object) -> Any:
    given = {"environment": "a/a", "environment_version": "v1", "code": "c", "config": {"digits": 1}, "digest": "d"}
    return SimpleNamespace(**(given | changed))


@pytest.mark.parametrize("change", [{"code": "e"}, {"config": {"digits": 2}}, {"digest": "e"}, {"environment": "b/a"}])
def test_what_is_played_decides(change: dict[str, object]) -> None:
    assert series_of(lease(**change), EvalSpec()) != series_of(lease(), EvalSpec())


@pytest.mark.parametrize(
    "key", ["prompts", "samples", "temperature", "top_p", "top_k", "min_p", "pass_at_least", "agents", "rotate"]
)
def test_how_it_is_measured_decides(key: str) -> None:
    values: dict[str, Any] = {"agents": {"a": "base"}, "rotate": True, "top_k": 3, "prompts": 3, "samples": 3}
    assert series_of(lease(), EvalSpec(**{key: values.get(key, 0.5)})) != series_of(lease(), EvalSpec())


def test_neither_the_version_nor_when_it_is_measured_does() -> None:
    later = EvalSpec(every=3, target=0.5, patience=2)
    assert series_of(lease(environment_version="v2"), later) == series_of(lease(), EvalSpec())
