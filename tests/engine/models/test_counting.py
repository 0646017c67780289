"""Parameters are counted without numpy, and as the check of a base counts them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.models.find import load_base
from marlaas.engine.models.weights import count_parameters, parameters
from tools.random_base.make import make_base


def test_the_shipped_base() -> None:
    assert count_parameters("tiny") == parameters(load_base("tiny"))


@pytest.mark.parametrize("tied", [True, False])
def test_other_bases(tmp_path: Path, tied: bool) -> None:
    make_base(tmp_path / "base", tied=tied, rows=1500)
    assert count_parameters(tmp_path / "base") == parameters(load_base(tmp_path / "base"))


@pytest.mark.parametrize("damage", [b"", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0[]", b'\x08\0\0\0\0\0\0\0{"a": 1}'])
def test_damaged_weights_are_said(tmp_path: Path, damage: bytes) -> None:
    folder = Path(shutil.copytree(TINY_BASE, tmp_path / "base"))
    (folder / "model.safetensors").write_bytes(damage)
    with pytest.raises(BaseModelError, match="cannot be read"):
        count_parameters(folder)


def test_it_loads_no_numpy() -> None:
    code = (
        "import sys; from marlaas.engine.models.weights import count_parameters as c; c('tiny');"
        "print('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
