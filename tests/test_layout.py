"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path
    for folder in ("app", "engine", "plugins", "tools", "examples", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)
MOST_LINES = 900
LONGEST_TEST_NAME = 60
DATA = {"bundled", "templates"}
"""Folders of plugins that are read and copied, never imported."""


@pytest.fixture(scope="module")
def parsed() -> dict[Path, ast.Module]:
    """Every source file, read once."""
    return {path: ast.parse(path.read_text("utf-8")) for path in SOURCES}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_file_is_one_idea_with_a_docstring(parsed: dict[Path, ast.Module]) -> None:
    long = {name(path): lines for path in parsed if (lines := path.read_text("utf-8").count("\n")) > MOST_LINES}
    assert not long, f"a file has at most {MOST_LINES} lines"
    docstrings = {name(path): ast.get_docstring(module) or "" for path, module in parsed.items()}
    silent = [path for path, said in docstrings.items() if not said or said.startswith("TODO")]
    assert not silent, "a module says at its top what it is for"


def test_names_of_tests_are_short() -> None:
    long = [
        f"{name(path)}:{node.lineno} {node.name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name) > LONGEST_TEST_NAME
    ]
    assert not long, f"a test's name has at most {LONGEST_TEST_NAME} characters; its docstring may say more"


def test_imports_inside_a_package_are_relative(parsed: dict[Path, ast.Module]) -> None:
    absolute = []
    for path, module in parsed.items():
        if DATA & set(path.parts):
            continue
        own = f"marlaas.{path.relative_to(ROOT).parts[0]}"
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith(own):
                absolute.append(f"{name(path)}:{node.lineno} {node.module}")
    assert not absolute


def test_sql_lives_in_the_store_alone() -> None:
    for path in SOURCES:
        if "store" not in path.parts and path.name not in ("machine.py", "checking.py"):  # checks damaged databases
            assert "sqlite3" not in path.read_text(encoding="utf-8"), path


def test_every_package_of_the_tree_is_in_the_wheel() -> None:
    code = "import runpy, setuptools; setuptools.setup = lambda **k: print(*k['packages']); runpy.run_path('setup.py')"
    import sys

    listed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {path.parent for path in SOURCES if path.relative_to(ROOT).parts[0] in ("app", "engine", "plugins")}
    expected = {"marlaas." + ".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert expected - set(listed.split()) <= {f"marlaas.plugins.{folder}" for folder in DATA}
