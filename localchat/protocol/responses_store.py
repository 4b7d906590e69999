"""Stores responses and conversations in memory for later requests; the least recently used entries are dropped.

Thread-safe. Nothing is written to disk, so a restart loses all entries.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import NotFound
from .json_text import to_json

# Enough for an afternoon with one agent. Each of the two limits drops the entries that were used least recently.
MAX_ENTRIES = 1000
MAX_BYTES = 64 * 1024 * 1024

Item = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    """A response, or a conversation (`body` is its object, and `output` is empty)."""

    body: Mapping[str, Any]
    """The object that GET returns."""
    earlier: tuple[Item, ...]
    """The items before the request's own."""
    items: tuple[Item, ...]
    """The request's own input items, each with an id."""
    output: tuple[Item, ...]
    n_bytes: int
    """The size as JSON, with the earlier items: these may be shared, so the sum over entries is an upper bound."""

    @property
    def context(self) -> tuple[Item, ...]:
        return (*self.earlier, *self.items, *self.output)


class ResponseStore:
    """Entries by id, in the order of their last use."""

    def __init__(self, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Stored] = OrderedDict()
        self._n_bytes = 0

    def put(self, body: Mapping[str, Any], earlier: Sequence[Item], items: Sequence[Item]) -> None:
        """Store a response under its id, with the items of its request."""
        output = tuple(body.get("output", ()))
        items = tuple(with_id(item, body["id"], i) for i, item in enumerate(items))
        n_bytes = len(to_json([body, *earlier, *items]))
        self._keep(body["id"], Stored(body, tuple(earlier), items, output, n_bytes))

    def extend(self, id: str, items: Sequence[Item], output: Sequence[Item], response_id: str) -> None:
        """Add a request's items and those of its response to a conversation."""
        with self._lock:
            entry = self._entries.get(id)
        if entry is not None:  # it may have been deleted meanwhile
            added = [with_id(item, response_id, i) for i, item in enumerate(items)]
            self.put(entry.body, (), [*entry.items, *added, *output])

    def get(self, id: str, what: str = "response", param: str | None = None, code: str | None = None) -> Stored:
        """The entry of this id, which becomes the newest.

        Raises:
            NotFound: It was never stored, or has been deleted or dropped.
        """
        with self._lock:
            entry = self._entries.get(id)
            if entry is None or entry.body["object"] != what:
                message = f"no {what} has the id {id!r}: it was not stored, was deleted, or made room for newer ones"
                raise NotFound(message, param, code)
            self._entries.move_to_end(id)
            return entry

    def delete(self, id: str, what: str = "response") -> None:
        """Raises NotFound as `get` does."""
        self.get(id, what)
        with self._lock:
            self._drop(id)

    def context(self, response_id: str) -> tuple[Item, ...]:
        return self.get(response_id, param="previous_response_id", code="previous_response_not_found").context

    def conversation(self, id: str) -> tuple[Item, ...]:
        return self.get(id, "conversation", "conversation").items

    def item(self, id: str, param: str) -> Item:
        """An item of any entry, by its id: the newest entries first."""
        with self._lock:
            entries = [*reversed(self._entries.values())]
        for entry in entries:
            for item in (*entry.output, *entry.items):
                if item.get("id") == id:
                    return item
        raise NotFound(f"no item is stored under {id!r}: send the item itself, or do not set 'store' to false", param)

    def _keep(self, id: str, entry: Stored) -> None:
        with self._lock:
            self._drop(id)
            self._entries[id] = entry
            self._n_bytes += entry.n_bytes
            while self._entries and (len(self._entries) > self._max_entries or self._n_bytes > self._max_bytes):
                self._drop(next(iter(self._entries)))

    def _drop(self, id: str) -> None:
        entry = self._entries.pop(id, None)
        if entry is not None:
            self._n_bytes -= entry.n_bytes


_ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}


def item_id(kind: str, response_id: str, place: str) -> str:
    """A unique id: the id of the response and the item's place in it."""
    return f"{_ID_PREFIXES.get(kind, 'item')}_{response_id.partition('_')[2]}{place}"


def with_id(item: Item, response_id: str, i: int) -> Item:
    return item if item.get("id") else {**item, "id": item_id(item["type"], response_id, f"i{i:x}")}


def items_body(items: Sequence[Item]) -> dict[str, Any]:
    """A list of items, the newest first, as OpenAI lists them."""
    data = [*reversed(items)]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": False}
