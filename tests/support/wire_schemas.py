"""The schemas of the bodies and events of all interfaces (tests/data/wire_schemas.json), and their validation."""

import json
from pathlib import Path
from typing import Any

from localchat.schema.validator import validation_errors

SCHEMAS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "wire_schemas.json").read_text(encoding="utf-8")
)


def validate(value: Any, kind: str) -> None:
    """Fail if a body or an event does not match the schema of its kind."""
    errors = list(validation_errors(value, {"$ref": f"#/$defs/{kind}", "$defs": SCHEMAS}))
    assert not errors, (kind, errors, value)
