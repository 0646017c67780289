"""The figures of /metrics: what the store and the ledger have counted, under names that stay."""

from __future__ import annotations

from pathlib import Path

from marlaas.engine.fairness.line import Ledger
from marlaas.engine.gateway.figures import NAMES, Counted, Figure, FigureReader, counted, figures as figure_rows
from marlaas.engine.store.queries.learning import Total
from marlaas.engine.wire import FigureTable, frame, response

from ...app.filling import HOSTILE, Filling
from ...app.filling_api import fill_api


def figures(known: Counted, ledger: Ledger) -> tuple[Figure, ...]:
    return tuple(figure_rows(known, ledger))


def worked() -> Ledger:
    """Two samplers and a trainer that did something."""
    ledger = Ledger()
    ledger.rollout(1, 100, 20, "rollout-2")
    ledger.rollout_seconds(1.5, "rollout-2")
    ledger.environment(1, 0.25)
    ledger.training(1, 400, 2.0)
    return ledger


def value(rows: tuple[Figure, ...], name: str, **labels: str) -> float:
    (found,) = [number for one, has, number in rows if (one, has) == (name, labels)]
    return found


def filled(path: Path) -> Filling:
    filling = fill_api(path)
    filling.task("bio", "waits", state="blocked")
    for begun, busy in ((10.0, 0.1), (11.0, 0.75)):
        filling.insert(
            "stages", incarnation=1, stage="rollout", device="cpu", begun=begun, wall=1.0, busy=busy, waiting=2.0,
            active=8.0, ended=3, tokens=90,
        )  # fmt: skip
    for day in ("2026-11-21", "2026-11-22"):
        filling.insert("usage", day=day, task=2, stage="training", tokens=1000, seconds=2.5)
    return filling


def test_what_the_store_counts(tmp_path: Path) -> None:
    rows = figures(counted(filled(tmp_path / "marlaas.db").path), Ledger())
    assert value(rows, "engine_info", base="tiny", sampler="", version="") == 1
    assert value(rows, "stage_busy_ratio", stage="rollout") == 0.75, "of the newest second"
    assert value(rows, "stage_waiting", stage="rollout") == 2 and value(rows, "stage_active", stage="rollout") == 8
    assert value(rows, "tasks", state="blocked") == value(rows, "tasks", state="running") == 1
    assert value(rows, "tenant_tokens_total", tenant="bio", stage="training") == 2000
    assert value(rows, "tenant_seconds_total", tenant="bio", stage="training") == 5
    assert value(rows, "tenant_steps", tenant="bio") == 60
    assert value(rows, "versions", state="committed") == 5
    assert value(rows, "api_keys", state="valid") == 2 and value(rows, "api_keys", state="revoked") == 1
    assert value(rows, "api_requests_total", tenant="physics-lab") == 1211
    assert value(rows, "api_tokens_total", tenant="physics-lab", direction="in") == 1_235_467
    assert value(rows, "api_tokens_total", tenant="physics-lab", direction="out") == 310_302


def test_what_the_ledger_counts() -> None:
    rows = figures(Counted(), worked())
    assert value(rows, "worker_busy_seconds_total", stage="rollout", worker="rollout-2") == 1.5
    assert value(rows, "worker_tokens_total", stage="rollout", worker="rollout-2") == 20
    assert value(rows, "worker_tokens_total", stage="training", worker="training") == 400
    assert value(rows, "worker_ended_total", stage="environment", worker="environment") == 1
    assert rows == figures(Counted(), worked()), "in the same order each time"


def test_every_total_has_a_name_of_its_own(tmp_path: Path) -> None:
    known = counted(filled(tmp_path / "marlaas.db").path)
    assert {total.what for total in known.totals} == NAMES.keys()
    rows = figures(known, worked())
    assert len({(name, *sorted(labels.items())) for name, labels, _ in rows}) == len(rows)


def test_the_docs_have_each_of_them(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations" / "monitoring.md").read_text("utf-8")
    for name, labels, _ in figures(counted(filled(tmp_path / "marlaas.db").path), worked()):
        (row,) = [line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line]
        assert row.split("|")[2].strip() == ", ".join(labels)


def test_a_home_without_anything_has_no_totals(tmp_path: Path) -> None:
    assert figures(counted(Filling(tmp_path / "marlaas.db").path), Ledger()) == ()


def test_they_go_through_the_wire() -> None:
    totals = (Total("tokens", HOSTILE.replace("\ud800", "?"), "rollout", 7),)
    table = FigureTable(1, figures(Counted(totals=totals), worked()))
    assert response(frame(table)[4:]) == table


async def test_the_store_is_read_once_a_second_at_most(tmp_path: Path) -> None:
    filling, now = filled(tmp_path / "marlaas.db"), [0.0]
    reader = FigureReader(filling.path, Ledger(), lambda: now[0])
    first = await reader.rows()
    filling.execute("UPDATE tasks SET state = 'done'")
    assert await reader.rows() == first
    now[0] = 1.0
    assert value(await reader.rows(), "tasks", state="done") == 3


async def test_while_it_cannot_be_read_the_last_ones_are_told(tmp_path: Path) -> None:
    filling, now = filled(tmp_path / "marlaas.db"), [0.0]
    reader = FigureReader(filling.path, Ledger(), lambda: now[0])
    first = await reader.rows()
    filling.path.rename(tmp_path / "elsewhere.db")
    now[0] = 9.0
    assert await reader.rows() == first
