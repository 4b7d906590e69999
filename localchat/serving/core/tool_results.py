"""Finds which results of tools belong to which calls."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any


def results_of_calls(calls: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> list[int | None]:
    """For each tool call, the index of its result among the messages with results; None: it has none.

    Four rules apply one after the other, each to the calls and results that are left:

        the result has the id of the call
        the result has no id, and names the function of the call
        the result has no id
        the call has no id

    Every rule takes calls and results in their order.
    """
    places: dict[int, int] = {}  # Of the results, by the places of their calls.
    left = dict.fromkeys(range(len(results)))

    def match(call_keys: Mapping[int, object], result_keys: Mapping[int, object]) -> None:
        """Match the calls and the results that have equal keys."""
        open_calls: defaultdict[object, deque[int]] = defaultdict(deque)
        for place, key in call_keys.items():
            if place not in places:
                open_calls[key].append(place)
        for index, key in result_keys.items():
            if index in left and open_calls[key]:
                places[open_calls[key].popleft()] = index
                del left[index]

    names = {place: call["function"]["name"] for place, call in enumerate(calls)}
    call_ids = {place: call["id"] for place, call in enumerate(calls) if call.get("id") is not None}
    result_ids = {
        i: result["tool_call_id"] for i, result in enumerate(results) if result.get("tool_call_id") is not None
    }
    without_id = {i: result.get("name") for i, result in enumerate(results) if i not in result_ids}
    match(call_ids, result_ids)
    match(names, without_id)
    match(dict.fromkeys(names), dict.fromkeys(without_id))
    match(dict.fromkeys(place for place in names if place not in call_ids), dict.fromkeys(result_ids))
    return [places.get(place) for place in range(len(calls))]
