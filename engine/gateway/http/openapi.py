"""The OpenAPI document, with the schemas that check bodies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import msgspec

from .anthropic import CountBody, MessagesBody
from .openai import ChatBody, CompletionBody
from .responses import ResponsesBody

BODIES: dict[str, tuple[type, str]] = {
    "/v1/chat/completions": (ChatBody, "Go on with a conversation (OpenAI's chat completions)."),
    "/v1/completions": (CompletionBody, "Go on with prompts, as text or token ids (OpenAI's completions)."),
    "/v1/responses": (ResponsesBody, "Go on with a conversation (OpenAI's Responses)."),
    "/v1/messages": (MessagesBody, "Go on with a conversation (Anthropic's messages)."),
    "/v1/messages/count_tokens": (CountBody, "Count a prompt's tokens (Anthropic's messages)."),
}
AGENT = {"name": "agent", "in": "path", "required": True, "schema": {"type": "string"}}
MODEL = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
KEYS: list[dict[str, list[str]]] = [{"bearer": []}, {"header": []}]


@cache
def document() -> dict[str, Any]:
    """The same each time."""
    schemas, components = msgspec.json.schema_components(
        [body for body, _ in BODIES.values()], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {}
    for prefix, parameters in (("", []), ("/e/{agent}", [AGENT])):
        for (path, (_, summary)), schema in zip(BODIES.items(), schemas, strict=True):
            asked = _operation(summary, parameters, {"application/json": "object", "text/event-stream": "string"})
            sent = {"required": True, "content": {"application/json": {"schema": schema}}}
            paths[prefix + path] = {"post": {**asked, "requestBody": sent}}
        paths[f"{prefix}/v1/models"] = {"get": _operation("What this key may name as a model.", parameters)}
        paths[f"{prefix}/v1/models/{{id}}"] = {"get": _operation("One model.", [*parameters, MODEL])}
    figures = _operation("Figures for Prometheus, on this machine alone.", [], {"text/plain": "string"}, [])
    paths["/"] = paths["/healthz"] = {"get": _operation("Whether the engine can be asked.", [], keys=[])}
    paths["/metrics"] = {"get": figures}
    paths["/openapi.json"] = {"get": _operation("This document.", [], keys=[])}
    schemes = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    about = {"title": "marlaas", "version": "1", "description": "Trained versions of a base model, for any client."}
    return {
        "openapi": "3.1.0",
        "info": about,
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": schemes},
    }


def _operation(
    summary: str,
    parameters: list[dict[str, Any]],
    kinds: Mapping[str, str] = MappingProxyType({"application/json": "object"}),
    keys: list[dict[str, list[str]]] = KEYS,
) -> dict[str, Any]:
    content = {kind: {"schema": {"type": what}} for kind, what in kinds.items()}
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "4XX": {"description": "Refused, in the form of the interface: what is wrong, and with which parameter."},
            "5XX": {"description": "Not answered; where `Retry-After` says when, another try may be."},
        },
        "security": keys,
    }
