"""What the README, the pages of ``docs`` and the examples show is what the program does."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runner import MODULES
from marlaas import plugins
from marlaas.app.cli.main import VERBS, build_parser
from marlaas.app.keymap import known_keys
from marlaas.engine.home.paths import BUNDLED_PLUGINS
from marlaas.engine.home.settings import DOCUMENTED, ClusterSettings, Settings
from marlaas.engine.machine.cluster.joining import FIXED, ray_flags
from marlaas.engine.spec.fields import spec_fields
from marlaas.engine.spec.rules import check_declared
from marlaas.engine.spec.sweep import members
from marlaas.engine.spec.task import NamedPolicySpec, SuiteSpec, parse
from marlaas.engine.spec.validation import build
from tests.loading import load
from tools import reference
from tools.docs import LINK, fetched, places, relinked, write_pages
from tools.reference import PLACES, keys_of, spelled

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "docs" / "reference"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
    if path.parent != GENERATED
}
WRITTEN = {name: text for name, text in PAGES.items() if name == "README.md" or name.startswith("docs/")}


@pytest.fixture(scope="module")
def reference_pages() -> dict[str, str]:
    """The generated pages, by their names."""
    return reference.pages()


def blocks(language: str, texts: dict[str, str] = WRITTEN) -> list[tuple[str, str]]:
    """All code blocks of a language, each with the page that it stands on."""
    pattern = rf"(?m)^```{language}\n(.*?)^```"
    return [(name, block) for name, text in texts.items() for block in re.findall(pattern, text, re.DOTALL | re.M)]


# Code, task files, settings and commands


TOML = [(name, tomllib.loads(text)) for name, text in blocks("toml")]
TASKS = [(name, table) for name, table in TOML if table.keys() >= {"tenant", "name", "environment"}]
SETTINGS = [(name, table) for name, table in TOML if table and table.keys() <= Settings.__dataclass_fields__.keys()]
EXAMPLE_TASKS = sorted((ROOT / "examples" / "tasks").glob("*.toml"))


@pytest.mark.parametrize("name", ["reverse_words", "duel"])
def test_environments_are_the_example_files(name: str) -> None:
    shown = [text for _, text in blocks("python") if f"async def {name}(" in text]
    assert shown and set(shown) == {(ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")}


def test_python_compiles() -> None:
    for page, text in blocks("python"):
        compile(text, page, "exec")


@pytest.mark.parametrize(("page", "table"), TASKS, ids=lambda value: value if isinstance(value, str) else value["name"])
def test_task_files_are_valid(page: str, table: dict[str, Any]) -> None:
    for member in members(table, page):
        spec = parse(member.table, page)
        if spec.environment == "duel":
            check_declared(spec, load(ROOT / "examples" / "duel.py")["duel"].agents)


def test_pages_have_task_files_and_settings_that_are_heard() -> None:
    assert {"README.md", "docs/tutorials/multi-agent.md", "docs/guides/policies.md"} <= {page for page, _ in TASKS}
    given = [(table, build(Settings, table, page)) for page, table in SETTINGS]
    assert (
        next(settings for table, settings in given if "shared_gpus" in table.get("resources", {})).resources.cores == 4
    )
    named = next(settings for table, settings in given if "sampler" in table.get("rollout", {}))
    assert (named.rollout.devices, named.training.devices, named.resources.share) == (("gpu 1",), ("gpu 0",), "memory")


@pytest.mark.parametrize("path", EXAMPLE_TASKS, ids=lambda path: path.stem)
def test_an_example_task_fits_its_environment(path: Path) -> None:
    assert {each.stem for each in EXAMPLE_TASKS} == {"race_self_play", "race_pool", "relay_two_policies"}
    spec = parse(tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    declared = load(BUNDLED_PLUGINS / f"{spec.environment}.py")[spec.environment].agents
    assert declared and set(spec.agents) == set(declared)
    check_declared(spec, declared)


def test_commands_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    parser = build_parser()
    lines = [(page, line) for page, text in blocks("sh", PAGES) for line in text.splitlines()]
    commands = [(page, line.partition(" #")[0].strip()) for page, line in lines if line.startswith("marlaas")]
    assert len(commands) > 50
    for page, command in commands:
        try:
            parser.parse_args([{"ID": "1", "TASK": "1"}.get(word, word) for word in shlex.split(command)[1:]])
        except SystemExit:
            pytest.fail(f"{page}: {command}: {capsys.readouterr().err}")


def test_every_setting_is_documented() -> None:
    shown = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", DOCUMENTED, flags=re.MULTILINE))
    assert shown == json.loads(json.dumps(asdict(Settings())))  # a file has lists where settings have tuples


# Links and names


@pytest.mark.parametrize("page", PAGES)
def test_linked_files_exist(page: str, reference_pages: dict[str, str]) -> None:
    """Zensical checks links and anchors within the site; this covers what lies outside of it, and needs no Zensical."""
    generated = {GENERATED / name for name in reference_pages}
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGES[page]):
        path = ((ROOT / page).parent / target).resolve()
        assert path in generated or path.exists(), f"{page}: {target}"


def test_every_page_is_in_the_navigation(reference_pages: dict[str, str]) -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")}
    assert listed == pages | {f"reference/{name}" for name in reference_pages} | {"benchmarks.md"}
    assert PAGES["README.md"].count("\n") <= 250, "it is a front door"


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


# Keys: those that a page names under a heading act in the views of which it speaks


KEY = re.compile(r"`(ctrl\+[a-z]+|shift\+\S+|esc|enter|space|tab|f(?:[1-9]|1[0-2])|[A-Za-z1-9/?:*←→↑↓])`")
MARK = {("docs/concepts/staleness.md", "2"), ("docs/guides/serving.md", "n"), ("docs/guides/endpoints.md", "n")}
"""What looks like a key and is none."""
TEXTUAL = {"ctrl+p", "tab", "esc", "enter", *"←→↑↓"}
"""Keys that Textual has in every view: the palette, the next field, what a dialog or a field does."""
GUIDE = "docs/guides/application.md"
SPEAKS_OF = {
    (GUIDE, "The application"): "Everywhere Queue",
    (GUIDE, "Keys"): "Lists Queue Task",
    (GUIDE, "Queue"): "Queue",
    (GUIDE, "Task"): "Task",
    (GUIDE, "Rollouts"): "Rollouts",
    (GUIDE, "Environments"): "Environments",
    (GUIDE, "Adapters"): "Adapters",
    (GUIDE, "Chat"): "Chat",
    (GUIDE, "Engine"): "Engine",
    (GUIDE, "Logs"): "Logs",
    (GUIDE, "API"): "API",
    (GUIDE, "Add a task"): "Add",
    ("docs/guides/evaluation.md", "Comparing"): "Task",
    ("docs/guides/losses.md", "Credit within an episode"): "Rollouts",
    ("docs/guides/queue.md", "Blocked tasks"): "Task",
    ("docs/guides/tasks.md", "Which tokens may be drawn"): "Chat",
    ("docs/guides/wrong.md", "When learning goes wrong"): "Task",
    ("docs/operations/sharing.md", "Sharing a machine"): "Engine",
    ("docs/operations/sharing.md", "Yield"): "Engine",
    ("docs/tutorials/first-environment.md", "5. Take the adapter away"): "Adapters",
    ("README.md", "Everyday"): "Task",
}
"""The titles of ``PLACES``, by their first words, of which the part of a page under a heading speaks."""


def named_keys() -> set[tuple[str, str, str]]:
    """(page, heading, key) for each key that a page names outside of code blocks."""
    keys, heading = set(), ""
    for name, text in WRITTEN.items():
        for line in re.sub(r"(?ms)^```.*?^```", "", text).splitlines():
            if line.startswith("#"):
                heading = line.lstrip("# ")
            keys |= {(name, heading, key) for key in KEY.findall(line) if (name, key) not in MARK}
    return keys


def test_a_key_that_a_page_names_acts_there() -> None:
    acting = {
        title.split()[0]: {name for key in keys_of(scopes) for name in spelled(key)} for title, scopes in PLACES.items()
    }
    assert len(named_keys()) > 60
    for name, heading, key in named_keys():
        places = ["Everywhere", *SPEAKS_OF.get((name, heading), "").split()]
        known = set[str]().union(*(acting[place] for place in places))
        assert key in known | TEXTUAL, f"{name}, {heading}: no key {key} among those of {', '.join(places)}"


def test_the_page_of_keys_has_all_of_them(reference_pages: dict[str, str]) -> None:
    scopes = [scope for of in PLACES.values() for scope in of]
    assert sorted(scopes) == sorted({key.name.partition(".")[0] for key in known_keys()})
    page = reference_pages["keys.md"]
    assert not [key.name for key in known_keys() if key.what and f"| `{key.name}` |" not in page]


# docs/papers.md: every figure stands where its link leads


RESULTS = ROOT / "benchmarks" / "results"
PAPERS = PAGES["docs/papers.md"]
NUMBER = r"\d[\d,]*(?:\.\d+)?"
FIGURES = set(re.findall(r"\[([^][]+)\]\(\.\./benchmarks/results/(\w+)\.md\)", " ".join(PAPERS.split())))
"""Words with figures, and the section on whose page they stand."""


def stands(words: str, lines: list[str]) -> bool:
    """Whether all numbers of a figure stand on one line, outside of the brackets of its spread."""
    wanted = set(re.findall(NUMBER, words))
    return bool(wanted) and any(wanted <= set(re.findall(NUMBER, re.sub(r"\[.*?\]", "", line))) for line in lines)


def test_figures_stand_on_their_pages() -> None:
    links = re.findall(r"\]\(\.\./benchmarks/results/\w+\.md\)", PAPERS)
    assert FIGURES and PAPERS.count("benchmarks/results/") == len(links), "all are in one form"
    for words, section in FIGURES:
        lines = (RESULTS / f"{section}.md").read_text(encoding="utf-8").splitlines()
        assert stands(words, lines), f"benchmarks/results/{section}.md has no line with all numbers of {words!r}"


def test_each_claim_of_a_table_has_its_part() -> None:
    claims = re.findall(r"(?m)^\| \[([^][]+)\]\(#([\w-]+)\) \|", PAPERS)
    assert [claim for claim, _ in claims] == re.findall(r"(?m)^### (.+)$", PAPERS)
    for claim, anchor in claims:
        assert anchor == re.sub(r"[^\w -]", "", claim.lower()).replace(" ", "-")
        part = PAPERS.partition(f"### {claim}\n")[2].partition("\n#")[0]
        assert all(f"- **{word}**" in part for word in ("Here", "Run", "Differs")), claim
    named = re.findall(r"make bench BENCH=(?:'([^']+)'|(\w+))", PAPERS)
    assert named and {name for several, name in named for name in (several or name).split()} <= set(MODULES)


def test_published_pictures_are_shown() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    for picture in (ROOT / "docs" / "measured").glob("*.svg"):
        assert f"measured/{picture.name})" in pages, f"no page of docs shows {picture.name}"


def test_the_check_of_figures_finds_what_is_wrong() -> None:
    lines = ["| a step | s | 31.7 [31.6–31.7] | 697 one after another | 22.0 × |", "Tools take 0.5 s."]
    assert stands("31.7 s, not 697 s: 22.0 ×", lines) and stands("−0.5", lines)
    for wrong in ("2.0 ×", "31.6", "31.7 s, 0.5", "faster"):
        assert not stands(wrong, lines)


# Clusters that other programs start: they start Ray as `marlaas cluster join` does


SLURM = (ROOT / "examples" / "cluster" / "slurm.sbatch").read_text(encoding="utf-8")
SKYPILOT = (ROOT / "examples" / "cluster" / "skypilot.yaml").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_understands_the_cluster_examples() -> None:
    parts = re.findall(r"(?m)^(?:setup|run): \|\n((?:  .*\n|\n)+)", SKYPILOT)
    assert len(parts) == 2
    for text in (SLURM, *parts):
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_slurm_starts_ray_on_the_same_conditions() -> None:
    exported = dict(re.findall(r"(?m)^export (RAY_\w+)=(\S+)$", SLURM))
    assert {name: exported.get(name) for name in FIXED} == FIXED
    assert "RAY_AUTH_MODE=token" in SLURM
    options = set(re.findall(r"--[a-z-]+=\S+|--[a-z-]+", SLURM.partition("ray symmetric-run")[2]))
    assert set(ray_flags(ClusterSettings())) <= options


# The site, and the generated pages


FOUND = {
    "BENCHMARKS.md": "benchmarks.md",
    "benchmarks/results/engine.md": "results/engine.md",
    "docs/index.md": "index.md",
    "docs/measured/engine.svg": "measured/engine.svg",
    "docs/operations/speed.md": "operations/speed.md",
}


def test_links_follow_their_files() -> None:
    text = "[1.66 ms](../../benchmarks/results/engine.md#method), [all](../../BENCHMARKS.md) and [start](../index.md)"
    shown = "[1.66 ms](../results/engine.md#method), [all](../benchmarks.md) and [start](../index.md)"
    assert relinked(text, "docs/operations/speed.md", FOUND) == shown
    page = "How to read it: [Benchmarks](../../BENCHMARKS.md).\n\n![A picture](../../docs/measured/engine.svg)"
    shown = "How to read it: [Benchmarks](../benchmarks.md).\n\n![A picture](../measured/engine.svg)"
    assert relinked(page, "benchmarks/results/engine.md", FOUND) == shown
    assert relinked("[engine](benchmarks/results/engine.md)", "BENCHMARKS.md", FOUND) == "[engine](results/engine.md)"


def test_no_link_of_the_site_leads_out_of_it(tmp_path: Path, reference_pages: dict[str, str]) -> None:
    """Zensical, which checks this too, is not there when tests run."""
    write_pages(tmp_path)
    for name in reference_pages:
        (tmp_path / "reference").mkdir(exist_ok=True)
        (tmp_path / "reference" / name).touch()
    known = {path.resolve() for path in tmp_path.rglob("*.*")}
    assert {(tmp_path / place).resolve() for place in places().values()} <= known
    for page in (path for path in tmp_path.rglob("*.md") if path.parent.name != "reference"):
        text = re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"))
        for target in LINK.findall(text):
            assert (page.parent / target).resolve() in known, f"{page.relative_to(tmp_path)}: {target}"
    assert re.search(r"(?m)^docs_dir: build/pages\b", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<a href="https://example.org">read</a>', []),
        ('<script src="assets/a.js"></script><img src="data:image/svg+xml;//">', []),
        ('<link rel="canonical" href="https://example.org/page">', []),
        ('<link rel="stylesheet" href="https://fonts.example.org/a.css">', ["https://fonts.example.org/a.css"]),
        ('<script src="//cdn.example.org/a.js"></script>', ["//cdn.example.org/a.js"]),
        ('<pre class="mermaid">graph</pre>', ["mermaid"]),
    ],
)
def test_what_a_page_fetches(html: str, found: list[str]) -> None:
    assert fetched(html) == found


def test_every_key_of_a_task_file_is_there_with_its_default(reference_pages: dict[str, str]) -> None:
    text = reference_pages["task-file.md"]
    for field in (
        *spec_fields(),
        *spec_fields(NamedPolicySpec, "policies.NAME."),
        *spec_fields(SuiteSpec, "eval.suite."),
    ):
        assert f"\n| `{field.name}`" in text, field.key
    assert '| `learning_rate` ¹ | float | `"auto"` | 0 to 1, or auto | Of AdamW; auto: by' in text
    assert "| `tenant` | str | required |" in text


def test_every_setting_is_there_with_its_words(reference_pages: dict[str, str]) -> None:
    keys, given = reference.documented(), Settings()
    for (table, name), (documented, about) in keys.items():
        assert about, name
        default = getattr(getattr(given, table) if table else given, name)
        assert documented == (list(default) if isinstance(default, tuple) else default)
        assert f"| `{name}` |" in reference_pages["settings.md"]
    assert keys["rollout", "context"][1] == keys["rollout", "sequences"][1]


def test_every_verb_is_there(reference_pages: dict[str, str]) -> None:
    text = reference_pages["verbs.md"]
    for verb in (verb for verbs in VERBS.values() for verb in verbs):
        assert re.search(rf"(?m)^## marlaas {verb}\b", text), verb
    assert "## marlaas engine yield" in text and "%(" not in text and "==SUPPRESS==" not in text


def test_everything_that_authors_import_is_there(reference_pages: dict[str, str]) -> None:
    assert set(reference.ORDER) == set(plugins.__all__)
    text = reference_pages["environment-api.md"]
    for name in plugins.__all__:
        assert f"\n## {name}\n" in text
    assert f"plugin API of marlaas {reference.api_version()}" in text
    assert (
        'await Agent.ask(\n    content: str | Sequence[Message] = "",\n    *,\n    max_tokens: int | None = None,'
        in text
    )
