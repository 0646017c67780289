"""Datasets of the real reasoning-gym: by a file alone, with the facts about their items and scorers handled."""

from __future__ import annotations

import re

import pytest

from marlaas.engine.environments.conformance.check import Scope, check
from marlaas.plugins.messages import Ask

from .conftest import PATIENCE, PublishedVersions

pytestmark = [pytest.mark.libraries, pytest.mark.processes, pytest.mark.timeout(PATIENCE)]

SUMS = """
adapter = "reasoning_gym"
dataset = "chain_sum"

[args]
max_terms = 2
max_digits = 3
"""
ONE_LINE = """
# /// script
# dependencies = ["reasoning-gym==0.1.25"]
# ///
from marlaas.plugins.adapters import reasoning_gym

chain = reasoning_gym("chain_sum", min_terms=2, prompt=lambda question: question.partition(": ")[2].replace(" ", ""))
"""
RAISING = ("boxnet", "game_of_life", "prime_factorization")
"""Their scorers raise on replies that are JSON, but no answers."""
MADE_AT_ONCE = ("acre", "gsm_symbolic", "list_functions", "word_ladder")
ENDLESS = """
adapter = "reasoning_gym"
dataset = "base_conversion"

[args]
min_base = 5
max_base = 5
"""


def many(*datasets: str) -> str:
    return "".join(f'[[environments]]\nadapter = "reasoning_gym"\ndataset = "{dataset}"\n' for dataset in datasets)


def adds(ask: Ask) -> str:
    """Solves a chain of sums."""
    terms = re.search(r"[-+0-9 ]+(?= =|=)", ask.messages[-1].content)
    assert terms is not None
    return str(eval(re.sub(r"\b0+(?=\d)", "", terms[0])))


async def test_a_file_alone(published: PublishedVersions) -> None:
    published.save("sums.toml", SUMS)
    published.save("line.py", ONE_LINE)
    assert await published.start() == {"sums": None, "line": None}

    outcome = await published.episode("sums/chain_sum", adds)
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": 1.0}), outcome.failure
    outcome = await published.episode("sums/chain_sum", lambda ask: f"Let me see.\n<answer>{adds(ask)}</answer>")
    assert outcome.rewards == {"agent": 1.0}
    assert (await published.episode("sums/chain_sum", lambda ask: "no")).rewards == {"agent": 0.0}
    outcome = await published.episode("line/chain_sum", adds, max_terms=2, max_digits=1)
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": 1.0}), outcome.failure

    info = published.service.resolve("sums/chain_sum")
    parameters = {parameter.name: parameter.default for parameter in info.parameters}
    assert parameters == {
        "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 3, "allow_negation": False,
    }  # fmt: skip
    train, held_out = [await published.prompts("sums/chain_sum", split, 64) for split in ("train", "eval")]
    assert len(train) > 60 and len(held_out) > 60
    assert await published.prompts("sums/chain_sum", "eval", 64) == held_out


async def test_datasets_with_defects(published: PublishedVersions) -> None:
    published.save("raising.toml", many(*RAISING))
    published.save("atonce.toml", many(*MADE_AT_ONCE))
    published.save("endless.toml", ENDLESS)
    failures = await published.start()
    endless = failures.pop("endless")
    assert endless is not None and "took longer than 10 s" in endless.message
    assert set(failures.values()) == {None}
    for dataset in RAISING:
        outcome = await published.episode(f"raising/{dataset}", lambda ask: '{"a": 1}')
        assert (outcome.status, outcome.rewards) == ("ok", {"agent": 0.0}), (dataset, outcome.failure)
        assert outcome.parts == {"scorer_raised": 1.0}, dataset
    for dataset in MADE_AT_ONCE:
        outcome = await published.episode(f"atonce/{dataset}", lambda ask: "junk")
        assert outcome.status == "ok", (dataset, outcome.failure)
        train, held_out = [await published.prompts(f"atonce/{dataset}", split, 16) for split in ("train", "eval")]
        assert not train & held_out, dataset


async def test_known_defects_are_found(published: PublishedVersions) -> None:
    published.save("defects.toml", many("coin_flip", "game_of_life_halting"))
    assert await published.start() == {"defects": None}
    for dataset in ("coin_flip", "game_of_life_halting"):
        findings = await check(published.service, f"defects/{dataset}", {}, Scope(32))
        baselines = [finding for finding in findings if finding.check == "baseline"]
        assert [finding.level for finding in baselines] == ["error"], findings
