"""The house rules that a machine can check: layout, what a command loads, and the form of errors."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from marlaas.engine import errors
from marlaas.engine.errors import ConfigError, MarlaasError, as_one, short_place

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("app", "engine", "plugins")
MOST_LINES = 900
LONGEST_TEST_NAME = 60
DATA = {"bundled", "templates"}
"""Folders of plugins that are read and copied, never imported."""
HEAVY = {
    *("textual", "rich", "torch", "numpy", "sqlite_utils", "llama_cpp", "transformers", "peft", "psutil"),
    *("asyncio", "msgspec"),
}
CAUSE_WITHIN = 60
PATHS = re.compile(r"path|file|folder|root|database|home(?!\.lock)|\blog\b|out_dir|plugins")
"""Names in the code of what is filled in and may be of any length."""
CAUSES = re.compile(
    r"\b(no|not|none|nothing|cannot|could not|is|are|was|were|has|have|holds|must|needs?|takes?|lies|ends?|exists?"
    r"|several|without|different|belongs?|says?|names?|knows?|refused?|reads?|died|failed|stopped|there|lists|serves|can|refuses|leads)\b",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def parsed() -> dict[Path, ast.Module]:
    """Every source file by its path in the repository, read once."""
    folders = (*PRODUCT, "tools", "examples", "benchmarks")
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT): ast.parse(path.read_text("utf-8")) for path in paths}


def test_a_file_has_a_docstring_and_relative_imports(parsed: dict[Path, ast.Module]) -> None:
    wrong = []
    for path, module in parsed.items():
        lines, about = (ROOT / path).read_text("utf-8").count("\n"), ast.get_docstring(module) or "TODO"
        if lines > MOST_LINES or about.startswith("TODO"):
            wrong.append(f"{path}: {lines} lines, {about.splitlines()[0]}")
        froms = [node for node in ast.walk(module) if isinstance(node, ast.ImportFrom) and not node.level]
        for node in froms if not DATA & set(path.parts) else ():
            if (node.module or "").startswith(f"marlaas.{path.parts[0]}"):
                wrong.append(f"{path}:{node.lineno}: the package itself is imported by its name")
    assert not wrong


def test_names_of_tests_are_short() -> None:
    long = {
        f"{path.name}: {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"\bdef (test_\w+)", path.read_text("utf-8"))
        if len(name) > LONGEST_TEST_NAME
    }
    assert not long, f"a test's name has at most {LONGEST_TEST_NAME} characters; its docstring may say more"


def test_sql_lives_in_the_store_alone(parsed: dict[Path, ast.Module]) -> None:
    for path in parsed:
        if "store" not in path.parts and path.name not in ("machine.py", "checking.py"):  # checks damaged databases
            assert "sqlite3" not in (ROOT / path).read_text(encoding="utf-8"), path


def test_every_package_of_the_tree_is_in_the_wheel(parsed: dict[Path, ast.Module]) -> None:
    code = "import runpy, setuptools; setuptools.setup = lambda **k: print(*k['packages']); runpy.run_path('setup.py')"
    listed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    expected = {"marlaas." + ".".join(path.parent.parts) for path in parsed if path.parts[0] in PRODUCT}
    assert expected - set(listed.split()) <= {f"marlaas.plugins.{folder}" for folder in DATA}


# What a command loads


def loaded(statement: str) -> set[str]:
    """Top-level modules, and those of marlaas, that a fresh process holds after the statement and not before it: a tool
    that counts lines has imported some by then."""
    code = f"import sys; before = {{*sys.modules}}\n{statement}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    names = set(done.stdout.split())
    return {name for name in names if name.startswith("marlaas.")} | {name.partition(".")[0] for name in names}


def test_the_parser_is_cheap() -> None:
    unneeded = HEAVY | {"sqlite3", "tomllib", "difflib", "datetime"}
    assert not loaded("from marlaas.app.cli.main import build_parser; build_parser(())") & unneeded


def test_verbs_and_what_they_share_load_nothing_heavy() -> None:
    """The Python client, too; reading and steering need the standard library alone."""
    verbs = ("adapters", "api", "base", "demo", "engine", "env", "home", "queue", "results", "tasks")
    shared = ("text.environments", "operations.commands", "reading", "operations.environments.templates", "client")
    engine = ("store.queries.reader", "store.queries.machine", "store.submissions", "daemon.control", "home.settings")
    queue = ("taskfile", "queue", "references")
    modules = [*(f"app.cli.{name}" for name in verbs), *(f"app.{name}" for name in shared)]
    modules += [*(f"engine.{name}" for name in engine), *(f"engine.queue.submission.{name}" for name in queue)]
    assert not loaded("; ".join(f"import marlaas.{module}" for module in modules)) & HEAVY


def test_the_application_needs_no_tensors() -> None:
    modules = loaded("import marlaas.app.app")
    assert "textual" in modules and not modules & (HEAVY - {"textual", "rich", "asyncio"})


@pytest.mark.torch
def test_a_known_architecture_trains_without_large_libraries() -> None:
    statement = (
        "from marlaas.engine.models.find import load_base; "
        "from marlaas.engine.trainer.torch_trainer import TorchTrainer; "
        "TorchTrainer(str(load_base('tiny').path), 'tiny').shutdown()"
    )
    assert not loaded(statement) & {"transformers", "peft", "sympy"}


def test_an_engine_knows_no_screen_no_tensors_and_no_cluster() -> None:
    modules = loaded("import marlaas.engine.daemon.main")
    assert not modules & {"textual", "rich", "torch", "transformers", "llama_cpp", "vllm", "ray"}
    assert not [name for name in modules if name.startswith("marlaas.engine.machine.cluster")]
    cluster = "marlaas.engine.machine.cluster"
    assert "ray" not in loaded(f"import {cluster}.cluster"), "the ways to nodes know none"


# Errors: where, cause, what to do; the cause in the first 60 characters


def made_of(node: ast.expr) -> str | None:
    """A text as the source has it, with NAME for what is filled in, a null byte for a path; None if it is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    words = ""
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            words += "\0" if PATHS.search(ast.unparse(part.value)) and part.conversion == -1 else "NAME"
        else:
            words += str(part.value) if isinstance(part, ast.Constant) else ""
    return words


