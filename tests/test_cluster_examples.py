"""The examples for clusters that other programs start: they start Ray as `marlaas cluster join` does."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from marlaas.engine.home.settings import ClusterSettings
from marlaas.engine.machine.cluster.joining import FIXED, ray_flags

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "cluster"
SLURM = EXAMPLES / "slurm.sbatch"
SKYPILOT = EXAMPLES / "skypilot.yaml"


def skypilot(key: str) -> str:
    """The commands under a key of the file for SkyPilot."""
    (block,) = re.findall(rf"(?m)^{key}: \|\n((?:  .*\n|\n)+)", SKYPILOT.read_text(encoding="utf-8"))
    return str(block)


@pytest.mark.parametrize("text", [SLURM.read_text(encoding="utf-8"), skypilot("setup"), skypilot("run")])
def test_bash_understands_them(text: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    done = subprocess.run([bash, "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_slurm_starts_ray_on_the_same_conditions() -> None:
    text = SLURM.read_text(encoding="utf-8")
    exported = dict(re.findall(r"(?m)^export (RAY_\w+)=(\S+)$", text))
    assert {name: exported.get(name) for name in FIXED} == FIXED
    assert "RAY_AUTH_MODE=token" in text
    options = set(re.findall(r"--[a-z-]+=\S+|--[a-z-]+", text.partition("ray symmetric-run")[2]))
    assert set(ray_flags(ClusterSettings())) <= options
