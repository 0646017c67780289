"""From a name to a folder: what ships, folders, and the Hugging Face cache, whole and half-downloaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.models.find import (
    SHIPPED,
    anchored,
    cache_folder,
    cached_bases,
    find_base,
    hub_name,
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


def test_a_folder_goes_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: HubCache) -> None:
    cache.add("org/model")
    monkeypatch.chdir(tmp_path)
    assert find_base("org/model").name == COMMIT
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert find_base("org/model") == tmp_path / "org" / "model"


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
    assert find_base("org/model") == find_base("org/model@main") == find_base(f"org/model@{COMMIT}") == main
    assert find_base("org/model@refs/pr/1") == find_base(f"org/model@{'f' * 40}") == other
    with pytest.raises(BaseModelError, match=r"'org/model@v2' is incomplete.*no snapshot.*org/model@v2 --download"):
        find_base("org/model@v2")
    assert cached_bases() == ["org/model", "org/model@refs/pr/1"]


def test_a_snapshot_has_the_fingerprint_of_a_copy(cache: HubCache, tmp_path: Path) -> None:
    snapshot = cache.add("org/model")
    shutil.copytree(snapshot, tmp_path / "copy")
    assert all(path.is_symlink() for path in snapshot.iterdir())
    prints = {load_base(name).fingerprint for name in ("org/model", snapshot, tmp_path / "copy", "tiny")}
    assert len(prints) == 1


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


def _no_weights(entry: Path, snapshot: Path) -> None:
    (snapshot / "model.safetensors").unlink()


def _only_bin(entry: Path, snapshot: Path) -> None:
    _no_weights(entry, snapshot)
    (snapshot / "pytorch_model.bin").write_bytes(b"")


def _no_config(entry: Path, snapshot: Path) -> None:
    (snapshot / "config.json").unlink()


def _dangling(entry: Path, snapshot: Path) -> None:
    (snapshot / "model.safetensors").resolve().unlink()


def _shards(entry: Path, snapshot: Path) -> None:
    (snapshot / "model.safetensors").rename(snapshot / "model-00001-of-00002.safetensors")
    files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def _bad_index(entry: Path, snapshot: Path) -> None:
    _no_weights(entry, snapshot)
    (snapshot / "model.safetensors.index.json").write_text("{")


def _cut(entry: Path, snapshot: Path) -> None:
    (snapshot / "tokenizer.json").unlink()
    (entry / "blobs" / "abc.1234.incomplete").write_bytes(b"half")


def _no_snapshot(entry: Path, snapshot: Path) -> None:
    shutil.rmtree(entry / "snapshots")


def _nothing(entry: Path, snapshot: Path) -> None:
    shutil.rmtree(entry)
    entry.mkdir()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_no_weights, r"no \*\.safetensors weights"),
        (_only_bin, r"only pickled weights"),
        (_no_config, r"it has no config\.json"),
        (_dangling, r"its model\.safetensors links to nothing"),
        (_shards, r"lacks model-00002-of-00002\.safetensors"),
        (_bad_index, r"index\.json is no index of weights"),
        (_cut, r"cut before tokenizer\.json came"),
        (_no_snapshot, "no snapshot of it is there"),
        (_nothing, "no snapshot of it is there"),
    ],
)
def test_half_downloaded_entries(cache: HubCache, damage: Callable[[Path, Path], None], words: str) -> None:
    damage(cache.entry("org/model"), cache.add("org/model"))
    with pytest.raises(BaseModelError, match=words) as caught:
        find_base("org/model")
    assert caught.value.message.count("\n") == 0
    assert caught.value.hint == "`marlaas base use org/model --download` finishes it."
    assert cached_bases() == ["org/model"]


def test_leftovers_of_a_finished_download_do_not_matter(cache: HubCache) -> None:
    cache.add("org/model")
    (cache.entry("org/model") / "blobs" / "abc.incomplete").write_bytes(b"")
    assert find_base("org/model").name == COMMIT


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


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000, "nul\0l"])
def test_a_name_that_no_path_can_have_is_a_name(tmp_path: Path, name: str) -> None:
    assert anchored(name, tmp_path) == name
    with pytest.raises(BaseModelError, match="There is no base model"):
        find_base(name)


@given(st.tuples(PART, PART), st.one_of(st.none(), PART))
def test_names_are_taken_apart_and_put_together(parts: tuple[str, str], revision: str | None) -> None:
    text = "/".join(parts) + (f"@{revision}" if revision else "")
    name = hub_name(text)
    assert name is not None and name.repository == "/".join(parts) and name.revision == (revision or "main")
    assert hub_name(str(name)) == name


@given(st.text(max_size=30))
def test_no_text_is_too_strange(text: str) -> None:
    name = hub_name(text)
    assert name is None or hub_name(str(name)) == name
