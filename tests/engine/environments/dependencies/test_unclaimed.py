"""Which libraries no plugin asks for: by what the files say as they are now."""

from __future__ import annotations

from pathlib import Path

from marlaas.engine.environments.dependencies.interpreters import installed, needs_of
from marlaas.engine.environments.files.source import read_source

NEEDS = '# /// script\n# dependencies = ["{name}"]\n# ///\n'


def plugin(folder: Path, name: str, needs: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(NEEDS.format(name=needs))
    return path


def test_sets_are_claimed_by_what_plugins_declare_now(tmp_path: Path) -> None:
    plugins, venvs = tmp_path / "plugins", tmp_path / "venvs"
    assert installed(venvs, (plugins,)) == []
    kept, edited = plugin(plugins, "kept", "a"), plugin(plugins, "edited", "b")
    folders = []
    for path in (kept, edited):
        _, venv = needs_of(read_source(path), venvs)
        assert venv is not None
        (venv.folder / "lib").mkdir(parents=True)
        (venv.folder / "lib" / "x.py").write_bytes(bytes(1000))
        venv.allow()
        folders.append(venv.folder)
    (venvs / "api-0").mkdir()
    assert {(one.folder, one.size, one.claimed) for one in installed(venvs, (plugins,))} == {
        (folders[0], 1000, True),
        (folders[1], 1000, True),
    }
    plugin(plugins, "edited", "c")
    (plugins / "broken.py").write_text("# /// script\n# dependencies = 3\n# ///\n")
    assert [one.folder for one in installed(venvs, (tmp_path / "nowhere", plugins)) if not one.claimed] == [folders[1]]
