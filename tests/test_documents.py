"""What the README and the pages of ``docs`` show is what the program does."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from marlaas.app.cli.main import build_parser
from marlaas.engine.home.settings import Settings
from marlaas.engine.spec.rules import check_declared
from marlaas.engine.spec.sweep import members
from marlaas.engine.spec.task import parse
from marlaas.engine.spec.validation import build
from marlaas.plugins.host.loading import load
from tools import reference

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "docs" / "reference"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
    if path.parent != GENERATED
}
WRITTEN = {name: text for name, text in PAGES.items() if name == "README.md" or name.startswith("docs/")}
REQUIRED = {"tenant", "name", "environment"}
PLACEHOLDERS = {"ID": "1", "TASK": "1"}


def blocks(language: str, texts: dict[str, str] = WRITTEN) -> list[tuple[str, str]]:
    """All code blocks of a language, each with the page that it stands on."""
    pattern = rf"(?m)^```{language}\n(.*?)^```"
    return [(name, found) for name, text in texts.items() for found in re.findall(pattern, text, re.DOTALL | re.M)]


TOML = [(name, tomllib.loads(text)) for name, text in blocks("toml")]
TASKS = [(name, table) for name, table in TOML if table.keys() >= REQUIRED]
SETTINGS = [(name, table) for name, table in TOML if table and table.keys() <= Settings.__dataclass_fields__.keys()]


@pytest.mark.parametrize("name", ["reverse_words", "duel"])
def test_environments_are_the_example_files(name: str) -> None:
    shown = [text for _, text in blocks("python") if f"async def {name}(" in text]
    assert shown and set(shown) == {(ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")}


@pytest.mark.parametrize(("page", "text"), blocks("python"), ids=lambda value: value[:40])
def test_python_compiles(page: str, text: str) -> None:
    compile(text, page, "exec")


@pytest.mark.parametrize(("page", "table"), TASKS, ids=lambda value: value if isinstance(value, str) else value["name"])
def test_task_files_are_valid(page: str, table: dict[str, Any]) -> None:
    for member in members(table, page):
        spec = parse(member.table, page)
        if spec.environment == "duel":
            check_declared(spec, load(ROOT / "examples" / "duel.py")["duel"].agents)


def test_the_readme_and_the_tutorials_have_task_files() -> None:
    assert {"README.md", "docs/tutorials/multi-agent.md", "docs/guides/policies.md"} <= {page for page, _ in TASKS}


@pytest.mark.parametrize(("page", "table"), SETTINGS, ids=lambda value: value if isinstance(value, str) else "")
def test_settings_are_valid(page: str, table: dict[str, Any]) -> None:
    build(Settings, table, page)


def test_what_the_pages_set_is_heard() -> None:
    given = build(Settings, next(table for _, table in SETTINGS if "shared_gpus" in table.get("resources", {})), "docs")
    assert given.resources.cores == 4
    given = build(Settings, next(table for _, table in SETTINGS if "sampler" in table.get("rollout", {})), "docs")
    assert (given.rollout.devices, given.training.devices, given.resources.share) == (("gpu 1",), ("gpu 0",), "memory")


def commands() -> list[tuple[str, str]]:
    """Every command line that starts marlaas, without its remark."""
    lines = [(page, line) for page, text in blocks("sh", PAGES) for line in text.splitlines()]
    return [(page, line.partition(" #")[0].strip()) for page, line in lines if line.startswith("marlaas")]


@pytest.mark.parametrize(("page", "command"), commands())
def test_commands_are_understood(page: str, command: str) -> None:
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(command)[1:]]
    assert isinstance(build_parser().parse_args(words), argparse.Namespace)


@pytest.mark.parametrize("page", PAGES)
def test_linked_files_exist(page: str) -> None:
    """Zensical checks links and anchors within the site; this covers what lies beside it, and needs no Zensical."""
    generated = {GENERATED / name for name in reference.pages()}
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGES[page]):
        path = ((ROOT / page).parent / target).resolve()
        assert path in generated or path.exists(), f"{page}: {target}"


def test_the_readme_is_a_front_door() -> None:
    assert PAGES["README.md"].count("\n") <= 250


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")}
    assert listed == pages | {f"reference/{name}" for name in reference.pages()} | {"benchmarks.md"}


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "docs/papers.md"])
def test_files_that_are_named_exist(page: str) -> None:
    """A path in code marks begins with a folder of the top level, or with one of the packages of the engine."""
    missing = []
    for path in re.findall(r"`([\w.]+/[\w./]*)[`:]", PAGES[page]):
        top = path.partition("/")[0]
        known = (ROOT / top).is_dir() or (ROOT / "engine" / top).is_dir()
        if known and "NAME" not in path and not any((root / path).exists() for root in (ROOT, ROOT / "engine")):
            missing.append(path)
    assert not missing


def test_every_setting_is_documented() -> None:
    from dataclasses import asdict, fields

    from marlaas.engine.home.settings import DOCUMENTED

    shown = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", DOCUMENTED, flags=re.MULTILINE))
    assert shown == json.loads(json.dumps(asdict(Settings())))  # a file has lists where settings have tuples
    assert len(fields(Settings)) == len(shown)
