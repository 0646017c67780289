"""The OpenAPI document: all that is served is in it, and what it refers to is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starlette.routing import Route

from marlaas.engine.gateway.http.app import Gateway
from marlaas.engine.gateway.http.link import Link
from marlaas.engine.gateway.http.openapi import document
from marlaas.engine.gateway.limits import Limits


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_route_is_described() -> None:
    routes = [route for route in Gateway(Link(), Limits()).application().routes if isinstance(route, Route)]
    served = {route.path.replace("{id:path}", "{id}"): {*(route.methods or {"GET"})} - {"HEAD"} for route in routes}
    told = {path: {method.upper() for method in methods} for path, methods in document()["paths"].items()}
    assert told == served


def test_all_that_it_refers_to_is_there() -> None:
    whole = json.loads(json.dumps(document()))
    found = set(references(whole))
    assert found
    for reference in found:
        place = whole
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]
        assert place
    for path, methods in whole["paths"].items():
        named = {one["name"] for method in methods.values() for one in method["parameters"]}
        assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}
