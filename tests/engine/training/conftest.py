from pathlib import Path

import pytest

from .tiny_qwen import save_tiny_qwen


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_qwen(Path(tmp_path_factory.mktemp("base")))
