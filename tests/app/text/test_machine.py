"""Words about devices, nodes, builds and how fit the machine is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.app.text.machine import (
    DONE,
    FAILED,
    card,
    cards,
    headers,
    held,
    judge,
    llama_note,
    rates,
    remarks,
    row,
    spoken,
    summary,
)
from marlaas.engine.devices.machine import Gpu, Holder, Rates
from marlaas.engine.devices.software import LlamaBuild
from marlaas.engine.store.queries.machine import NodeRow

# Cards in words.

GB = 1_000_000_000


def test_rates() -> None:
    assert rates(Rates(7.2e10, 4.5e9)) == "72 Gflop/s, 4.5 GB/s"
    assert rates(Rates(1.5e11, 1.2e10, 1.1e12)) == "150 Gflop/s (1.1 Tflop/s in bfloat16), 12.0 GB/s"
    assert rates(Rates(7.8e14, 4e12)) == "780.0 Tflop/s, 4.0 TB/s" and rates(None) == ""


@pytest.mark.parametrize(
    ("holders", "told"),
    [
        ((), ""),
        ((Holder(1, "me", GB), Holder(2, "me", GB)), "you 2.0 GB"),
        ((Holder(1, "me", GB, ours=True), Holder(2, "gdm", GB, screen=True)), "this engine 1.0 GB, the screen 1.0 GB"),
        ((Holder(0, "", GB), Holder(3, "an\x1b[2Jna", 0)), "somebody unseen 1.0 GB, anna"),
        (tuple(Holder(n, f"a{n}", GB) for n in range(5)), "a0 1.0 GB, a1 1.0 GB, a2 1.0 GB, 2 more"),
    ],
)
def test_holders(holders: tuple[Holder, ...], told: str) -> None:
    assert held(holders, "me") == told


def test_a_card() -> None:
    found = Gpu(0, "GPU-0", "H\x1b[2J", "cuda", 80 * GB, 79 * GB, mode="exclusive", rates=Rates(1e15, 1e12))
    assert card(found, "me") == "H · 79.0 GB of 80.0 GB free · 1000.0 Tflop/s, 1.0 TB/s · one process at a time"


# Nodes in words.

ADA = NodeRow(
    *("a1", "ada", "10.0.0.5", True, True, False, "", 16, 10**10),
    *(("gpu 0 H1",), ("gpu 1 is left alone: bob holds it.",), 0.25, "Python 3.12.3", ("rollout", "training"), 5.0),
)


def test_a_row_has_a_cell_for_each_heading() -> None:
    for known in (True, False):
        for node in (ADA, replace(ADA, cores=0), replace(ADA, alive=False)):
            assert len(row(node, known)) == len(headers(known))
    assert row(ADA, True) == ("ada (here)", "10.0.0.5", "ready", "16", "10.0 GB", "1 of 2", "rollout, training")


@pytest.mark.parametrize(
    ("used", "left", "text"), [((), (), ""), (("a", "b"), (), "2"), (("a",), ("b", "c"), "1 of 3")]
)
def test_cards_are_counted(used: tuple[str, ...], left: tuple[str, ...], text: str) -> None:
    assert cards(replace(ADA, cards=used, left_out=left)) == text


def test_what_is_wrong_with_a_node_is_said() -> None:
    assert list(remarks(ADA)) == ["ada: gpu 1 is left alone: bob holds it."]
    wrong = replace(ADA, left_out=(), refused="torch is older.", clock=-600.0)
    assert [text.partition(":")[0] for text in remarks(wrong)] == [
        "ada is not used",
        "The clock of ada is 10 minutes behind this machine's",
    ]


def test_a_summary_counts_what_is_not_ready() -> None:
    assert summary([ADA]) == "1 node"
    rest = [replace(ADA, draining=True), replace(ADA, alive=False), replace(ADA, refused="x")]
    assert summary([ADA, *rest]) == "4 nodes, 1 draining, 1 refused, 1 gone"


# The quiet line about llama.cpp: how long it takes, that it is there, or why not and where the log is.

BROKEN = LlamaBuild("failed", 8.0, 1000.0, "There is no C++ compiler.", "/src/.venv-llama.log")


@pytest.mark.parametrize(
    ("build", "now", "watched", "said"),
    [
        (None, 1000.0, False, ""),
        (LlamaBuild("compiling", 130.4), 1000.0, False, "compiling llama.cpp in the background, 2 min 10 s"),
        (LlamaBuild("done", 312.0, 1000.0), 1010.0, True, "llama.cpp is compiled, after 5 min 12 s"),
        (LlamaBuild("done", 312.0, 1000.0), 1000.0 + DONE, True, ""),
        (LlamaBuild("done", 312.0, 1000.0), 1010.0, False, ""),
        (BROKEN, 1000.0 + FAILED + 1, True, ""),
        (
            LlamaBuild("failed", 0.0, 0.0, "it was interrupted"),
            9e9,
            False,
            "llama.cpp could not be compiled: it was",
        ),
    ],
)
def test_the_line(build: LlamaBuild | None, now: float, watched: bool, said: str) -> None:
    found = llama_note(build, now, watched)
    assert found.startswith(said) if said else found == ""


def test_a_failure_says_why_and_where_the_log_is() -> None:
    said = llama_note(BROKEN, 1010.0, False)
    assert said == "llama.cpp could not be compiled (log /src/.venv-llama.log): There is no C++ compiler."


# What a step takes, in the words of someone who plans an evening around it.


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 seconds"),
        (0.0312, "0.031 seconds"),
        (0.999, "1 second"),
        (59, "59 seconds"),
        (89, "89 seconds"),
        (95, "1.6 minutes"),
        (540, "9 minutes"),
        (32400, "9 hours"),
        (200_000, "2.3 days"),
        (1e7, "120 days"),
    ],
)
def test_times_have_two_figures_and_one_unit(seconds: float, said: str) -> None:
    assert spoken(seconds) == said


def test_a_slow_machine_is_told_what_a_night_brings() -> None:
    verdict = judge(540, 60)
    assert verdict.word == "slow"
    assert "about 9 minutes a step on this CPU: 9 hours for 60." in verdict.text


@given(st.floats(0, 1e8), st.floats(0, 1e8))
def test_a_slower_step_is_never_judged_better(one: float, other: float) -> None:
    order = ("fit", "slow", "unfit")
    one, other = sorted((one, other))
    assert order.index(judge(one, 60).word) <= order.index(judge(other, 60).word)
