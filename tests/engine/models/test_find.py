"""From a name to a folder: what ships, folders, the Hugging Face cache, a download from a small hub on this machine."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from hypothesis import strategies as st

from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.models.find import (
    SHIPPED,
    anchored,
    cache_folder,
    cached_bases,
    find_base,
    load_base,
    weight_files,
)

from .hub_cache import COMMIT, HubCache

PART = st.from_regex(r"[A-Za-z0-9]{1,3}([._-]?[A-Za-z0-9]){0,3}", fullmatch=True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubCache:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return HubCache(tmp_path / "hub")


def test_what_ships_and_folders_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: HubCache) -> None:
    assert find_base("tiny") == SHIPPED["tiny"]
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("mine", "./mine", str(tmp_path / "mine"), "~/mine"):
        assert find_base(name).samefile(tmp_path / "mine")
    cache.add("org/model")
    assert find_base("org/model").name == COMMIT
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert find_base("org/model") == tmp_path / "org" / "model", "a folder goes before the cache"


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HF_HUB_CACHE": "/c/here", "HF_HOME": "/c/home"}, "/c/here"),
        ({"HF_HOME": "/c/home"}, "/c/home/hub"),
        ({"XDG_CACHE_HOME": "/c/xdg"}, "/c/xdg/huggingface/hub"),
        ({"HOME": "/c/user"}, "/c/user/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_hugging_face_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)


def test_revisions_are_branches_tags_and_commits(cache: HubCache) -> None:
    main, other = cache.add("org/model"), cache.add("org/model", commit="f" * 40, ref="refs/pr/1")
    (cache.entry("org/model") / "blobs" / "abc.incomplete").write_bytes(b"")  # of a finished download
    assert find_base("org/model") == find_base("org/model@main") == find_base(f"org/model@{COMMIT}") == main
    assert find_base("org/model@refs/pr/1") == find_base(f"org/model@{'f' * 40}") == other
    with pytest.raises(BaseModelError, match=r"'org/model@v2' is incomplete.*no snapshot.*org/model@v2 --download"):
        find_base("org/model@v2")
    assert cached_bases() == ["org/model", "org/model@refs/pr/1"]


def test_unknown_names_say_what_to_do(cache: HubCache) -> None:
    with pytest.raises(BaseModelError, match=r"no base model 'org/model'.*base use org/model --download"):
        find_base("org/model")
    with pytest.raises(BaseModelError, match=r"no base model 'tinny'.*tiny.*marlaas base list"):
        find_base("tinny")
    for name in ("/nowhere", "./nowhere", "../up", "a/b/c", "org/..", "a--b", "@main", "", "with space"):
        if not Path(name or "/none").is_dir():
            with pytest.raises(BaseModelError, match="Give a folder"):
                find_base(name or "@")
    assert cached_bases() == []


def _only_bin(entry: Path, snapshot: Path) -> None:
    (snapshot / "model.safetensors").rename(snapshot / "pytorch_model.bin")


def _shards(entry: Path, snapshot: Path) -> None:
    (snapshot / "model.safetensors").rename(snapshot / "model-00001-of-00002.safetensors")
    files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def _cut(entry: Path, snapshot: Path) -> None:
    (snapshot / "tokenizer.json").unlink()
    (entry / "blobs" / "abc.1234.incomplete").write_bytes(b"half")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_only_bin, r"only pickled weights"),
        (lambda _, snapshot: (snapshot / "config.json").unlink(), r"it has no config\.json"),
        (
            lambda _, snapshot: (snapshot / "model.safetensors").resolve().unlink(),
            r"its model\.safetensors links to nothing",
        ),
        (_shards, r"lacks model-00002-of-00002\.safetensors"),
        (_cut, r"cut before tokenizer\.json came"),
        (lambda entry, _: shutil.rmtree(entry / "snapshots"), "no snapshot of it is there"),
    ],
)
def test_half_downloaded_entries(cache: HubCache, damage: Callable[[Path, Path], object], words: str) -> None:
    damage(cache.entry("org/model"), cache.add("org/model"))
    with pytest.raises(BaseModelError, match=words) as caught:
        find_base("org/model")
    assert caught.value.message.count("\n") == 0
    assert caught.value.hint == "`marlaas base use org/model --download` finishes it."
    assert cached_bases() == ["org/model"]


def test_other_files_beside_the_weights_are_none_of_them(tmp_path: Path) -> None:
    for name in ("model.safetensors", "consolidated.safetensors"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in weight_files(tmp_path)] == ["model.safetensors"]
    (tmp_path / "model.safetensors").rename(tmp_path / "model-1.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    assert [path.name for path in weight_files(tmp_path)] == ["model-1.safetensors"]
    index.write_text(json.dumps({"weight_map": {"a": "../../secret"}}))
    with pytest.raises(BaseModelError, match="no index of weights"):
        weight_files(tmp_path)
    index.unlink()
    assert len(weight_files(tmp_path)) == 2


def test_a_name_that_may_be_read_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert anchored("mine", tmp_path) == str(tmp_path / "mine")
    assert [anchored(name, tmp_path) for name in ("tiny", "", "org/model")] == ["tiny", "", "org/model"]
    assert anchored(str(TINY_BASE), tmp_path) == str(TINY_BASE)


HUB_COMMIT = "c0ffee" + "0" * 34


class SmallHub(ThreadingHTTPServer):
    """Serves the files of a folder as ``org/model``; some are refused, one may be cut in its middle."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.cut = ""
        """The file whose connection breaks after half of it."""
        self.stall = ""
        """The file of which half comes, and nothing more until ``release`` is set."""
        self.stalled, self.release = threading.Event(), threading.Event()
        self.sent: list[str] = []
        """Files that were asked for."""

    @property
    def address(self) -> str:
        """As ``HF_ENDPOINT`` takes it."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what the tests are about."""


