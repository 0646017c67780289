"""marlaas.toml: what a new home's file says of every key is what holds without it."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import DOCUMENTED, Settings, load_settings


def test_every_key_is_documented_with_its_default() -> None:
    shown = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", DOCUMENTED, flags=re.MULTILINE))
    assert shown == json.loads(json.dumps(asdict(Settings())))  # a file has lists where settings have tuples
    assert all(len(line) <= 120 for line in DOCUMENTED.splitlines())


def test_files_and_folders_count_from_the_home(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.config.write_text('[rollout]\ngguf = "a.gguf"\n[environments]\nwheels = "w"\n')
    settings = load_settings(home)
    assert (settings.rollout.gguf, settings.environments.wheels) == (str(tmp_path / "a.gguf"), str(tmp_path / "w"))
    home.config.write_text('[environments]\nwheels = "/w"\n')
    assert load_settings(home).environments.wheels == "/w"


def test_a_command_that_nobody_can_split_is_said(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.config.write_text("""[notify]\ncommand = "notify 'me"\n""")
    with pytest.raises(ConfigError, match=r"'notify\.command' cannot be read: No closing quotation"):
        load_settings(home)


def test_a_word_that_is_none_is_said(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.config.write_text('[environments]\nallow = "allways"\n')
    with pytest.raises(ConfigError, match="Did you mean 'always'"):
        load_settings(home)


def test_cards_are_a_word_or_a_list(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.config.write_text('[resources]\ngpus = [0, "GPU-3f2a"]\n')
    assert load_settings(home).resources.gpus == (0, "GPU-3f2a")
    home.config.write_text('[resources]\ngpus = "none"\n')
    assert load_settings(home).resources.gpus == "none"
    for wrong in ('"0,1"', "0", "[0.5]", "[[0]]"):
        home.config.write_text(f"[resources]\ngpus = {wrong}\n")
        with pytest.raises(ConfigError, match=r"'resources\.gpus'"):
            load_settings(home)


def test_active_hours_that_nobody_can_read_are_said(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.config.write_text('[resources]\nactive_hours = "at night"\n')
    with pytest.raises(ConfigError, match=r"'resources\.active_hours': 'at night' are no active hours") as refused:
        load_settings(home)
    assert "22:00-07:00" in refused.value.hint


def test_the_api_listens_at_an_address(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for address, local in (("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False)):
        home.config.write_text(f'[api]\nlisten = "{address}"\n')
        assert load_settings(home).api.local is local
    home.config.write_text('[api]\nlisten = "my-host:80"\n')
    with pytest.raises(ConfigError, match=r"'api\.listen' is 'my-host:80', which is no address of a machine"):
        load_settings(home)
    for wrong in ("port = 70000", 'port = "x"', "seconds = 0", "body_mb = 100", "on = true"):
        home.config.write_text(f"[api]\n{wrong}\n")
        with pytest.raises(ConfigError):
            load_settings(home)
