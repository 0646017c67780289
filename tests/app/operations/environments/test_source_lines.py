"""The line of a plugin at which something went wrong; no line of any other file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.app.operations.environments.source_lines import (
    definition,
    place_to_mend,
    source_file,
    source_line,
    source_lines,
    task_place,
)
from marlaas.engine.errors import EnvironmentMissing
from marlaas.engine.spec.task import TOGETHER
from marlaas.engine.store.queries.machine import EnvironmentUse, EpisodeFailure
from marlaas.engine.store.rows import EnvironmentRow

from ...rows import task

NOTHING = EnvironmentUse()


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A plugin of one file, one that is a package, and a file of somebody else."""
    folder = tmp_path / "plugins"
    (folder / "shop").mkdir(parents=True)
    (folder / "sums.py").write_text("import x\n\n    total = (1 +  \n")
    (folder / "shop" / "__init__.py").write_text("from . import goods\n")
    (folder / "shop" / "goods.py").write_bytes(b"price = \xff\r\nbuy()\n")
    (tmp_path / "secret.py").write_text("password = 1\n")
    return folder


def row(path: Path, file: str, line: int, message: str = "NameError: x") -> EnvironmentRow:
    return EnvironmentRow("a/b", "v", "broken", (), "", message, file, line, str(path), 0.0)


@pytest.mark.parametrize(
    ("plugin", "file", "line"),
    [
        ("sums.py", "sums.py", 9),
        ("sums.py", "sums.py", 0),
        ("sums.py", "sums.py", -1),
        ("sums.py", "", 1),
        ("sums.py", "shop/goods.py", 1),
        ("sums.py", "../secret.py", 1),
        ("shop", "shop/../../secret.py", 1),
        ("shop", "shop", 1),
        ("shop", "a\0b", 1),
        ("gone.py", "gone.py", 1),
    ],
)
def test_what_is_not_there_or_not_its_own_is_not_read(plugins: Path, plugin: str, file: str, line: int) -> None:
    assert source_line(str(plugins / plugin), file, line) == ""


def test_a_link_out_of_the_plugin_is_not_followed(plugins: Path) -> None:
    (plugins / "shop" / "link.py").symlink_to(plugins.parent / "secret.py")
    assert source_file(str(plugins / "shop"), "shop/link.py") is None


def test_the_editor_opens_where_it_is_wrong(plugins: Path) -> None:
    sums, shop = plugins / "sums.py", plugins / "shop"
    assert place_to_mend(row(sums, "sums.py", 3), NOTHING) == (sums, 3)
    failed = EnvironmentUse({"error": 1}, failure=EpisodeFailure("KeyError", "shop/goods.py", 2, "v", 0.0))
    ready = replace(row(shop, "", 0, ""), state="ready")
    assert place_to_mend(ready, failed) == (shop / "goods.py", 2)
    assert place_to_mend(ready, NOTHING) == (shop / "__init__.py", 0), "no editor opens a folder"
    assert place_to_mend(row(sums, "/etc/passwd", 3), NOTHING) == (sums, 0)
    assert source_lines(row(sums, "sums.py", 3), failed) == {("sums.py", 3): "total = (1 +"}
    assert set(source_lines(row(shop, "sums.py", 3), failed)) == {("shop/goods.py", 2)}


def test_the_editor_opens_a_task_s_environment_where_it_is_wrong(plugins: Path) -> None:
    sums = replace(row(plugins / "sums.py", "", 0, ""), name="sums/sums", state="ready")
    shop = replace(row(plugins / "shop", "", 0, ""), name="shop/buy", state="ready")
    broken = replace(shop, message="NameError: x", file="shop/goods.py", line=2)
    failed = EnvironmentUse({"error": 1}, failure=EpisodeFailure("KeyError", "shop/goods.py", 1, "v", 0.0))
    one, mixed = task(1, environment="buy"), task(1, environment=TOGETHER.join(("sums", "shop/buy")))
    goods = plugins / "shop" / "goods.py"
    assert task_place(one, [sums, shop], {}) == (plugins / "shop" / "__init__.py", 0)
    assert task_place(one, [sums, broken], {}) == task_place(mixed, [sums, broken], {}) == (goods, 2)
    assert task_place(mixed, [sums, shop], {"shop/buy": failed}) == (goods, 1), "only its episodes tell"
    assert task_place(mixed, [sums, shop], {}) == (plugins / "sums.py", 0), "nothing is wrong: the first"
    with pytest.raises(EnvironmentMissing, match="There is no environment 'pig'"):
        task_place(task(1, environment="pig"), [sums], {})


SEVERAL = """import random

# how many
MOST = 3
def helper():
    return MOST
# Sums.
@env(
    on_error=0.0,
)
async def sums(
    ep,
):
    reply = await ep.ask("1 + 1")

    return reply.text == "2"


@env
class Other:
    pass
"""


def test_an_environment_is_shown_as_it_is_defined(plugins: Path) -> None:
    path = plugins / "sums.py"
    path.write_text(SEVERAL)
    sums = replace(row(path, "", 0, ""), name="sums/sums")
    found = definition(sums)
    assert found is not None and (found.file, found.first, found.line) == ("sums.py", 7, 11)
    assert found.lines[:2] == ("# Sums.", "@env(") and found.lines[-1] == '    return reply.text == "2"'
    other = definition(replace(sums, name="sums/Other"))
    assert other is not None and other.lines == ("@env", "class Other:", "    pass") and other.line == 20
    unnamed = definition(replace(sums, name="sums/renamed"))
    assert unnamed is not None and unnamed.lines[0] == "import random" and unnamed.line == 0, "the plugin's beginning"
    path.write_text("async def sums(ep):\n    return 1\n")
    os.utime(path, ns=(1, 1))
    again = definition(sums)
    assert again is not None and again.lines == ("async def sums(ep):", "    return 1"), "as it is now"


def test_a_definition_is_looked_for_in_all_files_of_a_plugin(plugins: Path) -> None:
    (plugins / "shop" / "buying.py").write_text("def buy(ep):\n    pass\n")
    (plugins / "shop" / "link.py").symlink_to(plugins.parent / "secret.py")
    found = definition(replace(row(plugins / "shop", "", 0, ""), name="shop/buy"))
    assert found is not None and found.file == "buying.py"
    nowhere = definition(replace(row(plugins / "shop", "", 0, ""), name="shop/password"))
    assert nowhere is not None and nowhere.file == "__init__.py", "and in no file of others"
    for gone in (plugins / "gone.py", plugins / "gone", Path("a\0b"), Path("")):
        assert definition(row(gone, "", 0, "")) is None
    assert definition(replace(row(plugins, "", 0, ""), path="")) is None
