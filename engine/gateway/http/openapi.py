"""The OpenAPI document, with the schemas that check the bodies."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from .anthropic import MessagesBody
from .openai import ChatBody, CompletionBody
from .responses import ResponsesBody

BODIES: dict[str, tuple[type, str]] = {
    "/v1/chat/completions": (ChatBody, "Go on with a conversation (OpenAI's chat completions)."),
    "/v1/completions": (CompletionBody, "Go on with prompts, as text or token ids (OpenAI's completions)."),
    "/v1/responses": (ResponsesBody, "Go on with a conversation (OpenAI's Responses)."),
    "/v1/messages": (MessagesBody, "Go on with a conversation (Anthropic's messages)."),
}
AGENT = {"name": "agent", "in": "path", "required": True, "schema": {"type": "string"}}
MODEL = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
KEYS: list[dict[str, list[str]]] = [{"bearer": []}, {"header": []}]


@cache
def document() -> dict[str, Any]:
    """The whole document; the same each time."""
    schemas, components = msgspec.json.schema_components(
        [body for body, _ in BODIES.values()], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {}
    for prefix, parameters in (("", []), ("/e/{agent}", [AGENT])):
        for (path, (_, summary)), schema in zip(BODIES.items(), schemas, strict=True):
            paths[prefix + path] = {"post": _asked(summary, schema, parameters)}
        paths[f"{prefix}/v1/models"] = {"get": _told("What this key may name as a model.", parameters, KEYS)}
        paths[f"{prefix}/v1/models/{{id}}"] = {"get": _told("One model.", [*parameters, MODEL], KEYS)}
    paths["/healthz"] = {"get": _told("Whether the engine can be asked.", [], [])}
    paths["/metrics"] = {"get": _told("Figures for Prometheus, on this machine alone.", [], [], "text/plain")}
    paths["/openapi.json"] = {"get": _told("This document.", [], [])}
    schemes = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "marlaas",
            "version": "1",
            "description": "Trained versions of a base model, for any client.",
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": schemes},
    }


def _asked(summary: str, schema: dict[str, Any], parameters: list[dict[str, Any]]) -> dict[str, Any]:
    answers = {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {"schema": {"type": "string"}}}
    return {
        "summary": summary,
        "parameters": parameters,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "The answer, or its stream.", "content": answers}, **_errors()},
        "security": KEYS,
    }


def _told(
    summary: str,
    parameters: list[dict[str, Any]],
    security: list[dict[str, list[str]]],
    kind: str = "application/json",
) -> dict[str, Any]:
    content = {kind: {"schema": {"type": "object" if kind.endswith("json") else "string"}}}
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {"200": {"description": "What was asked for.", "content": content}, **_errors()},
        "security": security,
    }


def _errors() -> dict[str, Any]:
    return {
        "4XX": {"description": "Refused, in the form of the interface: what is wrong, and with which parameter."},
        "5XX": {"description": "Not answered; where `Retry-After` says when, another try may be."},
    }
