"""What may be imported where: checked in processes of their own, for the answer is in ``sys.modules``."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "textual",
    "rich",
    "torch",
    "numpy",
    "sqlite_utils",
    "llama_cpp",
    "transformers",
    "peft",
    "psutil",
    "asyncio",
    "msgspec",
}


def imported(statement: str) -> set[str]:
    """The top-level modules that a fresh process holds after the statement, and not before it: a tool that counts lines
    has imported some by then."""
    code = f"import sys; before = {{*sys.modules}}\n{statement}\n"
    code += "print(*{name.partition('.')[0] for name in sys.modules if name not in before})"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_parser_is_cheap() -> None:
    unneeded = HEAVY | {"sqlite3", "tomllib", "difflib", "datetime"}
    assert not imported("from marlaas.app.cli.main import build_parser; build_parser(())") & unneeded


@pytest.mark.parametrize(
    "module",
    ["adapters", "api", "base", "demo", "engine", "env", "home", "queue", "results", "tasks"],
)
def test_verbs_import_nothing_heavy(module: str) -> None:
    assert not imported(f"import marlaas.app.cli.{module}") & HEAVY


def test_reads_of_verbs_import_nothing_heavy() -> None:
    assert not imported("import marlaas.app.reading, marlaas.engine.store.queries.machine") & HEAVY


@pytest.mark.parametrize(
    "module",
    ["text.environments", "operations.commands", "reading", "operations.environments.templates"],
)
def test_what_verbs_share_with_screens_imports_nothing_heavy(module: str) -> None:
    assert not imported(f"import marlaas.app.{module}") & HEAVY


def test_reading_and_steering_need_the_standard_library_alone() -> None:
    modules = (
        "store.queries.reader",
        "store.submissions",
        "daemon.control",
        "queue.submission.taskfile",
        "queue.submission.queue",
        "queue.submission.references",
        "home.settings",
    )
    assert not imported("; ".join(f"import marlaas.engine.{module}" for module in modules)) & HEAVY


def test_the_application_needs_no_tensors() -> None:
    found = imported("import marlaas.app.app")
    assert "textual" in found
    assert not found & (HEAVY - {"textual", "rich", "asyncio"})


@pytest.mark.torch
def test_a_known_architecture_trains_without_large_libraries() -> None:
    statement = (
        "from marlaas.engine.models.find import load_base; "
        "from marlaas.engine.trainer.torch_trainer import TorchTrainer; "
        "TorchTrainer(str(load_base('tiny').path), 'tiny').shutdown()"
    )
    assert not imported(statement) & {"transformers", "peft", "sympy"}


def test_the_engine_knows_no_screen_and_holds_no_tensors() -> None:
    unneeded = {"textual", "rich", "torch", "transformers", "llama_cpp", "vllm", "ray"}
    assert not imported("import marlaas.engine.daemon.main") & unneeded


def test_an_engine_without_a_cluster_knows_nothing_of_one() -> None:
    code = "import sys, marlaas.engine.daemon.main\n"
    code += (
        "print(*{name for name in sys.modules if name == 'ray' or name.startswith('marlaas.engine.machine.cluster')})"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split()


def test_the_ways_to_nodes_know_no_ray() -> None:
    assert "ray" not in imported(
        "import marlaas.engine.machine.cluster.cluster, marlaas.engine.machine.cluster.node_host"
    )
