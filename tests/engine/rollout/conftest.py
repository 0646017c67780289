from pathlib import Path

import pytest

from marlaas.engine.base.model import BaseModel

from .contract import State
from .random_base import write_adapter, write_base


@pytest.fixture
def base(tmp_path: Path) -> BaseModel:
    return write_base(tmp_path / "base")


@pytest.fixture
def state(tmp_path: Path, base: BaseModel) -> State:
    def write(seed: int) -> Path:
        return write_adapter(tmp_path / f"adapter-{seed}", base, seed)

    return write
