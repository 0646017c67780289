"""A base from a small hub on this machine: whole, cut and completed, and every refusal in one sentence.

In processes of their own: huggingface_hub reads where the hub is when it is imported.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.models.find import cached_bases, find_base, load_base

from .small_hub import COMMIT, small_hub

pytestmark = pytest.mark.timeout(120)

CODE = """
import sys
from marlaas.engine.models.find import download_base
from marlaas.engine.models.find import hub_name
from marlaas.engine.errors import MarlaasError
try:
    print(download_base(hub_name(sys.argv[1])))
except MarlaasError as error:
    print(error.message, error.hint, sep="|")
    sys.exit(error.exit_code)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def environment(address: str) -> dict[str, str]:
    """Of a process for which the hub is at ``address``."""
    return os.environ | {"HF_ENDPOINT": address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def download(address: str, name: str, code: int = 0) -> str:
    """What a process that downloads says: one line; it must end with ``code``."""
    command = [sys.executable, "-P", "-c", CODE, name]
    done = subprocess.run(command, env=environment(address), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout.count("\n") == 1
    print(done.stdout)
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the hub's repository holds: a base, and what a base does not need."""
    folder = Path(shutil.copytree(TINY_BASE, tmp_path / "repository"))
    (folder / "pytorch_model.bin").write_bytes(b"x" * 1000)
    return folder


def test_a_base_is_fetched(cache: Path, folder: Path) -> None:
    with small_hub(folder) as hub:
        assert download(hub.address, "org/model") == str(find_base("org/model"))
        assert find_base("org/model").name == COMMIT
        assert load_base("org/model").fingerprint == load_base("tiny").fingerprint
        assert "model.safetensors" in hub.sent and not {"pytorch_model.bin", "README.md"} & set(hub.sent)


def test_a_second_run_completes_a_cut_download(cache: Path, folder: Path) -> None:
    with small_hub(folder) as hub:
        hub.cut = "model.safetensors"
        said = download(hub.address, "org/model", code=2)
        assert "continues from there" in said and "\n" not in said
        with pytest.raises(BaseModelError, match=r"incomplete.*base use org/model --download"):
            find_base("org/model")
        assert cached_bases() == ["org/model"]
        hub.cut, hub.sent = "", []
        download(hub.address, "org/model")
        assert set(hub.sent) == {"model.safetensors"}
    assert load_base("org/model").fingerprint == load_base("tiny").fingerprint


def test_ctrl_c_ends_the_command_at_once(cache: Path, folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "marlaas.app.cli.main"]
    with small_hub(folder) as hub:
        hub.stall = "model.safetensors"
        child = subprocess.Popen(
            [*command, "base", "use", "org/model", "--download"],
            env=environment(hub.address) | {"MARLAAS_HOME": str(tmp_path / "home")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert hub.stalled.wait(60)
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=30)  # while the hub still holds the file back
        assert child.returncode == 130 and "Interrupted" in said[1] and "Traceback" not in said[1]
        with pytest.raises(BaseModelError, match="incomplete"):
            find_base("org/model")
        hub.stall = ""
        done = subprocess.run(
            [*command, "base", "use", "org/model", "--download"],
            env=environment(hub.address) | {"MARLAAS_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0 and "is org/model: qwen3" in done.stdout, done.stderr
    assert 'base = "org/model"' in (tmp_path / "home" / "marlaas.toml").read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("org/other", "The hub has no model 'org/other'"),
        ("gated/model", "only to those who have accepted its terms"),
        ("org/model@v9", "The model 'org/model' has no revision 'v9'"),
    ],
)
def test_what_the_hub_refuses(cache: Path, folder: Path, name: str, words: str) -> None:
    with small_hub(folder) as hub:
        assert words in download(hub.address, name, code=2)


def test_no_network(cache: Path, folder: Path) -> None:
    with small_hub(folder) as hub:
        address = hub.address
    assert "The Hugging Face hub cannot be reached" in download(address, "org/model", code=2)


def test_a_repository_that_is_no_base(cache: Path, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with small_hub(folder) as hub:
        said = download(hub.address, "org/model", code=2)
    assert "it has no *.safetensors weights" in said and "--download" not in said


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    import huggingface_hub

    from marlaas.engine.models.find import HubName, fetch_from_hub

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(BaseModelError, match=r"The disk is full: org/model does not fit.*Free space"):
        fetch_from_hub(HubName("org/model"))
