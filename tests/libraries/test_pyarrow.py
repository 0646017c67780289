"""Rows of Parquet and Arrow files, through the real pyarrow in the plugin's own environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.plugins.data import Source

from ..engine.environments.conftest import a_spec, echoing
from .conftest import PATIENCE, PublishedVersions

pytestmark = [pytest.mark.libraries, pytest.mark.processes, pytest.mark.timeout(PATIENCE)]

READER = """
# /// script
# dependencies = ["pyarrow==25.0.1"]
# ///
from pathlib import Path

from marlaas.plugins import env


@env
async def make(ep, folder: str):
    import json
    import pyarrow as pa
    from pyarrow import ipc, parquet

    table = pa.table({"prompt": [f"say {n}" for n in range(1000)], "number": list(range(1000))})
    place = Path(folder)
    parquet.write_table(table, place / "x.parquet", row_group_size=300)
    with pa.OSFile(str(place / "x.arrow"), "wb") as sink, ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=128)
    (place / "saved").mkdir()
    with pa.OSFile(str(place / "saved/data.arrow"), "wb") as sink, ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=128)
    (place / "saved/state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    await ep.ask("made")
    return 1


@env(data=lambda split: [{"question": "x", "number": 0}])
async def read(ep, task):
    await ep.ask(task["question"])
    ep.log(number=task["number"])
    return 1
"""


async def test_rows_come_from_all_formats(published: PublishedVersions, tmp_path: Path) -> None:
    assert await published.add("reader", READER) is None
    with await published.service.bind("reader/make", config={"folder": str(tmp_path)}) as lease:
        made = await published.service.play(lease, a_spec(folder=str(tmp_path)), echoing)
        assert made.status == "ok", made.failure
    digests = set()
    for name in ("x.parquet", "x.arrow", "saved"):
        data = Source(tmp_path / name, {"question": "prompt"}, limit=600).record()
        with await published.service.bind("reader/read", data=data) as lease:
            facts = await published.service.facts(lease)
            assert (facts.train, facts.held_out) == (600, 100)
            digests.add(facts.digest)
            outcomes = [await published.service.play(lease, a_spec(index=index), echoing) for index in range(20)]
        assert len({outcome.metrics["number"] for outcome in outcomes}) == 20
    assert len(digests) == 1
