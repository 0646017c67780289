"""The base is written into marlaas.toml, and nothing else changes."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marlaas.app.operations.settings_file import with_setting, write_setting
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.settings import DOCUMENTED, Settings

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=30)
LINES = st.sampled_from(
    [
        "# a comment",
        "",
        '# base = "tiny"',
        '  # base = "other"',
        "[engine]",
        "[rollout]  # the sampler",
        "[[list]]",
        'text = """',
        '"""',
        "number = 3",
        'base = "mine"  # chosen with care',
        "'base' = 'quoted'",
        "x = [",
        "]",
    ]
)


def test_a_sampler_goes_into_its_table_and_comments_stay(tmp_path: Path) -> None:
    text = with_setting(DOCUMENTED, "sampler", "llama.cpp", "rollout")
    assert tomllib.loads(text)["rollout"] == {"sampler": "llama.cpp"}
    assert [line for line in text.splitlines() if line not in DOCUMENTED.splitlines()] == ['sampler = "llama.cpp"']
    assert tomllib.loads(with_setting(text, "sampler", "torch", "rollout"))["rollout"] == {"sampler": "torch"}
    path = tmp_path / "marlaas.toml"
    write_setting(path, "sampler", "torch", "rollout")
    assert tomllib.loads(path.read_text()) == {"rollout": {"sampler": "torch"}}


def test_line_ends_stay(tmp_path: Path) -> None:
    path = tmp_path / "marlaas.toml"
    path.write_bytes(b'# base = "tiny"\r\n[engine]\r\ntasks = 2\r\n')
    write_setting(path, "base", "x")
    assert path.read_bytes() == b'base = "x"\n# base = "tiny"\r\n[engine]\r\ntasks = 2\r\n'


def test_comments_and_other_keys_stay() -> None:
    text = 'base = "a"  # why\n\n[engine]\n# two at a time\ntasks = 2\n'
    assert with_setting(text, "base", "b") == text.replace('"a"', '"b"')
    assert with_setting('[engine]\ntasks = 2\n# base = "tiny"\n', "base", "b").startswith('base = "b"\n[engine]')


@given(st.lists(LINES, max_size=12).map("\n".join), NAMES)
def test_any_file_says_the_same_and_the_base(text: str, name: str) -> None:
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert tomllib.loads(with_setting(text, "base", name)) == before | {"base": name}


def test_a_file_keeps_its_rights_and_its_link(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text(DOCUMENTED)
    (tmp_path / "real.toml").chmod(0o640)
    (tmp_path / "marlaas.toml").symlink_to("real.toml")
    write_setting(tmp_path / "marlaas.toml", "base", "x")
    assert (tmp_path / "marlaas.toml").is_symlink()
    assert tomllib.loads((tmp_path / "real.toml").read_text())["base"] == "x"
    assert stat.S_IMODE((tmp_path / "real.toml").stat().st_mode) == 0o640
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_is_not_there_is_made(tmp_path: Path) -> None:
    write_setting(tmp_path / "marlaas.toml", "base", 'a "quoted" \\ name')
    assert tomllib.loads((tmp_path / "marlaas.toml").read_text()) == {"base": 'a "quoted" \\ name'}
    assert Settings().base == "tiny"


def test_a_broken_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "marlaas.toml"
    for data in (b"base = ", b"\xff\xfe"):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match="cannot be read"):
            write_setting(path, "base", "x")
        assert path.read_bytes() == data
