"""Bodies and events of all interfaces are validated by schemas (tests/data/wire_schemas.json), and streams of the
Responses API also by the order of their events. `sampled` and `call` are events for encoders."""

import json
from pathlib import Path
from typing import Any

from localchat.schema.validator import validation_errors
from localchat.serving.core.events import Event, OutputToken, SampledTokens, ToolCallArguments, ToolCallStart

SCHEMAS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "wire_schemas.json").read_text("utf-8"))


def validate(value: Any, kind: str) -> None:
    """Fail if a body or an event does not match the schema of its kind."""
    errors = list(validation_errors(value, {"$ref": f"#/$defs/{kind}", "$defs": SCHEMAS}))
    assert not errors, (kind, errors, value)


def sampled(*tokens: OutputToken) -> SampledTokens:
    return SampledTokens(tokens)


def call(index: int, id: str, name: str, *pieces: str) -> list[Event]:
    """A tool call, with its arguments in pieces."""
    return [ToolCallStart(index, id, name), *(ToolCallArguments(index, piece) for piece in pieces)]


# For each kind of text the field of the text in its last event. The schemas of the events have all fields.
_TEXTS = {"response.function_call_arguments": "arguments", "response.custom_tool_call_input": "input"}
_PARTS = ("response.content_part", "response.reasoning_summary_part")


def check_stream(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Check the fields and the order of the events of a stream; returns the response of the last event."""
    for event in events:
        validate(event, "responses-event")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    first, second, *rest, last = events
    assert (first["type"], second["type"]) == ("response.created", "response.in_progress")
    assert first["response"] == second["response"]
    assert (first["response"]["status"], first["response"]["output"]) == ("in_progress", [])
    output: list[dict[str, Any]] = []
    open_item: _OpenItem | None = None
    for event in rest:
        kind = event["type"]
        if kind == "response.in_progress":  # A ping.
            continue
        if kind == "response.output_item.added":
            assert open_item is None, "an item begins before the last one is closed"
            assert event["output_index"] == len(output)
            open_item = _OpenItem(event["item"], len(output))
            continue
        assert open_item is not None, kind
        if kind == "response.output_item.done":
            output.append(open_item.closed(event))
            open_item = None
        else:
            open_item.take(event)
    response: dict[str, Any] = last["response"]
    assert last["type"] == f"response.{response['status']}"
    if response["status"] != "failed":
        assert open_item is None
        assert response["output"] == output
        usage = response["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    constant = set(response) - {"status", "output", "usage", "completed_at", "incomplete_details", "error"}
    assert {name: response[name] for name in constant} == {name: first["response"][name] for name in constant}
    return response


class _OpenItem:
    def __init__(self, item: dict[str, Any], index: int) -> None:
        assert item.get("status") == "in_progress"
        self.item, self.index = item, index
        self.text = ""
        self.ended: str | None = None
        self.parts: list[str] = []

    def take(self, event: dict[str, Any]) -> None:
        assert (event["item_id"], event["output_index"]) == (self.item["id"], self.index)
        stem, _, end = event["type"].rpartition(".")
        assert event.get("content_index", event.get("summary_index", 0)) == 0
        if stem in _PARTS:
            self.parts.append(end)
            assert event["part"]["text"] == ("" if end == "added" else self.ended)
            return
        assert self.ended is None
        if end == "delta":
            assert event["delta"]
            self.text += event["delta"]
        else:
            self.ended = event[_TEXTS.get(stem, "text")]
            assert self.text == self.ended

    def closed(self, event: dict[str, Any]) -> dict[str, Any]:
        item: dict[str, Any] = event["item"]
        assert event["output_index"] == self.index
        assert (item["id"], item["type"]) == (self.item["id"], self.item["type"])
        assert item["status"] in ("completed", "incomplete")
        texts = [part["text"] for part in (*item.get("content", ()), *item.get("summary", ()))]
        assert self.ended is not None
        assert item.get("arguments", item.get("input", "".join(texts))) == self.ended
        assert self.parts == (["added", "done"] if texts else [])
        return item
