"""No Ray without a token that this account alone can read, unless a person says so."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import ClusterSettings
from marlaas.engine.machine.cluster.joining import (
    LEAST_STORE,
    check_token,
    keep_token,
    make_token,
    ray_environment,
    ray_flags,
    token_file,
)

PLAIN = ClusterSettings()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def test_a_new_token_is_kept_from_others(home: Home) -> None:
    path = make_token(home, PLAIN)
    assert path == home.root / "cluster.token" and stat.S_IMODE(path.stat().st_mode) == 0o600
    token = path.read_text()
    assert len(token) == 64 and make_token(home, PLAIN).read_text() == token
    other = Home(home.root.with_name("other")).create()
    assert make_token(other, PLAIN).read_text() != token


def test_without_a_token_nothing_starts(home: Home) -> None:
    with pytest.raises(ConfigError, match="This machine has no token of the cluster"):
        ray_environment(home, PLAIN)


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o660, 0o666])
def test_a_token_that_others_read_is_refused(home: Home, mode: int) -> None:
    make_token(home, PLAIN).chmod(mode)
    with pytest.raises(ConfigError, match=f"Others may read the cluster's token \\(mode {mode:04o}\\)") as refused:
        ray_environment(home, PLAIN)
    assert "chmod 600" in refused.value.hint


def test_an_empty_token_and_a_folder_are_refused(home: Home) -> None:
    token_file(home, PLAIN).touch(0o600)
    with pytest.raises(ConfigError, match="is empty"):
        check_token(home, PLAIN)
    with pytest.raises(ConfigError, match="cannot be read"):
        check_token(home, replace(PLAIN, token=str(home.root)))


def test_the_token_is_told_to_ray(home: Home) -> None:
    keep_token(home.root / "elsewhere", "one-word\n")
    environment = ray_environment(home, replace(PLAIN, token=str(home.root / "elsewhere")))
    assert environment["RAY_AUTH_MODE"] == "token"
    assert Path(environment["RAY_AUTH_TOKEN_PATH"]).read_text() == "one-word"
    assert environment["RAY_AUTH_TOKEN"] == "", "one that stands for another cluster would come first"
    assert environment["MARLAAS_HOME"] == str(home.root)


def test_insecure_is_said_aloud_and_needs_no_token(home: Home) -> None:
    environment = ray_environment(home, replace(PLAIN, insecure=True))
    assert environment["RAY_AUTH_MODE"] == "disabled" and "RAY_AUTH_TOKEN_PATH" not in environment


@pytest.mark.parametrize("token", ["", " \n", "two words", "a\x1b[2J", "x" * 5000])
def test_what_is_no_token_is_not_kept(home: Home, token: str) -> None:
    with pytest.raises(ConfigError, match="no token"):
        keep_token(home.root / "t", token)
    assert not (home.root / "t").exists()


def test_a_token_is_replaced_whole(home: Home) -> None:
    for token in ("first", "second"):
        keep_token(home.root / "t", token)
    assert (home.root / "t").read_text() == "second" and not list(home.root.glob(".t*"))


def test_ray_judges_neither_memory_nor_cards(home: Home) -> None:
    environment = ray_environment(home, replace(PLAIN, insecure=True))
    assert environment["RAY_memory_monitor_refresh_ms"] == "0" and environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] == "1"
    flags = ray_flags(replace(PLAIN, object_store_gb=2.5))
    assert {"--num-cpus=0", "--num-gpus=0", "--object-store-memory=2500000000", "--disable-usage-stats"} <= {*flags}
    assert f"--object-store-memory={max(LEAST_STORE, 100_000_000)}" in ray_flags(replace(PLAIN, object_store_gb=0.1))
