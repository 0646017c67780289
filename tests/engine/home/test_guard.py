"""Homes that others may write to, and homes where no database can be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from marlaas.engine.daemon import main
from marlaas.engine.daemon.control import create_database
from marlaas.engine.errors import ConfigError
from marlaas.engine.home import guard as mounts
from marlaas.engine.home.guard import make_private
from marlaas.engine.home.paths import Home


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_writable_home_is_mended_and_said_once(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    home.config.write_text("")
    for path, bits in ((home.root, 0o777), (home.config, 0o666), (home.plugins, 0o775)):
        path.chmod(bits)
    said: list[str] = []
    create_database(home, said.append)
    assert said == [
        f"Other accounts could write to the home {home.root}; now it is yours alone (mode 0700).",
        f"Other accounts could write to {home.config}; now you alone can.",
        f"Other accounts could write to {home.plugins}; now you alone can.",
    ]
    assert [mode(path) for path in (home.root, home.config, home.plugins)] == [0o700, 0o644, 0o755]
    create_database(home, said.append)
    assert len(said) == 3


def test_a_home_that_others_may_read_stays_so(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    home.root.chmod(0o755)
    assert make_private(home) == [] and mode(home.root) == 0o755


def test_a_writable_home_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home").create()
    home.root.chmod(0o777)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(ConfigError, match=r"Other accounts can write to .* cannot be changed: Operation not permitted"):
        make_private(home)


def test_a_link_of_another_account_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Home(tmp_path / "real").create()
    (tmp_path / "home").symlink_to("real")
    home = Home(tmp_path / "home")
    assert make_private(home) == []
    owner = (tmp_path / "home").lstat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner:
        with pytest.raises(ConfigError, match="is a link that belongs to another account"):
            make_private(home)
    else:
        assert make_private(home) == [], "root may lead anybody anywhere"
        os.chown(tmp_path / "home", 12345, -1, follow_symlinks=False)
        with pytest.raises(ConfigError, match="is a link that belongs to another account"):
            make_private(home)


def test_plugins_elsewhere_may_be_a_groups_but_not_everybodys(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    home.plugins.rmdir()
    shared = tmp_path / "shared"
    shared.mkdir()
    home.plugins.symlink_to(shared)
    shared.chmod(0o770)
    assert make_private(home) == [] and mode(shared) == 0o770
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match=f"leads to {shared}, to which every account can write"):
        make_private(home)


def test_an_engine_refuses_a_home_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/home {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(mounts, "_TABLE", table)
    home = Home(tmp_path / "home")
    assert main.run(home) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "/home: the home lies on a network file system (nfs4)" in sentence and "--home" in sentence
    assert not home.root.exists()
    with pytest.raises(ConfigError, match="network file system"):
        create_database(home)
