from pathlib import Path

import pytest

from marlaas.engine.models.find import BaseModel
from marlaas.engine.rollout.renderer import Renderer
from tools.random_base.make import make_base

from .contract.asking import State
from .random_base import write_adapter, write_base
from .talking import DEEP, FAMILIES, write_template

RANKS = (4, 16, 3, 9)
"""Of adapters by their seed: samplers hold unequal ones beside each other."""


@pytest.fixture
def base(tmp_path: Path) -> BaseModel:
    return write_base(tmp_path / "base")


@pytest.fixture
def state(tmp_path: Path, base: BaseModel) -> State:
    def write(seed: int) -> Path:
        return write_adapter(tmp_path / f"adapter-{seed}", base, seed, rank=RANKS[seed % len(RANKS)])

    return write


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small bases of each family."""
    return {name: make_base(tmp_path_factory.mktemp(name), name, rows=1500).path for name in FAMILIES}


@pytest.fixture(scope="session")
def families(folders: dict[str, Path]) -> dict[str, Renderer]:
    """Their renderers."""
    return {name: Renderer(folder) for name, folder in folders.items()}


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """One whose template begins every thought itself."""
    folder = make_base(tmp_path_factory.mktemp("deep"), "qwen3", rows=1500).path
    write_template(folder, DEEP, bos_token={"content": "<|endoftext|>"})
    return Renderer(folder)
