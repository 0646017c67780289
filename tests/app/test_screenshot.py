"""Pictures of the real program."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from marlaas.app.screenshot import save_screenshot
from marlaas.engine.paths import Home

from .filling import fill_hostile


@pytest.mark.parametrize("screen", ["queue", "task"])
def test_pictures_are_svg(home: Home, tmp_path: Path, screen: str) -> None:
    fill_hostile(home.database)
    save_screenshot(home, tmp_path / "picture.svg", screen)
    text = "".join(ElementTree.parse(tmp_path / "picture.svg").getroot().itertext()).replace("\xa0", " ")
    assert ("held-out" in text) and ("trajectory 1 of 3" in text) == (screen == "task")


def test_an_empty_home_has_a_picture(home: Home, tmp_path: Path) -> None:
    save_screenshot(home, tmp_path / "picture.svg", "task")
    assert (tmp_path / "picture.svg").exists()
