"""Opens and closes the API of a home, for verbs: asks the engine, and waits until the API answers."""

from __future__ import annotations

import http.client
import time
from typing import Any
from urllib.parse import urlsplit

from marlaas.engine.errors import ConfigError, EngineUnreachable
from marlaas.engine.home import Home

from ... import output
from ...reading.opening import opened
from ..commands import unanswered, wait_for_outcomes

ANSWER_SECONDS = 30.0
LOOK = 0.1
HEALTH = "/healthz"


def open_api(home: Home, port: int | None) -> str:
    """Have the engine, which is started if need be, open the API, and wait until it answers; returns its address.

    Raises ``ConfigError`` where the engine refuses, and ``EngineUnreachable`` where it or the API does not answer.
    """
    from marlaas.engine.api import check_installed
    from marlaas.engine.daemon import control

    check_installed()
    control.ensure_running(home, notice=output.talk)
    refused = _ask(home, "api_start", port=port)
    if refused:
        raise ConfigError(refused)
    with opened(home) as reader:
        state = reader.api_state()
    url = state.url if state is not None else ""
    until = time.monotonic() + ANSWER_SECONDS
    while not answers(url):
        if time.monotonic() > until:
            log = home.logs / "gateway.log"
            raise EngineUnreachable(f"The API at {url} has not answered within {ANSWER_SECONDS:g} s.", f"See {log}.")
        time.sleep(LOOK)
    return url


def close_api(home: Home) -> bool:
    """Have the engine close the API, or leave that to the next one; False where none runs.

    Raises ``EngineUnreachable`` where one runs and does not answer.
    """
    from marlaas.engine.daemon import create_database, holder
    from marlaas.engine.store import command

    if holder(home.lock) is None:
        create_database(home)
        command(home.database, "api_stop")
        return False
    _ask(home, "api_stop")
    return True


def answers(url: str, timeout: float = 2.0) -> bool:
    """Whether a gateway answers at this address."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=timeout)
    try:
        connection.request("GET", HEALTH)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _ask(home: Home, kind: str, **arguments: Any) -> str:
    from marlaas.engine.store import command

    with opened(home) as reader:
        sent = command(home.database, kind, **arguments)
        outcome = wait_for_outcomes(reader, [sent]).get(sent)
    if outcome is None:
        raise unanswered()
    return outcome
