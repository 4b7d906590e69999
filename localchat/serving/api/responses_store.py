"""Stores responses in memory for later requests; the least recently used ones are dropped. Thread-safe."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import NotFound
from ..core.json_text import to_json

# The limits of the store, enough for several hours of work with one agent.
MAX_ENTRIES = 1000
MAX_BYTES = 64 * 1024 * 1024

Item = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    """A stored response."""

    body: Mapping[str, Any]
    """The response object that GET returns."""
    items: tuple[Item, ...]
    """The items before the output: those of earlier responses and of the request."""
    n_bytes: int
    """The size as JSON. Entries may share earlier items, so the sum over entries is an upper bound."""

    @property
    def context(self) -> tuple[Item, ...]:
        return (*self.items, *self.body["output"])


class ResponseStore:
    """The stored responses by id, least recently used first."""

    def __init__(self, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Stored] = OrderedDict()
        self._n_bytes = 0

    def put(self, body: Mapping[str, Any], items: Sequence[Item]) -> None:
        """Store a response under its id, with the items before its output."""
        n_bytes = len(to_json([body, *items]))
        with self._lock:
            self._drop(body["id"])
            self._entries[body["id"]] = Stored(body, tuple(items), n_bytes)
            self._n_bytes += n_bytes
            while self._entries and (len(self._entries) > self._max_entries or self._n_bytes > self._max_bytes):
                self._drop(next(iter(self._entries)))

    def get(self, id: str, param: str | None = None, code: str | None = None) -> Stored:
        """The entry with this id, which becomes the most recently used one.

        Raises:
            NotFound: No such response was stored, or it was deleted or dropped.
        """
        with self._lock:
            entry = self._entries.get(id)
            if entry is None:
                message = f"no response has the id {id!r}: it was not stored, or it was deleted or dropped"
                raise NotFound(message, param, code)
            self._entries.move_to_end(id)
            return entry

    def delete(self, id: str) -> None:
        """Delete an entry. Raises NotFound as `get` does."""
        self.get(id)
        with self._lock:
            self._drop(id)

    def context(self, response_id: str) -> tuple[Item, ...]:
        """The items that precede those of a request with this `previous_response_id`."""
        return self.get(response_id, "previous_response_id", "previous_response_not_found").context

    def item(self, id: str, param: str) -> Item:
        """The item with this id, from the most recently used entry that has it."""
        with self._lock:
            entries = [*reversed(self._entries.values())]
        for entry in entries:
            for item in reversed(entry.context):
                if item.get("id") == id:
                    return item
        raise NotFound(f"no item is stored under {id!r}: send the item itself, or do not set 'store' to false", param)

    def _drop(self, id: str) -> None:
        entry = self._entries.pop(id, None)
        if entry is not None:
            self._n_bytes -= entry.n_bytes


_ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}


def item_id(kind: str, response_id: str, position: str) -> str:
    """The id of an item: its type, the id of its response, and its `position` in the response."""
    return f"{_ID_PREFIXES.get(kind, 'item')}_{response_id.partition('_')[2]}{position}"
