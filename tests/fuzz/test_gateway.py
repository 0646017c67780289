"""Each border of the gateway meets a few changed inputs; ``make fuzz`` takes its time for it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from .border import Border
from .gateway import GATEWAY

pytestmark = pytest.mark.processes
IDS = [border.name for border in GATEWAY]


@pytest.mark.parametrize("border", GATEWAY, ids=IDS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_is_sent_is_answered_or_refused(border: Border, data: st.DataObject) -> None:
    border.meet(data.draw(border.inputs()))


@pytest.mark.parametrize("border", GATEWAY, ids=IDS)
def test_what_is_right_is_no_fault(border: Border) -> None:
    for sample in border.samples:
        border.meet(sample)