@contextmanager
def small_hub(folder: Path) -> Iterator[SmallHub]:
    """A hub that serves ``folder`` while the block runs."""
    hub = SmallHub(folder)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.release.set()
        hub.shutdown()
        hub.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: SmallHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlparse(self.path).path)
        if "gated/model" in path:
            return self._refuse(403, "GatedRepo")
        if not path.startswith(("/api/models/org/model", "/org/model/")):
            return self._refuse(404, "RepoNotFound")
        if path.startswith("/api/"):
            revision = path.rpartition("/")[2] if "/revision/" in path or "/tree/" in path else "main"
            if revision not in ("main", HUB_COMMIT):
                return self._refuse(404, "RevisionNotFound")
            files = sorted(self.server.folder.iterdir())
            if "/tree/" in path:
                listing = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": _etag(f)} for f in files]
                return self._json(listing)
            return self._json(
                {"id": "org/model", "sha": HUB_COMMIT, "siblings": [{"rfilename": f.name} for f in files]}
            )
        file = self.server.folder / path.rpartition("/")[2]
        if not file.exists():
            return self._refuse(404, "EntryNotFound")
        self._file(file)

    do_HEAD = do_GET

    def _file(self, file: Path) -> None:
        data = file.read_bytes()
        start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{_etag(file)}"')
        self.send_header("X-Repo-Commit", HUB_COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.server.sent.append(file.name)
        if file.name in (self.server.cut, self.server.stall):
            self.wfile.write(data[start : start + (len(data) - start) // 2])
            if file.name == self.server.stall:
                self.server.stalled.set()
                self.server.release.wait(60)
            self.close_connection = True
            return
        self.wfile.write(data[start:])

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": f"{code}."})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


CODE = """
import sys, time
time.sleep = lambda seconds: None  # between attempts
from marlaas.engine.models.find import download_base
from marlaas.engine.models.find import hub_name
from marlaas.engine.errors import MarlaasError
code = 0
for name in sys.argv[1:]:
    try:
        print(download_base(hub_name(name)))
    except MarlaasError as error:
        print(error.message, error.hint, sep="|")
        code = error.exit_code
sys.exit(code)
"""


def environment(address: str) -> dict[str, str]:
    """Of a process for which the hub is at ``address``."""
    return os.environ | {"HF_ENDPOINT": address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def download(address: str, *names: str, code: int = 0) -> list[str]:
    """What a process that downloads says, a line for each name; it must end with ``code``."""
    command = [sys.executable, "-P", "-c", CODE, *names]
    done = subprocess.run(command, env=environment(address), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """What the hub's repository holds: a base, and what a base does not need."""
    folder = Path(shutil.copytree(TINY_BASE, tmp_path / "repository"))
    (folder / "pytorch_model.bin").write_bytes(b"x" * 1000)
    return folder


@pytest.mark.timeout(120)
def test_a_base_is_fetched(cache: HubCache, repository: Path) -> None:
    with small_hub(repository) as hub:
        assert download(hub.address, "org/model") == [str(find_base("org/model"))]
        assert find_base("org/model").name == HUB_COMMIT
        assert load_base("org/model").fingerprint == load_base("tiny").fingerprint
        assert "model.safetensors" in hub.sent and not {"pytorch_model.bin", "README.md"} & set(hub.sent)


@pytest.mark.timeout(120)
def test_a_download_that_was_cut_is_incomplete(cache: HubCache, repository: Path) -> None:
    with small_hub(repository) as hub:
        hub.cut = "model.safetensors"
        (said,) = download(hub.address, "org/model", code=2)
    assert "continues from there" in said
    with pytest.raises(BaseModelError, match=r"incomplete.*base use org/model --download"):
        find_base("org/model")
    assert cached_bases() == ["org/model"]


@pytest.mark.timeout(120)
def test_ctrl_c_ends_the_command_at_once(cache: HubCache, repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "marlaas.app.cli.main"]
    with small_hub(repository) as hub:
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
        assert child.returncode == 130 and "the same command goes on" in said[1] and "Traceback" not in said[1]
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


@pytest.mark.timeout(120)
def test_what_the_hub_refuses(cache: HubCache, repository: Path) -> None:
    refused = {
        "org/other": "The hub has no model 'org/other'",
        "gated/model": "only to those who have accepted its terms",
        "org/model@v9": "The model 'org/model' has no revision 'v9'",
    }
    with small_hub(repository) as hub:
        for words, said in zip(refused.values(), download(hub.address, *refused, code=2), strict=True):
            assert words in said


@pytest.mark.timeout(120)
def test_no_network(cache: HubCache, repository: Path) -> None:
    with small_hub(repository) as hub:
        address = hub.address
    (said,) = download(address, "org/model", code=2)
    assert "The Hugging Face hub cannot be reached" in said


@pytest.mark.timeout(120)
def test_a_repository_that_is_no_base(cache: HubCache, repository: Path) -> None:
    (repository / "model.safetensors").unlink()
    with small_hub(repository) as hub:
        (said,) = download(hub.address, "org/model", code=2)
    assert "it has no *.safetensors weights" in said and "--download" not in said


@pytest.mark.timeout(120)
def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    import huggingface_hub

    from marlaas.engine.models.find import HubName, fetch_from_hub

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(BaseModelError, match=r"The disk is full: org/model does not fit.*Free space"):
        fetch_from_hub(HubName("org/model"))
