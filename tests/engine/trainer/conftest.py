import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def single_thread() -> None:
    """Threads that wait for one another cost more than they give, for models of this size."""
    if torch := sys.modules.get("torch"):  # not imported: in a Python without PyTorch this file is loaded all the same
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    from .tiny_qwen import save_tiny_qwen

    return save_tiny_qwen(Path(tmp_path_factory.mktemp("base")))
