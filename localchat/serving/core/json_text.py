"""Encodes JSON for responses: without white space and without escapes for non-ASCII characters; NaN is refused."""

from __future__ import annotations

import json
from typing import Any

# A shared encoder: json.dumps with options would build one for each call.
to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def json_bytes(value: Any) -> bytes:
    """Encode a value as JSON in UTF-8."""
    return to_json(value).encode("utf-8", "replace")
