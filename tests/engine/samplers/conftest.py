"""The fixtures of rollouts' tests serve samplers, too; what is compiled, is compiled once for all."""

from pathlib import Path

import pytest

from marlaas.engine.samplers.torch.kernel.library import Library, compiled, compiler

from ..rollout.conftest import base as base, state as state


@pytest.fixture(scope="session")
def compiled_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with what is compiled for this processor, as a new home of this user has it."""
    if not compiler():
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("compiled")
    compiled(folder)
    return folder


@pytest.fixture(scope="session")
def library(compiled_files: Path) -> Library:
    return compiled(compiled_files)[1]
