"""Pictures of the real program."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from marlaas.app.screenshot import VIEWS, save_screenshots
from marlaas.engine.home.paths import Home

from .filling import fill_hostile


def test_every_view_has_a_picture_whatever_the_home_holds(home: Home, tmp_path: Path) -> None:
    fill_hostile(home.database)
    written = save_screenshots(home, tmp_path)
    assert [path.stem for path in written] == list(VIEWS)
    for path in written:
        text = "".join(ElementTree.parse(path).getroot().itertext()).replace("\xa0", " ")
        assert "engine:" in text and "quit" in text, path


def test_an_empty_home_has_a_picture(home: Home, tmp_path: Path) -> None:
    (path,) = save_screenshots(home, tmp_path, ["task"], size=(80, 24))
    assert path.exists()
