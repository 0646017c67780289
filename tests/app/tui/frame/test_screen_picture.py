"""A picture of the screen is saved in the home, and its path is said."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from marlaas.app.tui.frame.terminal import save_picture
from marlaas.engine.home.paths import Home

from ...driving import driving
from ...filling import fill_hostile


async def test_it_lies_in_the_home_without_a_downloads_folder(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("XDG_DOWNLOAD_DIR", str(tmp_path / "nobody" / "Downloads"))
    fill_hostile(home.database)
    async with driving(home) as driver:
        command = next(each for each in driver.app.get_system_commands(driver.app.screen) if each.title == "Screenshot")
        command.callback()
        while not driver.app.told:  # it waits until the palette has gone
            await driver.pilot.pause(0.05)
        driver.app.action_screenshot()
        await driver.settle()
        files = sorted(home.screenshots.iterdir())
        assert len(files) == 2 and all(f"The screenshot is saved: {file}" in driver.notices() for file in files)
    for file in files:
        assert "engine:" in "".join(ElementTree.parse(file).getroot().itertext()).replace("\xa0", " ")
        assert file.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "nobody").exists()


def test_of_a_read_only_home_it_lies_beside_the_person(home: Home, tmp_path: Path) -> None:
    home.create()
    home.screenshots.write_text("a file is in the way")
    file = save_picture("<svg/>", home.screenshots, tmp_path, "queue")
    assert file.parent == tmp_path and file.name.startswith("marlaas-queue-") and file.read_text() == "<svg/>"
    with pytest.raises(OSError):
        save_picture("<svg/>", home.screenshots, tmp_path / "missing", "queue")
