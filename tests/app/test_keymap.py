"""Every key has a name of its own, and a person may put it elsewhere."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.dom import DOMNode

from marlaas.app import app
from marlaas.app.keymap import check_keys, known_keys
from marlaas.app.tui import screens, widgets
from marlaas.app.tui.frame.preferences import Preferences, read_preferences
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home

from .commanding import Commander
from .driving import driving
from .filling import Filling


def owners() -> list[type[DOMNode]]:
    modules = [app]
    for package in (screens, widgets):
        walked = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        modules += [importlib.import_module(entry.name) for entry in walked]
    classes = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    return [each for each in classes if issubclass(each, DOMNode) and each.__module__.startswith("marlaas.app")]


def test_every_binding_has_a_name_of_its_own() -> None:
    seen: dict[str, str] = {}
    for owner in dict.fromkeys(owners()):
        for binding in vars(owner).get("BINDINGS", ()):
            assert isinstance(binding, Binding) and binding.id, f"{owner.__name__}: {binding} has no id"
            other = seen.setdefault(binding.id, binding.action)
            assert other == binding.action, f"{binding.id} of {owner.__name__} is {other} elsewhere"


async def test_a_key_can_be_put_elsewhere(home: Home, filling: Filling) -> None:
    filling.task(made=1)
    async with driving(home, preferences=Preferences(keys={"app.help": "f1"})) as driver:
        await driver.press("f1")
        assert "All tasks" in driver.text()


OLD = (
    *("api.leave", "api.next", "export.leave", "export.next", "manner.leave", "manner.next"),
    *("new.down", "new.leave", "new.up"),
    *("list.open", "list.down", "list.up", "list.page_down", "list.page_up", "list.first", "list.last", "list.mark"),
    *("table.open", "table.down", "table.up", "table.first", "table.last", "adapters.chat", "queue.mark"),
)
"""Names of 0.1 for keys of dialogs, lists and tables."""


def test_names_of_older_versions_still_work(tmp_path: Path) -> None:
    path = tmp_path / "app.toml"
    path.write_text("\n".join(["[keys]", *(f"'{name}' = 'f9'" for name in OLD)]))
    check_keys(read_preferences(path).keys, "app.toml")


def test_names_that_no_key_has_are_refused(home: Home, marlaas: Commander, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no key 'task.pase'"):
        check_keys({"task.pase": "P"}, "app.toml")
    assert "task.pause" in {key.name for key in known_keys()}


@pytest.mark.parametrize(("key", "good"), [("P", 1), ("f5", 1), ("ctrl+o,alt+shift+x", 1), ("é", 1), ("bogus key", 0)])
def test_keys_that_no_keyboard_has_are_refused(key: str, good: bool) -> None:
    if good:
        check_keys({"task.pause": key}, "app.toml")
    else:
        with pytest.raises(ConfigError, match=r"'task.pause' cannot be 'bogus key'"):
            check_keys({"task.pause": key}, "app.toml")


def test_keys_lists_them(home: Home, marlaas: Commander) -> None:
    assert "task.pause" in marlaas("keys").out


VOCABULARY = {
    "a": {"app.add", "add"},
    "c": {"compare", "overlay", "beside"},
    "e": {"export"},
    "l": {"open_logs"},
    "n": {"turn(1)"},
    "N": {"turn(-1)", "new"},
    "p": {"toggle_pause"},
    "r": {"retry"},
    "s": {"sort", "smooth"},
    "space": {"mark"},
    "slash": {"filter", "search"},
    "t": {"open_rollouts"},
    "x": {"cancel", "delete", "revoke"},
    "y": {"copy", "copy_row"},
    "Y": {"copy_json"},
    "z": {"zoom"},
    "escape": {"back"},
}
"""What keys mean in every view; N writes a new environment, where nothing has a previous one, and s smooths a task's
curves, where nothing is sorted."""


def test_a_key_means_the_same_in_every_view() -> None:
    from marlaas.app.tui.screens.view import View

    for owner in {each for each in owners() if issubclass(each, View)}:
        for binding in vars(owner).get("BINDINGS", ()):
            assert isinstance(binding, Binding)
            for key in binding.key.split(","):
                allowed = VOCABULARY.get(key, {binding.action})
                assert binding.action in allowed, f"{owner.__name__}: {key} is {binding.action}"
