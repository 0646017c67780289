"""Who is let in: the first browser at the secret path, its later requests there, and nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.app.web import Asked, Gate, Verdict, cookies

HERE = "127.0.0.1:8000"


def opened() -> tuple[Gate, Asked]:
    """A gate whose path was opened, and what its browser asks from then on."""
    gate = Gate()
    assert gate.judge(Asked(HERE, gate.root)) is Verdict.OPEN
    return gate, Asked(HERE, gate.root, cookies=(gate.session,))


def test_the_path_opens_once() -> None:
    gate, browser = opened()
    assert gate.judge(browser) is Verdict.PASS
    assert gate.judge(Asked(HERE, gate.root)) is Verdict.REFUSE
    ws = f"{gate.root}ws"
    assert gate.judge(replace(browser, path=ws, websocket=True, origin=f"http://{HERE}")) is Verdict.PASS


@pytest.mark.parametrize("path", ["", "/", "/ws", "/static/", "/ä/"])
def test_the_cookie_counts_beneath_the_path_alone(path: str) -> None:
    gate, browser = opened()
    assert gate.judge(replace(browser, path=path)) is Verdict.REFUSE
    assert gate.judge(replace(browser, path=gate.root[:-1])) is Verdict.REFUSE
    assert gate.judge(replace(browser, path=f"{gate.root}static/")) is Verdict.PASS


def test_cookies_of_the_same_name_lock_nobody_out() -> None:
    gate, browser = opened()
    assert gate.judge(replace(browser, cookies=("planted", gate.session, "more"))) is Verdict.PASS
    assert cookies("a=1; b=2;a=3 ; c", "a") == ("1", "3")
    assert cookies("", "a") == ()


@pytest.mark.parametrize("host", ["localhost:9000", "LOCALHOST:1", "127.0.0.1", "[::1]:8000"])
def test_a_tunnel_may_have_another_port(host: str) -> None:
    gate, browser = opened()
    assert gate.judge(replace(browser, host=host)) is Verdict.PASS
    assert gate.judge(replace(browser, host=host, websocket=True, origin=f"http://{host}")) is Verdict.PASS


@pytest.mark.parametrize("host", ["", "evil.example", "127.0.0.1.evil.example:80", "localhost:80:80", "10.0.0.1:8000"])
def test_a_foreign_name_is_a_foreign_page(host: str) -> None:
    gate, browser = opened()
    assert gate.judge(replace(browser, host=host)) is Verdict.REFUSE
    fresh = Gate()
    assert fresh.judge(Asked(host, fresh.root)) is Verdict.REFUSE and not fresh.used


@pytest.mark.parametrize(
    "origin", ["", "null", "http://localhost:3000", "https://127.0.0.1:8000", "http://evil.example"]
)
def test_a_foreign_page_opens_no_websocket(origin: str) -> None:
    gate, browser = opened()
    assert gate.judge(replace(browser, websocket=True, origin=origin)) is Verdict.REFUSE


def test_a_websocket_does_not_open_a_session() -> None:
    gate = Gate()
    asked = Asked(HERE, gate.root, websocket=True, origin=f"http://{HERE}")
    assert gate.judge(asked) is Verdict.REFUSE and not gate.used


def test_nothing_beneath_the_path_opens_a_session() -> None:
    gate = Gate()
    assert gate.judge(Asked(HERE, f"{gate.root}static/")) is Verdict.REFUSE and not gate.used


@given(st.text(), st.text(), st.booleans())
def test_nothing_else_does(path: str, cookie: str, websocket: bool) -> None:
    origin = f"http://{HERE}"
    for gate in (Gate(), opened()[0]):
        asked = Asked(HERE, path, origin=origin, cookies=(cookie,), websocket=websocket)
        assert gate.judge(asked) is Verdict.REFUSE


def test_before_the_path_is_opened_no_cookie_counts() -> None:
    gate = Gate()
    assert gate.judge(Asked(HERE, f"{gate.root}ws", cookies=(gate.session,))) is Verdict.REFUSE
