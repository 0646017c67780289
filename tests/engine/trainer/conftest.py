from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    from .tiny_qwen import save_tiny_qwen  # not above: in a Python without PyTorch this file is loaded all the same

    return save_tiny_qwen(Path(tmp_path_factory.mktemp("base")))
