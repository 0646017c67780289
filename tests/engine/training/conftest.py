from pathlib import Path

import hypothesis
import pytest

from .tiny_qwen import save_tiny_qwen

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_qwen(Path(tmp_path_factory.mktemp("base")))
