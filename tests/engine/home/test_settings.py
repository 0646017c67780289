"""marlaas.toml: what a new home's file says of every key is what holds without it; active hours."""

from __future__ import annotations

import json
import os
import re
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import DOCUMENTED, ActiveHours, Settings, load_settings

from ...examples import examples


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("""[notify]\ncommand = "notify 'me"\n""", r"'notify\.command' cannot be read: No closing quotation"),
        ('[environments]\nallow = "allways"\n', "Did you mean 'always'"),
        ('[resources]\nactive_hours = "at night"\n', r"'resources\.active_hours': 'at night' are no active hours"),
    ],
)
def test_what_cannot_be_is_refused_in_words(tmp_path: Path, text: str, says: str) -> None:
    home = Home(tmp_path)
    home.config.write_text(text)
    with pytest.raises(ConfigError, match=says):
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


FORWARD = datetime(2026, 3, 29, 1, 0, tzinfo=UTC).timestamp()
"""When the clock jumps from 2:00 to 3:00."""
BACK = datetime(2026, 10, 25, 1, 0, tzinfo=UTC).timestamp()
"""When the clock is put back from 3:00 to 2:00."""
NOON = datetime(2026, 11, 2, 11, 0, tzinfo=UTC).timestamp()
"""Of a Monday."""


@pytest.fixture(scope="module")
def central_europe() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "CET-1CEST,M3.5.0,M10.5.0/3"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


def at(reading: str) -> float:
    """A moment of 2026, "11-02 12:00"; that is a Monday. With an "again" behind it the second of two."""
    reading, again, _ = reading.partition(" again")
    return datetime.fromisoformat(f"2026-{reading}").replace(fold=bool(again)).timestamp()


@pytest.mark.usefixtures("central_europe")
@pytest.mark.parametrize(
    ("text", "now", "active", "changes"),
    [
        ("", "11-02 12:00", True, None),
        (" , ", "11-02 12:00", True, None),
        ("00:00-24:00", "11-02 12:00", True, None),
        ("00:00-12:00, 12:00-24:00", "11-02 12:00", True, None),
        ("22:00-07:00", "11-02 21:59", False, "11-02 22:00"),
        ("22:00-07:00", "11-02 22:00", True, "11-03 07:00"),
        ("22:00-07:00", "11-03 06:59", True, "11-03 07:00"),
        ("22:00-07:00", "11-03 07:00", False, "11-03 22:00"),
        ("9:00 - 10:00,12:00-13:00", "11-03 10:30", False, "11-03 12:00"),
        ("9:00-11:00,10:00-13:00", "11-03 09:30", True, "11-03 13:00"),
        ("mon-fri 20:00-08:00, sat-sun 00:00-24:00", "11-06 21:00", True, "11-09 00:00"),
        ("Mon-Fri 20:00-08:00, Sat-Sun 00:00-24:00", "11-09 03:00", False, "11-09 20:00"),
        ("sun 22:00-07:00", "11-02 06:00", True, "11-02 07:00"),
        ("sun 22:00-07:00", "11-02 08:00", False, "11-08 22:00"),
        ("sat-mon 10:00-11:00", "11-03 09:00", False, "11-07 10:00"),
        # The clock is put forward: 2:30 is left out, so what begins or ends there does so with the jump.
        ("02:30-05:00", "03-29 01:59", False, "03-29 03:00"),
        ("02:30-05:00", "03-29 03:00", True, "03-29 05:00"),
        ("01:00-02:30", "03-29 01:30", True, "03-29 03:00"),
        ("01:00-02:30", "03-29 03:00", False, "03-30 01:00"),
        # It is put back: 2:30 comes twice, and counts once.
        ("02:30-05:00", "10-25 02:15 again", True, "10-25 05:00"),
        ("01:00-02:30", "10-25 02:15 again", False, "10-26 01:00"),
        ("01:00-02:30", "10-25 02:15", True, "10-25 02:30"),
    ],
)
def test_a_day_has_its_hours(text: str, now: str, active: bool, changes: str | None) -> None:
    hours = ActiveHours.parse(text)
    assert (hours.active(at(now)), hours.changes(at(now))) == (active, changes and at(changes))


@pytest.mark.usefixtures("central_europe")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("always", "'always' are no active hours"),
        ("22:00", "are no active hours"),
        ("22:00-07:00,", "'' are no active hours"),
        ("25:00-07:00", "a day goes from 00:00 to 24:00"),
        ("24:00-07:00", "a day goes from"),
        ("10:60-11:00", "a day goes from"),
        ("10:00-10:00", "a day goes from"),
        ("10:00-24:01", "a day goes from"),
        ("foo 10:00-11:00", "names no day"),
        ("mon-foo 10:00-11:00", "names no day"),
    ],
)
def test_what_makes_no_sense_is_said(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        ActiveHours.parse(text)
    assert "22:00-07:00" in refused.value.hint


minutes = st.integers(0, 24 * 60 - 1)


@st.composite
def ranges(draw: st.DrawFn) -> str:
    begin = draw(minutes)
    end = draw(minutes.filter(lambda end: end != begin))
    days = draw(st.sampled_from(["", "mon ", "fri-mon ", "sat-sun "]))
    return f"{days}{begin // 60:02}:{begin % 60:02}-{end // 60:02}:{end % 60:02}"


jumps = st.sampled_from([FORWARD, BACK, NOON])


@pytest.mark.usefixtures("central_europe")
@settings(max_examples=examples(50))
@example("00:00-00:01, 00:01-00:00", NOON, 0)
@given(st.lists(ranges(), min_size=1, max_size=3).map(", ".join), jumps, st.integers(-30 * 60, 30 * 60))
def test_nothing_changes_before_it_is_said_to(text: str, jump: float, away: int) -> None:
    hours, now = ActiveHours.parse(text), jump + 60 * away
    before, changes = hours.active(now), hours.changes(now)
    if changes is None:  # the ranges fill the whole week
        assert all(hours.active(now + 3600 * hour) is before for hour in range(8 * 24))
        return
    assert now < changes <= now + 8 * 86400
    assert hours.active(changes) is not before
    assert all(hours.active(now + part / 8 * (changes - now)) is before for part in range(8))
    assert hours.active(changes - 1) is before
