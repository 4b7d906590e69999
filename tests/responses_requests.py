"""Requests of the Responses API for tests."""

from __future__ import annotations

from functools import partial
from typing import Any

from localchat.serving.api.responses import ResponsesRequest, ResponseStore, parse_response

from .chat_requests import read

FUNCTION = {
    "type": "function",
    "name": "look",
    "description": "Looks",
    "parameters": {"type": "object"},
    "strict": True,
}
PATCH = {"type": "custom", "name": "patch", "description": "Patches"}
CRM = {"type": "namespace", "name": "crm", "description": "Customers", "tools": [{"type": "function", "name": "find"}]}


def parse(earlier: ResponseStore | None = None, /, strict: bool = False, **fields: Any) -> ResponsesRequest:
    return read(partial(parse_response, earlier or ResponseStore()), {"input": "hi", **fields}, strict=strict)