def test_errors_name_their_cause_early_in_whole_sentences(parsed: dict[Path, ast.Module]) -> None:
    family = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, MarlaasError)}
    late, open_ended, count = [], [], 0
    for path, module in parsed.items():
        for node in ast.walk(module) if path.parts[0] in ("app", "engine") else ():
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in family or not node.args:
                continue
            cause, *hints = map(made_of, node.args[:2])
            if cause is None:
                continue
            count += 1
            before, path_begins, _ = cause[:CAUSE_WITHIN].partition("\0")
            if path_begins and not CAUSES.search(before):
                late.append(f"{path}:{node.lineno}: {before!r}")
            if not cause.rstrip().endswith((".", "?", "!", "NAME", "\0")):
                open_ended.append(f"{path}:{node.lineno}")
            if hints and hints[0] and not hints[0].rstrip().endswith((".", "?", "…", "NAME")):
                open_ended.append(f"{path}:{node.lineno}")
    assert count > 200 and {"ConfigError", "StoreError", "AdapterError"} <= family
    assert not late, "name a long path as `where`, or say the cause before it:\n" + "\n".join(late)
    assert not open_ended, "end with a full stop:\n" + "\n".join(open_ended)


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("", "it is wrong."),
        ("t.toml:3:1", "t.toml:3:1: it is wrong."),
        ("/home/somebody/a-project/tasks/reverse.toml:12:1", "…/a-project/tasks/reverse.toml:12:1: it is wrong."),
        ("x" * 100, f"…{'x' * 39}: it is wrong."),
    ],
)
def test_a_place_stands_before_the_cause_and_is_short(where: str, shown: str) -> None:
    error = ConfigError("it is wrong.", "Mend it.", where=where, path="a.b")
    assert (error.message, str(error), len(short_place(where)) <= 40) == (shown, f"{shown} Mend it.", True)
    moved = error.at("elsewhere:1:1")
    whole = (moved.message, moved.hint, moved.path, error.message)
    assert whole == ("elsewhere:1:1: it is wrong.", "Mend it.", "a.b", shown)


def test_several_mistakes_are_one_error() -> None:
    whole = as_one([ConfigError("one.", path="a"), ConfigError("two.", "Mend it.", path="b")])
    assert [(mistake.path, str(mistake)) for mistake in whole.mistakes] == [("a", "one."), ("b", "two. Mend it.")]
    assert str(whole) == "one.\ntwo. Mend it." and whole.path == "a" and whole.exit_code == 2
    assert as_one(whole.mistakes).mistakes[1].mistakes == (whole.mistakes[1],)
