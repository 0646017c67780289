"""What is copied is in the clipboard, in a private file, or in neither, and the person is told which."""

from __future__ import annotations

from marlaas.app.tui.frame.terminal import LARGEST, copy
from marlaas.engine.home.paths import Home

from ...driving import driving


async def test_a_copy_is_in_both_and_for_nobody_else(home: Home) -> None:
    home.root.mkdir(exist_ok=True)
    async with driving(home) as driver:
        driver.app.copy("task 17", "Task 17")
        await driver.settle()
        file = home.root / "copied.txt"
        assert file.read_text() == "task 17" and driver.app.clipboard == "task 17"
        assert file.stat().st_mode & 0o777 == 0o600
        assert "Task 17 is copied to the clipboard and to" in driver.notices()


async def test_a_browser_has_no_file_and_is_told_what_is_too_long(home: Home) -> None:
    home.root.mkdir(exist_ok=True)
    async with driving(home, web=True) as driver:
        driver.app.copy("task 17", "Task 17")
        await driver.settle()
        assert not (home.root / "copied.txt").exists() and driver.app.clipboard == "task 17"
        assert copy(driver.app, "x" * (LARGEST + 1), None).startswith("nowhere")
