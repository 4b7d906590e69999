"""JSON as the server writes it: without white space, characters as they are, never NaN."""

from __future__ import annotations

import json

# One encoder for all: json.dumps with options builds a new one for each call.
to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
