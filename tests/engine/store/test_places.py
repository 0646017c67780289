"""Files are named by their place in the home, wherever it lay when a row was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.adapters.statefile import read_expected
from marlaas.engine.errors import AdapterUnreachable
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.versions import NewVersion

from ...old_homes import unpack
from ..by_hand import change, rows


def named(database: Path) -> list[str]:
    return [row["path"] for row in rows(database, "SELECT path FROM versions ORDER BY id")]


def test_a_name_is_stored_and_the_path_on_this_machine_is_told(store: Store, database: Path, policy: int) -> None:
    path = database.parent / "adapters" / "task-1" / "v0.safetensors"
    committed = store.versions.commit_first(policy, NewVersion(0, "task-1/v0", "sum", str(path), 9))
    assert named(database) == ["adapters/task-1/v0.safetensors"]
    assert store.versions.candidates(policy) == [committed] and committed.path == str(path)
    with Reader(database) as reader:
        assert [row.path for row in reader.versions()] == [str(path)]


@pytest.mark.parametrize("name", ["/etc/passwd", "../other/adapters/task-1/v0.safetensors", "adapters/../../v0"])
def test_a_name_that_leads_out_of_the_home_is_refused(store: Store, database: Path, policy: int, name: str) -> None:
    store.versions.commit_first(policy, NewVersion(0, "task-1/v0", "sum", "adapters/task-1/v0", 9))
    change(database, "UPDATE versions SET path = ?", name)
    for read in (store.versions.candidates, store.versions.first):
        with pytest.raises(AdapterUnreachable, match=r"does not lie in the home .* move the whole home"):
            read(policy)
    with pytest.raises(AdapterUnreachable, match="does not lie in the home"):
        store.versions.commit_step(policy, NewVersion(1, "task-1/v1", "sum", name, 9), [], 0, {})


def test_a_link_that_leads_out_of_the_home_is_refused(
    store: Store, database: Path, policy: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (database.parent / "adapters").symlink_to(tmp_path_factory.mktemp("disk"))
    with pytest.raises(AdapterUnreachable, match=r"leads out of the home, to .*disk"):
        store.versions.commit_first(policy, NewVersion(0, "task-1/v0", "sum", "adapters/task-1/v0", 9))


def test_a_home_of_the_first_release_finds_its_files(tmp_path: Path) -> None:
    store = Store(unpack(tmp_path / "moved").database, "tiny")
    versions = [*store.versions.on_disk(1), *store.versions.on_disk(2)]
    for version in versions:
        state = read_expected(Path(version.path), version.checksum, moments=True)
        assert (state.header.step, state.header.format, state.resumable) == (version.number, 1, version.resumable)
    assert [version.number for version in versions] == [1, 4, 5, 2, 3]
    store.close()
