from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.engine.trainer.tiny_qwen import save_tiny_qwen  # not above: each process of the suite loads this file

    return save_tiny_qwen(Path(tmp_path_factory.mktemp("base")))
