"""From the place of a part in a prepared schema to its place in the schema of the request, for errors."""

from __future__ import annotations

import json
from typing import Any

from .prepare import prepared
from .simplify import SOURCE
from .walk import at_pointer, subschemas


class SourcePlaces:
    """The places of one schema.

    They are read from another preparation, of a copy in which the annotation `SOURCE` of each schema is its pointer.
    """

    def __init__(self, schema: Any) -> None:
        marked = json.loads(json.dumps(schema))
        for place, part in list(subschemas(marked)):
            if isinstance(part, dict):
                part[SOURCE] = place.pointer
        self._schema = schema
        self._prepared = prepared(marked)

    def pointer(self, pointer: str, keyword: str = "") -> str:
        """The JSON pointer in the schema to what is at `pointer` in the prepared one, with the keyword if it is there.

        A schema that the preparation has added has no place; then that of the schema around it counts.
        """
        node, source = {"": self._prepared}, ""
        for step in pointer.split("/"):
            node = at_pointer(f"/{step}", node)
            if isinstance(node, dict) and isinstance(node.get(SOURCE), str):
                source = node[SOURCE]
        part = at_pointer(source, self._schema)
        return f"{source}/{keyword}" if isinstance(part, dict) and keyword in part else source
