"""Stores responses and conversations in memory for later requests; the least recently used entries are dropped.

The store is thread-safe. A restart of the server loses all entries.
"""

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
    """A stored response or conversation."""

    body: Mapping[str, Any]
    """The response or conversation object that GET returns."""
    earlier: tuple[Item, ...]
    """The items before those of the request; empty for a conversation."""
    items: tuple[Item, ...]
    """The input items of the request, or all items of the conversation. Each has an id."""
    output: tuple[Item, ...]
    """The output items; empty for a conversation."""
    n_bytes: int
    """The size as JSON. Entries may share earlier items, so the sum over entries is an upper bound."""

    @property
    def context(self) -> tuple[Item, ...]:
        return (*self.earlier, *self.items, *self.output)


class ResponseStore:
    """The stored entries by id, least recently used first."""

    def __init__(self, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        # Reentrant, since `extend` holds it while it calls `put`.
        self._lock = threading.RLock()
        self._entries: OrderedDict[str, Stored] = OrderedDict()
        self._n_bytes = 0

    def put(self, body: Mapping[str, Any], earlier: Sequence[Item], items: Sequence[Item]) -> None:
        """Store a response under its id, with the items of its request."""
        id, output = body["id"], tuple(body.get("output", ()))
        items = tuple(with_id(item, id, i) for i, item in enumerate(items))
        n_bytes = len(to_json([body, *earlier, *items]))
        with self._lock:
            self._drop(id)
            self._entries[id] = Stored(body, tuple(earlier), items, output, n_bytes)
            self._n_bytes += n_bytes
            while self._entries and (len(self._entries) > self._max_entries or self._n_bytes > self._max_bytes):
                self._drop(next(iter(self._entries)))

    def extend(self, id: str, items: Sequence[Item], output: Sequence[Item], response_id: str) -> None:
        """Add a request's items and those of its response to a conversation."""
        with self._lock:
            entry = self._entries.get(id)
            if entry is not None:  # None: the conversation was deleted in the meantime.
                added = [with_id(item, response_id, i) for i, item in enumerate(items)]
                self.put(entry.body, (), [*entry.items, *added, *output])

    def get(self, id: str, kind: str = "response", param: str | None = None, code: str | None = None) -> Stored:
        """The entry with this id, which becomes the most recently used one. `kind` is "response" or "conversation".

        Raises:
            NotFound: No such entry was stored, or it was deleted or dropped.
        """
        with self._lock:
            entry = self._entries.get(id)
            if entry is None or entry.body["object"] != kind:
                message = f"no {kind} has the id {id!r}: it was not stored, was deleted, or was dropped for newer ones"
                raise NotFound(message, param, code)
            self._entries.move_to_end(id)
            return entry

    def delete(self, id: str, kind: str = "response") -> None:
        """Delete an entry. Raises NotFound as `get` does."""
        self.get(id, kind)
        with self._lock:
            self._drop(id)

    def context(self, response_id: str) -> tuple[Item, ...]:
        return self.get(response_id, param="previous_response_id", code="previous_response_not_found").context

    def conversation(self, id: str) -> tuple[Item, ...]:
        return self.get(id, "conversation", "conversation").items

    def item(self, id: str, param: str) -> Item:
        """The item with this id, from the most recently used entry that has it."""
        with self._lock:
            entries = [*reversed(self._entries.values())]
        for entry in entries:
            for item in (*entry.output, *entry.items):
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


def with_id(item: Item, response_id: str, i: int) -> Item:
    return item if item.get("id") else {**item, "id": item_id(item["type"], response_id, f"i{i:x}")}


def items_body(items: Sequence[Item]) -> dict[str, Any]:
    """A list of items, newest first as in OpenAI's API."""
    data = [*reversed(items)]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": False}
