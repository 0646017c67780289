"""The generated pages say everything that the code knows, and only that."""

from __future__ import annotations

import re
from pathlib import Path

from marlaas import plugins
from marlaas.app.cli.main import VERBS
from marlaas.app.text.terms import TERMS
from marlaas.engine.home.settings import Settings
from marlaas.engine.spec.fields import spec_fields
from marlaas.engine.spec.task import NamedPolicySpec, SuiteSpec
from tools import reference

PAGES = reference.pages()


def test_every_key_of_a_task_file_is_there_with_its_default() -> None:
    text = PAGES["task-file.md"]
    for field in (
        *spec_fields(),
        *spec_fields(NamedPolicySpec, "policies.NAME."),
        *spec_fields(SuiteSpec, "eval.suite."),
    ):
        assert f"\n| `{field.name}`" in text, field.key
    assert '| `learning_rate` ¹ | float | `"auto"` | 0 to 1, or auto | Of AdamW; auto: by' in text
    assert "| `tenant` | str | required |" in text


def test_every_setting_is_there_with_its_words() -> None:
    keys = {(key.table, key.name): key for key in reference.documented()}
    given = Settings()
    for (table, name), key in keys.items():
        assert key.about, name
        default = getattr(getattr(given, table) if table else given, name)
        assert key.default == (list(default) if isinstance(default, tuple) else default)
        assert f"| `{name}` |" in PAGES["settings.md"]
    assert keys["rollout", "context"].about == keys["rollout", "sequences"].about


def test_every_verb_is_there() -> None:
    text = PAGES["verbs.md"]
    for verb in (verb for verbs in VERBS.values() for verb in verbs):
        assert re.search(rf"(?m)^## marlaas {verb}\b", text), verb
    assert "## marlaas engine yield" in text and "%(" not in text and "==SUPPRESS==" not in text


def test_everything_that_authors_import_is_there() -> None:
    assert set(reference.ORDER) == set(plugins.__all__)
    text = PAGES["environment-api.md"]
    for name in plugins.__all__:
        assert f"\n## {name}\n" in text
    assert f"plugin API of marlaas {reference.api_version()}" in text
    assert (
        'await Agent.ask(\n    content: str | Sequence[Message] = "",\n    *,\n    max_tokens: int | None = None,'
        in text
    )


def test_every_term_is_on_its_page() -> None:
    for term in TERMS:
        if term.kind == "word":
            assert f"\n| {term.name} | " in PAGES["words.md"]
            continue
        older = f" ({', '.join(f'`{old}`' for old in term.old)})" if term.old else ""
        key = f"`{term.key}`{older}" if term.key else ""
        name = f"**{term.name}**" if term.important else term.name
        assert f"\n| {name} | {key} | " in PAGES["metrics.md"], term.name


def test_pages_are_written_where_the_site_looks_for_them(tmp_path: Path) -> None:
    assert {path.name for path in reference.write_reference(tmp_path / "new")} == PAGES.keys()
    assert (tmp_path / "new" / "metrics.md").read_text("utf-8") == PAGES["metrics.md"]
