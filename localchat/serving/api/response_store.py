"""The responses that POST /v1/responses has stored, for GET, DELETE and requests that continue them."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..core.errors import NotFound
from ..core.text import json_bytes

MAX_BYTES = 64 * 1024 * 1024  # The limit of the stored responses, enough for several hours of work with one agent.

Item = dict[str, Any]


class Stored(NamedTuple):
    body: Mapping[str, Any]  # The response object that GET returns.
    items: tuple[Item, ...]  # All items: those of earlier responses, of the request, and the output.


class ResponseStore:
    """The stored responses by id, least recently used first.

    They are stored as JSON: as objects, they would take several times the memory, of which Python tells no size.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, bytes] = OrderedDict()

    def put(self, body: Mapping[str, Any], items: Sequence[Item]) -> None:
        """Store a response under its id, with the items before its output."""
        data = json_bytes([body, *items])
        with self._lock:
            self._entries[body["id"]] = data
            n_stored = sum(map(len, self._entries.values()))
            while n_stored > self._max_bytes:
                _, dropped = self._entries.popitem(last=False)
                n_stored -= len(dropped)

    def get(self, id: str, param: str | None = None, code: str | None = None) -> Stored:
        """The entry with this id, which becomes the most recently used one. Raises NotFound."""
        with self._lock:
            data = self._entries.get(id)
            if data is None:
                message = f"no response has the id {id!r}: it was not stored, or it was deleted or dropped"
                raise NotFound(message, param, code)
            self._entries.move_to_end(id)
        return _read(data)

    def delete(self, id: str) -> None:
        """Delete an entry. Raises NotFound as `get` does."""
        self.get(id)
        with self._lock:
            self._entries.pop(id, None)

    def item(self, id: str, param: str) -> Item:
        """The item with this id, from the most recently used entry that has it."""
        with self._lock:
            entries = [*reversed(self._entries.values())]
        id_bytes = json_bytes(id)
        for data in entries:
            if id_bytes not in data:
                continue
            for item in reversed(_read(data).items):
                if item.get("id") == id:
                    return item
        raise NotFound(f"no item is stored under {id!r}: send the item itself, or do not set 'store' to false", param)


def _read(data: bytes) -> Stored:
    body, *items = json.loads(data)
    return Stored(body, (*items, *body["output"]))
