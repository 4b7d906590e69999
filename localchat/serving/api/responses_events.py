"""POST /v1/responses, the response: encodes output events as a stream of events, or as one response object.

Each block of the output becomes an item. Its events (added, deltas, done) are complete before the next item begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ..core.errors import ApiError
from ..core.events import OutputToken, ResponseHead, Usage
from .encoder import CALL, CONTENT, REASONING, Block, Choice, Encoder, logprob_entry
from .parts import CUSTOM_INPUT
from .responses import ResponsesRequest, encode_reasoning


class _Names(NamedTuple):
    """The names for an item of one type, and for its text."""

    type: str
    text_event: str  # The events of the text, without "delta" and "done".
    text_field: str
    part: str = ""  # The type of the part that has the text; "": the item itself has it.
    part_event: str = "response.content_part"
    index_field: str = "content_index"


_MESSAGE = _Names("message", "response.output_text", "text", "output_text")
_REASONING = _Names("reasoning", "response.reasoning_text", "text", "reasoning_text")
# Reasoning as a summary, which has the full text.
_SUMMARY = _REASONING._replace(
    text_event="response.reasoning_summary_text",
    part="summary_text",
    part_event="response.reasoning_summary_part",
    index_field="summary_index",
)
_ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_CALL = _Names("function_call", "response.function_call_arguments", "arguments")
_CUSTOM_CALL = _Names("custom_tool_call", "response.custom_tool_call_input", "input")


class ResponseEncoder(Encoder[ResponsesRequest]):
    """Encodes a response, and stores it if the request asks for that."""

    id_prefix = "resp_"

    def __init__(self, head: ResponseHead, request: ResponsesRequest, usage: Callable[[], Usage]) -> None:
        super().__init__(head, request, usage)
        self._n_events = 0
        # The tokens of each block of content, if the request asks for log probabilities.
        self._tokens: dict[int, list[OutputToken]] = {}

    def started(self) -> None:
        for kind in ("response.created", "response.in_progress"):
            self._emit(kind, response=self._response("in_progress"))

    def opened(self, choice: Choice, block: Block) -> None:
        self._emit("response.output_item.added", output_index=block.index, item=self._item(block))
        self._emit_part(block, "added")

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        tokens = choice.take_tokens()
        if block.kind == CONTENT:
            self._tokens.setdefault(block.index, []).extend(tokens)
        # The input of a custom tool is decoded from the arguments when these are complete.
        if self._names(block) is not _CUSTOM_CALL:
            self._emit_text(block, "delta", tokens, delta=text)

    def closed(self, choice: Choice, block: Block) -> None:
        names, item, text = self._names(block), self._item(block), self._text(block)
        if names is _CUSTOM_CALL and text:
            self._emit_text(block, "delta", [], delta=text)
        named = {"name": item["name"]} if names is _CALL else {}
        self._emit_text(block, "done", self._tokens.get(block.index, []), **named, **{names.text_field: text})
        self._emit_part(block, "done")
        self._emit("response.output_item.done", output_index=block.index, item=item)

    def ended(self, choice: Choice) -> None:
        if not choice.blocks:  # Clients require at least one message, even an empty one.
            self._open(choice, CONTENT)
            self._close(choice)

    def finish(self) -> None:
        response = self.body()
        self._emit(f"response.{response['status']}", response=response)

    def failed(self, error: ApiError) -> None:
        self._start()
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        failure = {"code": code, "message": error.message}
        self._emit("response.failed", response=self._response("failed", error=failure))

    def body(self) -> dict[str, Any]:
        end = self.choices[0].end
        is_cut = end is not None and end.reason == "length"
        details = {"reason": "max_output_tokens"} if is_cut else None
        usage = self.usage()
        completed_at = None if is_cut else self.head.created + round(usage.total_s)
        fields = {"incomplete_details": details, "completed_at": completed_at, "usage": _usage_body(usage)}
        response = self._response("incomplete" if is_cut else "completed", **fields)
        if self.request.store is not None:
            self.request.store.put(response, self.request.items)
        return response

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        head, sampling = self.head, self.head.sampling
        return {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "model": head.model,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "usage": None,
            **fields,
            **self.request.settings,
            **{name: getattr(sampling, name) for name in _SAMPLING},
            "output": [self._item(block) for block in self.choices[0].blocks],
        }

    def _item(self, block: Block) -> dict[str, Any]:
        names, status, text = self._names(block), self._status(block), self._text(block)
        item: dict[str, Any] = {"id": self._item_id(block), "type": names.type, "status": status}
        if block.kind == CALL:
            tool = self.request.offered.get(block.call.name)
            namespace = {} if tool is None or not tool.namespace else {"namespace": tool.namespace}
            name = block.call.name if tool is None else tool.name
            return {**item, "call_id": block.call.id, "name": name, **namespace, names.text_field: text}
        parts = [self._part(block)] if text or status != "in_progress" else []
        if block.kind == CONTENT:
            return {**item, "role": "assistant", "content": parts}
        item.update({"summary": parts} if names is _SUMMARY else {"summary": [], "content": parts})
        if self.request.includes_encrypted and status != "in_progress":
            item["encrypted_content"] = encode_reasoning(text)
        return item

    def _part(self, block: Block) -> dict[str, Any]:
        more = {"annotations": [], **self._logprobs(block, self._tokens.get(block.index, []))}
        part = {"type": self._names(block).part, "text": block.text}
        return {**part, **more} if block.kind == CONTENT else part

    def _logprobs(self, block: Block, tokens: list[OutputToken]) -> dict[str, Any]:
        """The field with log probabilities, which only the text of messages has."""
        if block.kind != CONTENT:
            return {}
        is_on = self.request.params.top_logprobs is not None
        return {"logprobs": [logprob_entry(token) for token in tokens] if is_on else []}

    def _names(self, block: Block) -> _Names:
        if block.kind == CONTENT:
            return _MESSAGE
        if block.kind == REASONING:
            return _SUMMARY if self.request.summarises else _REASONING
        tool = self.request.offered.get(block.call.name)
        return _CUSTOM_CALL if tool is not None and tool.is_custom else _CALL

    def _status(self, block: Block) -> str:
        choice = self.choices[0]
        is_last = block is choice.blocks[-1]
        if is_last and choice.is_open:
            return "in_progress"
        is_cut = is_last and choice.end is not None and choice.end.reason == "length"
        return "incomplete" if is_cut else "completed"

    def _text(self, block: Block) -> str:
        if self._names(block) is not _CUSTOM_CALL:
            return block.text
        return "" if self._status(block) == "in_progress" else custom_input(block.text)

    def _item_id(self, block: Block) -> str:
        prefix = _ID_PREFIXES[self._names(block).type]
        return f"{prefix}_{self.head.id.partition('_')[2]}{block.index:x}"

    def _emit_part(self, block: Block, kind: str) -> None:
        names = self._names(block)
        if names.part:
            self._emit_item(block, f"{names.part_event}.{kind}", part=self._part(block))

    def _emit_text(self, block: Block, kind: str, tokens: list[OutputToken], **fields: Any) -> None:
        self._emit_item(block, f"{self._names(block).text_event}.{kind}", **fields, **self._logprobs(block, tokens))

    def _emit_item(self, block: Block, kind: str, **fields: Any) -> None:
        """Emit an event that concerns the text of an item."""
        names = self._names(block)
        index = {names.index_field: 0} if names.part else {}
        self._emit(kind, item_id=self._item_id(block), output_index=block.index, **index, **fields)

    def _emit(self, kind: str, **fields: Any) -> None:
        self.emit({"type": kind, "sequence_number": self._n_events, **fields})
        self._n_events += 1


# The sampling values that a response repeats.
_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty")


def _usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.n_prompt,
        "input_tokens_details": {
            "cached_tokens": usage.n_cached,
            "cache_write_tokens": usage.n_prompt - usage.n_cached,
        },
        "output_tokens": usage.n_completion,
        "output_tokens_details": {"reasoning_tokens": usage.n_reasoning},
        "total_tokens": usage.n_prompt + usage.n_completion,
    }


_INPUT = re.compile(rf'\s*\{{\s*"{CUSTOM_INPUT}"\s*:\s*"((?:[^"\\]|\\.)*)', re.DOTALL)
_ESCAPE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')


def custom_input(arguments: str) -> str:
    """The text in the arguments of a custom tool. Arguments of any other format are returned unchanged."""
    found = _INPUT.match(arguments)
    if found is None:
        return arguments
    # A backslash that begins no escape of JSON stands for itself: models forget to escape those of patterns.
    text = _ESCAPE.sub(lambda escape: escape[1] or r"\\", found[1])
    return str(json.loads(f'"{text}"', strict=False))
