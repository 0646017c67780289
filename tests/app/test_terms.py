"""The catalogue has everything that is recorded, each under one name, and what it advises exists."""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
from dataclasses import fields, replace
from pathlib import Path

import pytest

from marlaas.app.cli.main import VERBS, build_parser
from marlaas.app.text.format import cells
from marlaas.app.text.metrics import words
from marlaas.app.text.terms import (
    TERMS,
    find_term,
    new_key,
    search,
    with_new_keys,
    with_new_names,
)
from marlaas.engine.environments.protocol import DataFacts
from marlaas.engine.home.settings import Settings
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.fields import spec_fields
from marlaas.engine.spec.task import (
    EvalSpec,
    NamedPolicySpec,
    PolicySpec,
    SamplingSpec,
    SuiteSpec,
    TaskSpec,
    TrainSpec,
)
from marlaas.engine.store.queries.machine import StageSample, StandingRow, TaskUse, TenantUse
from marlaas.engine.store.rows import EvalRow, WorkerRow, stale_age
from tests.engine.queue.scheduler.world import World

ROOT = Path(__file__).resolve().parents[2]

METRICS = {term.recorded: term for term in TERMS if term.kind == "metric"}

NO_FIGURES = {
    *("step", "created", "environment_version", "series", "suite", "split", "metrics"),  # of an evaluation
    *("stage", "device", "begun", "id", "tenant", "name", "state", "pid", "started", "updated"),  # of the machine
}
"""Columns that say what a figure is of."""


async def test_every_metric_that_steps_record_is_known(tmp_path: Path) -> None:
    """A whole run, with rows by difficulty and redundant members; then the form that a name has in a mixture."""
    train = TrainSpec(groups_per_step=2, group_size=3, redundant=1, max_staleness=1, kl=0.01)
    train = replace(train, sampling="difficulty", dynamic_sampling=True)
    sampling, evaluated = SamplingSpec(max_tokens=3, max_episode_tokens=9), EvalSpec(every=2, prompts=3)
    spec = TaskSpec("lab", "sums", "sums", 6, policy=PolicySpec(rank=1), train=train, sampling=sampling, eval=evaluated)
    world = World(tmp_path, spec)
    world.environments.data = DataFacts(train=10, held_out=4)
    world.environments.score = lambda spec: float(spec.member % 2)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    recorded = {row["name"] for row in world.query("SELECT DISTINCT name FROM metrics")}
    assert {"gap_mean", "dropped", "prompts_solved", "publish_wait_seconds", "weight_ess", "lost"} <= recorded
    assert {name for name in recorded if stale_age(name) is None} <= METRICS.keys()
    assert METRICS.keys() - recorded <= {"gap_followed", "given_up", "dropped_time", "dropped_length", "margin"} | {
        *("dropped_reward", "slower_reward"),
    }, "what this run cannot have, as nothing moves and nothing takes time"
    assert words("sums: epoch").title == "sums: epoch" and find_term("sums: prompts_solved").name == "solved"


@pytest.mark.parametrize("row", [EvalRow, StageSample, TaskUse, TenantUse, StandingRow, WorkerRow])
def test_every_figure_of_evaluations_and_the_machine_is_known(row: type) -> None:
    for field in fields(row):
        if field.name not in NO_FIGURES:
            assert find_term(field.name).line, field.name


def test_a_thing_has_one_name() -> None:
    names = [term.name.casefold() for term in TERMS]
    assert len(set(names)) == len(names)
    keys = [key for term in TERMS if term.kind in ("metric", "score") for key in (term.key, *term.old) if key]
    assert len(set(keys)) == len(keys)
    for term in TERMS:
        assert find_term(term.name) is term, "no other term has this name"


def test_an_entry_is_whole_and_short() -> None:
    for term in TERMS:
        for text in (term.line, term.healthy, term.otherwise):
            assert not text.endswith(".") and text == " ".join(text.split()), text
        assert 0 < len(term.line) <= 130 and (term.kind not in ("metric", "score") or (term.healthy and term.otherwise))
        assert term.kind != "metric" or (cells(term.name) <= 14 and term.source), "lists have so much room"
        for path in re.findall(r"(?:engine|docs|plugins|app)/[\w./-]+", term.source * ("://" not in term.source)):
            assert (ROOT / path).exists(), "a source in this repository exists"


def test_what_is_advised_exists() -> None:
    """Commands are understood, and keys are those of a task file or of the settings."""
    keys = {
        field.name
        for field in (
            *spec_fields(),
            *spec_fields(NamedPolicySpec, "policies.NAME."),
            *spec_fields(SuiteSpec, "eval.suite."),
        )
    }
    tables = (getattr(Settings(), one.name) for one in fields(Settings))
    keys |= {key for table in tables for key in getattr(table, "__dataclass_fields__", ())}
    keys |= {"on_error", "length", "f32", "gspo", "dr_grpo"}  # of environments, of losses, of precisions
    for term in TERMS:
        for code in re.findall(r"`([^`]+)`", f"{term.line} {term.healthy} {term.otherwise} {term.formula}"):
            if code.startswith("marlaas "):
                verb, *arguments = shlex.split(code.replace("NAME", "sums").replace(" W", " 2"))[1:]
                if arguments:
                    assert isinstance(build_parser().parse_args([verb, *arguments]), argparse.Namespace), code
                assert any(verb in verbs for verbs in VERBS.values()), code
            else:
                assert code.partition(" = ")[0].strip('"') in keys | {"mask", "penalty"}, f"{term.name}: {code}"


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("gap_mean", "gap"),
        ("log-p gap", "gap"),
        ("Log P Gap", "gap"),
        ("weight_ess", "ESS"),
        ("floor", "baseline"),
        ("kl", "KL"),
        ("policies", "policy"),
        ("staleness_12", "staleness"),
        ("held out", "held-out"),
        ("pass_at", "pass@k"),
        ("±", "standard error"),
        ("errors", "failed"),
    ],
)
def test_a_term_is_found_under_each_of_its_names(typed: str, name: str) -> None:
    assert find_term(typed).name == name


def test_json_has_todays_names_beside_the_old_ones() -> None:
    assert with_new_keys({"gap_mean": 0.1, "reward": 1.0, "sums: prompts_solved": 2.0}) == {
        "gap": 0.1,
        "gap_mean": 0.1,
        "reward": 1.0,
        "sums: solved": 2.0,
        "sums: prompts_solved": 2.0,
    }
    assert (new_key("gap_max"), new_key("staleness_1"), new_key("mine")) == ("largest_gap", "staleness_1", "mine")
    row = {"id": 3, "floor": 0.1, "basis": {"n": 4}, "eval": [{"failures": 1, "metrics": {"floor": 2.0}}]}
    assert with_new_names(row) == {
        **{"id": 3, "baseline": 0.1, "floor": 0.1},
        "basis": {"episodes": 4, "n": 4},
        "eval": [{"failed": 1, "failures": 1, "metrics": {"floor": 2.0}}],
    }, "what an environment logs keeps its name"


def test_a_search_looks_at_names_and_lines() -> None:
    assert search("") == TERMS
    assert search("gap")[0].name == "gap" and {"largest gap", "drift"} <= {
        term.name for term in (*search("gap"), *search("sampled"))
    }
    assert search("optimizer step")[0].name == "step"
    assert search("no such thing at all") == ()
