"""clean: lost+found is named by doctor, shown, and emptied on request alone."""

from __future__ import annotations

from marlaas.engine.home.paths import Home

from ..commanding import Commander


def test_lost_files_are_named_and_removed_on_request(home: Home, marlaas: Commander) -> None:
    assert marlaas("clean").err == "lost+found is empty.\n"
    folder = home.lost / "task-7"
    folder.mkdir(parents=True)
    (folder / "policy-v3.safetensors").write_bytes(bytes(2_000))
    (home.lost / "of-the-file-system").touch()
    said = marlaas("clean")
    assert said.out == f"{folder}: 1 file, 2 kB\n" and "clean --yes" in said.err
    told = {"lost": [{"folder": str(folder), "files": 1, "bytes": 2_000}], "removed": False}
    assert marlaas("clean", "--json").json == told and folder.exists()
    assert "Removed: 2 kB." in marlaas("clean", "--yes").err
    assert not folder.exists() and (home.lost / "of-the-file-system").exists()
