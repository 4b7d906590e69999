"""Requests of the Responses API for tests."""

from __future__ import annotations

import json
from typing import Any

from localchat.serving.api.responses import ResponsesRequest, parse_response
from localchat.serving.api.responses_store import ResponseStore
from localchat.serving.core.request import ParseOptions

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
    raw = json.dumps({"input": "hi", **fields}).encode()
    return parse_response(earlier or ResponseStore(), raw, ParseOptions(strict=strict))
