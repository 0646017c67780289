"""The page on simulations shows a file that is right, and names every key."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path

from marlaas.engine.simulate import cluster_file
from marlaas.engine.simulate.cluster_file import ClusterSpec, nodes_of
from marlaas.engine.spec.validation import build

PAGE = (Path(__file__).parents[3] / "docs" / "operations" / "simulate.md").read_text("utf-8")


def test_the_file_that_is_shown_is_right() -> None:
    shown = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    table = tomllib.loads(shown[1])
    table["source"] = table.pop("from")
    spec = build(ClusterSpec, table, "page")
    assert [node.name for node in nodes_of(spec)] == ["desk", "rack-1", "rack-2", "rack-3"]


def test_every_key_is_named() -> None:
    table = PAGE.partition("## All keys")[2].partition("## ")[0]
    for name in vars(cluster_file):
        spec = getattr(cluster_file, name)
        if name.endswith("Spec") and is_dataclass(spec):
            for field in fields(spec):
                key = "from" if field.name == "source" else field.name
                assert any(form in table for form in (f"`{key}`", f"[{key}]", f".{key}]")), key
