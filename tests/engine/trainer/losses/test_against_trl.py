"""Our losses beside TRL's own code, of which ``trl_losses.py`` wrote down what it computes.

Equal: ``grpo``, ``dapo``, ``cispo``, ``gspo`` and the advantages, in value and gradient, stale or not, with and without
the KL term. Deliberately different, and shown here: ``dr_grpo`` is a policy gradient with truncated weights, TRL's a
clipped ratio, so that the two agree in the gradient of tokens that TRL does not clip; ``reinforce`` weighs token by
token, TRL's RLOO clips the ratio of a whole sequence, so that the two agree where the tokens are fresh. The KL term is
the plain k3, as with TRL's ``use_bias_correction_kl=False``. ``pytest -m slow`` asks TRL itself again.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import ROOT
from benchmarks.beside_trl.trl_venv import VENV
from marlaas.engine.spec.losses import AdvantageKind, constant_denominator, published
from marlaas.engine.trainer.advantages import group_advantages
from marlaas.engine.trainer.group_pass import PolicyLoss, divisor
from marlaas.engine.trainer.model import TrainedTokens
from marlaas.engine.trainer.protocol import PolicyConfig

FIXTURE = Path(__file__).with_name("trl_losses.json")
REFERENCE: dict[str, Any] = json.loads(FIXTURE.read_text(encoding="utf-8"))
GIVEN = {name: np.array(value) for name, value in REFERENCE["inputs"].items()}
TRAINED = GIVEN["mask"] == 1
EQUAL = [case for case in REFERENCE["cases"] if case["name"] not in ("dr_grpo", "reinforce")]


def case_of(name: str, stale: bool) -> dict[str, Any]:
    (found,) = (c for c in REFERENCE["cases"] if (c["name"], c["stale"], c["kl"]) == (name, stale, 0.0))
    return dict(found)


def ours(name: str, stale: bool, kl: float = 0.0) -> tuple[float, np.ndarray[Any, Any]]:
    """The step's loss and its gradient by the trained tokens' log-probabilities, (N,)."""
    lengths = TRAINED.sum(1)
    trained = TrainedTokens(
        targets=np.zeros(TRAINED.sum(), np.int64),
        behaviour=GIVEN["behaviour" if stale else "logp"][TRAINED],
        advantage=np.repeat(GIVEN[published(name).advantage], lengths),
        sequence=np.repeat(np.arange(len(lengths)), lengths),
        share=np.repeat(1.0 / lengths, lengths),
    )
    config = PolicyConfig(loss=name, kl=kl, denominator=constant_denominator(name, len(lengths), REFERENCE["longest"]))
    loss, logp = PolicyLoss(config), torch.from_numpy(GIVEN["logp"][TRAINED])
    base = torch.from_numpy(GIVEN["base"][TRAINED]) if kl else None
    gradient = loss.gradient(trained, base, logp, torch.zeros_like(logp)).logp
    shared = divisor(config, int(TRAINED.sum()))
    return loss.loss / shared, gradient.numpy() / shared


@pytest.mark.parametrize("case", EQUAL, ids=lambda case: f"{case['name']}, stale {case['stale']}, KL {case['kl']}")
def test_value_and_gradient_are_trls(case: dict[str, Any]) -> None:
    loss, gradient = ours(case["name"], case["stale"], case["kl"])
    assert loss == pytest.approx(case["loss"], rel=1e-9, abs=1e-12)
    assert gradient == pytest.approx(np.array(case["gradient"])[TRAINED], rel=1e-9, abs=1e-12)


def test_the_reference_has_something_to_clip() -> None:
    for name in ("grpo", "dapo", "gspo"):
        fresh, stale = (np.array(case_of(name, way)["gradient"])[TRAINED] == 0 for way in (False, True))
        assert fresh.sum() == 0 < stale.sum() < len(stale)


@pytest.mark.parametrize("kind", ["mean", "standard", "leave_one_out"])
def test_advantages_are_trls(kind: AdvantageKind) -> None:
    groups = GIVEN["rewards"].reshape(-1, REFERENCE["group"])
    assert np.concatenate([group_advantages(list(g), kind) for g in groups]) == pytest.approx(GIVEN[kind], abs=1e-12)


@pytest.mark.parametrize("name", ["dr_grpo", "reinforce"])
def test_on_fresh_tokens_the_policy_gradients_are_trls(name: str) -> None:
    _, gradient = ours(name, stale=False)
    assert gradient == pytest.approx(np.array(case_of(name, stale=False)["gradient"])[TRAINED], abs=1e-12)


def test_dr_grpo_is_trls_where_trl_does_not_clip() -> None:
    _, gradient = ours("dr_grpo", stale=True)
    theirs = np.array(case_of("dr_grpo", stale=True)["gradient"])[TRAINED]
    ratios = np.exp(GIVEN["logp"] - GIVEN["behaviour"])[TRAINED]
    same = (theirs != 0) & (ratios <= 2.0)
    assert gradient[same] == pytest.approx(theirs[same], abs=1e-12)
    clipped = theirs == 0
    assert clipped.any() and (gradient[clipped] != 0).all(), "ours trains on them, with a weight of at most 2"


@pytest.mark.slow
@pytest.mark.skipif(not (VENV / "bin" / "python").exists(), reason="TRL's environment is made by `make bench`")
def test_trl_still_says_so(tmp_path: Path) -> None:
    made = tmp_path / "made.json"
    command = [str(VENV / "bin" / "python"), str(ROOT / REFERENCE["script"]), str(made)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    assert made.read_text(encoding="utf-8") == FIXTURE.read_text(encoding="utf-8")
