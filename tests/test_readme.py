"""What the README shows is what the program does."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from marlaas.engine.spec.agents import check_declared
from marlaas.engine.spec.task import TaskSpec, parse
from marlaas.plugins.host.loading import load

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, word: str) -> str:
    """The first code block of a language that holds a word."""
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return next(text for text in blocks if word in text)


def test_the_first_environment_is_the_example_file() -> None:
    assert block("python", "reverse_words") == (ROOT / "examples" / "reverse_words.py").read_text(encoding="utf-8")


def test_the_two_players_are_the_example_file_and_its_task_fits_them() -> None:
    assert block("python", "duel") == (ROOT / "examples" / "duel.py").read_text(encoding="utf-8")
    spec = parse(tomllib.loads(block("toml", '"duel"')), "README")
    check_declared(spec, load(ROOT / "examples" / "duel.py")["duel"].agents)
    assert spec.agents and spec.eval.rotate


def test_the_first_task_file_is_valid() -> None:
    assert parse(tomllib.loads(block("toml", "first run")), "README").environment == "reverse_words"


def test_the_reference_shows_every_key_with_its_default() -> None:
    text = block("toml", "physics-lab")
    shown = tomllib.loads(re.sub(r"^# (\w+ +=)", r"\1", text, flags=re.MULTILINE))
    defaults = TaskSpec("physics-lab", "two-digit sums", "arithmetic").to_json()
    shown |= {"environment_config": {}, "policies": {}, "agents": {}}  # the last two have a section of their own
    for name, table in defaults.items():
        if isinstance(table, dict):
            for key in [key for key, value in table.items() if value is None]:
                assert shown[name].pop(key) is not None, "what is absent by default is shown with a # before it"
                del table[key]
    defaults["queue"]["depends_on"] = list(defaults["queue"]["depends_on"])
    assert shown == defaults


def test_the_task_file_of_several_policies_is_valid() -> None:
    spec = parse(tomllib.loads(block("toml", "[policies.adder]")), "README")
    assert spec.environment == "relay" and set(spec.policies) == {"adder", "sorter"}


def test_the_settings_of_a_guest_are_valid() -> None:
    from marlaas.engine.home.settings import Settings
    from marlaas.engine.spec.validation import build

    assert build(Settings, tomllib.loads(block("toml", "shared_gpus")), "README").resources.cores == 4


def test_the_settings_of_the_placement_are_valid() -> None:
    from marlaas.engine.home.settings import Settings
    from marlaas.engine.spec.validation import build

    settings = build(Settings, tomllib.loads(block("toml", "[rollout]\nsampler")), "README")
    assert settings.rollout.devices == ("gpu 1",)
    assert settings.training.devices == ("gpu 0",)
    assert settings.resources.share == "memory"


def test_every_linked_file_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_setting_is_documented() -> None:
    from dataclasses import asdict, fields

    from marlaas.engine.home.settings import DOCUMENTED, Settings

    shown = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", DOCUMENTED, flags=re.MULTILINE))
    assert shown == json.loads(json.dumps(asdict(Settings())))  # a file has lists where settings have tuples
    assert len(fields(Settings)) == len(shown)
