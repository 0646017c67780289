"""A base is compared with transformers: what agrees, what does not, at which length, and what cannot be compared."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlaas.app.operations.bases import list_bases
from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.paths import TINY_BASE, Home
from marlaas.engine.machine import reference
from marlaas.engine.machine.reference import (
    check_comparison,
    compare_base,
    compare_here,
    compare_once,
    compared_before,
    spoken_comparison,
)
from marlaas.engine.models import reference as results, rope, tensors
from marlaas.engine.models.find import load_base
from marlaas.engine.models.reference import AGREES, DISAGREES, UNVERIFIED, comparison_of, is_unverified, keep_comparison
from marlaas.engine.store.rows import EngineRow
from tools.random_base.make import make_base


def test_the_shipped_base_carries_its_result() -> None:
    """By checksum. After a change of its files, ``python -m marlaas.engine.machine.reference 0 FOLDER`` writes it."""
    result = comparison_of(load_base("tiny"), Path("nowhere"))
    assert result is not None and result.state == AGREES and result.gap < 1e-3 and result.conversations == 6


def test_a_copy_of_its_files_is_known_and_a_change_is_not(tmp_path: Path) -> None:
    for path in TINY_BASE.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert comparison_of(load_base(tmp_path), tmp_path) is not None
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert comparison_of(load_base(tmp_path), tmp_path) is None


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    changes = {"max_position_embeddings": 3072}
    return make_base(tmp_path_factory.mktemp("base"), "qwen3", rows=1600, changes=changes)


def test_agreement_is_kept_for_the_installed_versions(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = compare_here(base)
    assert (result.state, result.tokens, result.conversations) == (AGREES, 3072, 12)
    assert "3,072 tokens differ by" in spoken_comparison(result)
    check_comparison(base, result)
    keep_comparison(base, tmp_path, result)
    assert comparison_of(base, tmp_path) is not None and not is_unverified(tmp_path, base.fingerprint)
    monkeypatch.setattr(results, "_versions", lambda: "others")
    assert comparison_of(base, tmp_path) is None


def test_a_difference_that_shows_far_into_a_text(base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequencies that are 0.002 % too high: within rounding for some hundred tokens, and wrong at 3,000."""
    monkeypatch.setattr(tensors, "frequencies", lambda config: rope.frequencies(config) * 1.00002)
    monkeypatch.setattr(reference, "CLOSE", 0.005)
    result = compare_here(base)
    assert result.state == DISAGREES
    first = int(result.words.partition("first after ")[2].split()[0].replace(",", ""))
    assert first > 300 and result.words.endswith("tokens of 3,072")
    keep_comparison(base, tmp_path, result)
    with pytest.raises(
        BaseModelError, match=r"otherwise than transformers: log-probabilities of a text differ by up to"
    ):
        asyncio.run(compare_once(base, tmp_path, 0))  # known, so nothing is compared


def test_other_ids_disagree(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from marlaas.engine.rollout.renderer import Renderer

    read = Renderer.open
    monkeypatch.setattr(Renderer, "open", lambda self, *given: [*read(self, *given), 7])
    result = compare_here(base)
    assert result.state == DISAGREES and result.words.startswith("a conversation has other token ids, from token")


def test_what_cannot_be_compared_is_shown_as_unverified(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    base = make_base(tmp_path / "base", "qwen3", rows=1600)
    result = asyncio.run(compare_base(base, home.root, 1 << 20))
    assert result.state == UNVERIFIED and "GB of memory, and 0.001 GB are free" in result.words
    check_comparison(base, result)
    assert is_unverified(home.root, base.fingerprint)
    assert compared_before(base, home.root, 1 << 20) == comparison_of(base, home.root)
    assert compared_before(base, home.root, 8 << 30) is None, "it is compared as soon as there is room"
    home.config.write_text(f'base = "{base.path}"\n')
    shown = {row.reference for row in list_bases(home) if row.path}
    assert shown == {"agrees", "unverified"}
    engine = EngineRow(1, 2, "running", 0.0, 0.0, "org/model", "", unverified=True)
    assert engine.shown_base == "org/model (unverified)"


def test_what_transformers_cannot_load_is_unverified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("no such model")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fail)
    result = compare_here(load_base("tiny"))
    assert result.state == UNVERIFIED and "KeyError: 'no such model'" in result.words


@pytest.mark.slow
def test_in_a_child_process(tmp_path: Path) -> None:
    """The program itself, which imports torch and transformers; every day ``compare_here`` computes the same."""
    base = make_base(tmp_path / "base", "llama3", rows=1600, changes={"max_position_embeddings": 256})
    result = asyncio.run(compare_once(base, tmp_path, 8 << 30))
    assert result.state == AGREES and 0 < result.memory < 2 << 30 and np.isfinite(result.gap)
    assert comparison_of(base, tmp_path) is not None
