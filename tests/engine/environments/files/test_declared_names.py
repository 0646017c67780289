"""Which environments a plugin's files seem to declare: what the host finds in them, wherever that stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.files.declared_names import LARGEST, declared_names
from marlaas.engine.environments.files.source import Source, read_source
from marlaas.engine.home.paths import BUNDLED_PLUGINS
from marlaas.plugins.host.loading import load


def of(text: str, file: str = "p.py") -> tuple[str, ...]:
    return declared_names(Source("p", file, ((file, text.encode()),)))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("@env\nasync def one(ep): ...\n@env()\ndef two(ep): ...\n@env\nclass Three: ...", ("one", "two", "Three")),
        ('@env(timeout=3, name="named")\ndef f(ep): ...', ("named",)),
        ("@marlaas.plugins.env\ndef f(ep): ...\n@other\ndef g(ep): ...", ("f",)),
        ('chain = reasoning_gym("chain_sum", terms=2)\nx = adapters.gymnasium("A/B-v1", name="b")', ("chain_sum", "b")),
        ("w: Environment = gymnasium(World)", ("World",)),
        (
            '@env.program("a")\ndef solve(ep, run): ...\nx = env.program("python b.py -x", reward="exit")',
            ("solve", "b"),
        ),
        ('x = env.program("a", name="c d")\ny = env.program(["a"])', ("c_d",)),
        ("def load_environment(): ...", ("p",)),
        ("class _T(Base): ...\nclass T(vf.Taskset[X]): ...", ("p",)),
        ("class W(gymnasium.Env): ...\nclass H: ...", ("W",)),
        ("class T:\n  def reset(self): ...\n  def get_reward(self): ...", ("T",)),
        ("@env\ndef f(ep): ...\nclass W(gymnasium.Env): ...", ("f",)),
        ("nothing = 1", ()),
        ("def broken(:", ()),
        ("\0", ()),
        ("@env\ndef f(ep): ...\n#" + "x" * LARGEST, ()),
        ("(" * 10_000, ()),
    ],
)
def test_python_files(text: str, names: tuple[str, ...]) -> None:
    assert of(text) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('adapter = "reasoning_gym"\ndataset = "chain_sum"\n[args]\nmin_terms = 2', ("chain_sum",)),
        ('requires-python = ">=3.11"\nadapter = "gymnasium"\nname = "lake"\nenvironment = "Lake-v1"', ("lake",)),
        (
            '[[environments]]\nadapter = "textarena"\ngame = "Nim-v0"\n'
            '[[environments]]\nadapter = "unknown"\ngame = "x"\n'
            '[[environments]]\nadapter = "gymnasium"\nenvironment = "a b"',
            ("Nim-v0", "a_b"),
        ),
        ('adapter = "program"\nreward = "exit"\ncommand = "python agent.py"', ("agent",)),
        ("environments = 3", ()),
        ("environments = [1]", ()),
        ("adapter =", ()),
    ],
)
def test_toml_files(text: str, names: tuple[str, ...]) -> None:
    assert of(text, "p.toml") == names


@pytest.mark.parametrize("path", sorted(BUNDLED_PLUGINS.glob("*.py")), ids=lambda path: path.stem)
def test_the_host_finds_the_same(path: Path) -> None:
    assert declared_names(read_source(path)) == tuple(load(path))


@given(text=st.text(max_size=200), file=st.sampled_from(["p.py", "p.toml"]))
def test_no_text_is_too_odd(text: str, file: str) -> None:
    assert all(isinstance(name, str) for name in of(text, file))
