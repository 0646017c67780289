"""A folder that is no home is not taken for one, and the nearest home is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home, check_folder, check_home, is_home, nearest_home


def make(root: Path) -> Path:
    """A home that nothing has run in."""
    Home(root).create().config.write_text("")
    return root


def refused(root: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        check_home(Home(root))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_settings_or_a_database_make_a_home(tmp_path: Path) -> None:
    assert is_home(make(tmp_path / "new"))
    used = Home(tmp_path / "used").create()
    assert not is_home(used.root)
    used.database.touch()
    assert is_home(used.root)
    check_home(used)


def test_a_mistyped_name_has_the_nearest_home(tmp_path: Path) -> None:
    make(tmp_path / "lab")
    said = refused(tmp_path / "labb")
    assert said == (
        f"No home at {tmp_path}/labb: there is no such folder. Did you mean {tmp_path}/lab?"
        f" `marlaas --home {tmp_path}/labb home new` makes one there."
    )
    assert not (tmp_path / "labb").exists()


def test_a_folder_of_other_things_or_nothing_is_no_home(tmp_path: Path) -> None:
    (tmp_path / "a project" / "src").mkdir(parents=True)
    assert "the folder holds other things" in refused(tmp_path / "a project")
    said = refused(tmp_path / "a project" / "src")
    assert "the folder is empty" in said and f"--home '{tmp_path}/a project/src' home new" in said


def test_a_folder_in_a_home_or_around_one_means_the_home(tmp_path: Path) -> None:
    home = make(tmp_path / "state" / "marlaas")
    assert nearest_home(home / "plugins") == home and nearest_home(home / "plugins" / "gone") == home
    assert nearest_home(tmp_path / "state") == home
    assert nearest_home(tmp_path / "elsewhere") is None


@pytest.mark.parametrize("below", ["", "sub/deeper"])
def test_a_file_is_no_home(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("x")
    for check in (check_home, check_folder):
        with pytest.raises(ConfigError) as caught:
            check(Home(tmp_path / "file" / below))
        assert str(caught.value) == f"A home is a folder, but {tmp_path}/file is a file. Give a folder with --home."


def test_the_default_place_need_not_be_there(tmp_path: Path) -> None:
    check_folder(Home(tmp_path / "not" / "yet"))
    check_folder(Home(tmp_path))
