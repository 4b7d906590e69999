"""Ollama's POST /api/chat and /api/generate: parses requests, and encodes output events as JSON lines."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ..core.errors import ApiError, BadRequest, ContextLengthExceeded
from ..core.events import Usage
from ..core.fields import Fields
from ..core.params import MAX_TOP_LOGPROBS, GenerationParams, read_params
from ..core.request import DEFAULT_OPTIONS, ParseOptions, ResponseFormat
from .chat import ChatRequest, ends_in_prefill
from .completions import CompletionRequest
from .content import IMAGE, note_of, refuse_media, without_nulls
from .encoder import CALL, REASONING, Block, Choice, Encoder, Interface
from .logprobs import logprob_entry
from .ollama_models import read_keep_alive, time_text
from .response_format import read_schema
from .tools import read_tools, tool_call

_ROLES = ("system", "user", "assistant", "tool")
_THINK_LEVELS = ("low", "medium", "high", "max")

# Options that have no effect on the output of this server: settings that are command-line options here, and options of
# samplers that llama.cpp has removed.
_OPTIONS_WITHOUT_EFFECT = (
    "num_ctx", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "vocab_only", "use_mmap", "use_mlock",
    "num_thread", "numa", "logits_all", "embedding_only", "num_keep", "tfs_z", "penalize_newline", "draft_num_predict",
)  # fmt: skip


@dataclass(frozen=True)
class OllamaChat(ChatRequest):
    """A request with messages, for which the chat template renders the prompt."""

    is_generate: bool = False
    """Whether the endpoint is /api/generate, which has other fields for the text of the response."""
    done_reason: str | None = None
    """The `done_reason` of a request that only loads or unloads the model; None for other requests."""


@dataclass(frozen=True)
class OllamaText(CompletionRequest):
    """A request of /api/generate for a text completion or fill-in-the-middle."""

    is_generate: bool = True
    done_reason: str | None = None


Request = Union[OllamaChat, OllamaText]


def parse_chat(body: Fields, options: ParseOptions = DEFAULT_OPTIONS) -> Request:
    """The request in a body of /api/chat."""
    tools = read_tools(body)
    return _chat(body, _messages(body), tools=tools, tool_choice="auto" if tools else "none")


def parse_generate(body: Fields, options: ParseOptions = DEFAULT_OPTIONS) -> Request:
    """The request in a body of /api/generate."""
    prompt, suffix = body.text("prompt") or "", body.text("suffix")
    system, is_raw = body.text("system"), body.boolean("raw") or False
    _refuse_images(body)
    if body.items("context", "tokens"):
        raise BadRequest("'context' is not supported: send the whole conversation to /api/chat", "context")
    if body.text("template") and not is_raw:
        message = "'template' is a Go template, which this server does not support: send the prompt with 'raw': true"
        raise BadRequest(message, "template")
    if prompt and (is_raw or suffix):
        common = _common(body)
        return OllamaText(prompts=(prompt,), suffix=suffix or None, adds_special=not is_raw, **common)
    messages = [{"role": "system", "content": system}] if system else []
    last = [{"role": "user", "content": prompt}] if prompt else []
    return _chat(body, tuple(messages + last) if last else (), is_generate=True)


def _chat(body: Fields, messages: tuple[dict[str, Any], ...], **more: Any) -> OllamaChat:
    variables = _think(body)
    common = _common(body)
    if not messages:
        # A request without messages loads the model, or unloads it with a `keep_alive` of 0.
        common["params"] = GenerationParams(max_tokens=0)
        more["done_reason"] = "unload" if body.raw.get("keep_alive") == 0 else "load"
        messages = ({"role": "user", "content": "."},)
    continues = ends_in_prefill(messages)
    return OllamaChat(messages=messages, template_vars=variables, continue_final_message=continues, **common, **more)


def _common(body: Fields) -> dict[str, Any]:
    """The fields that both endpoints have."""
    given = body.object_or_empty("options")
    length = given.integer("num_predict")
    if length is not None and length <= 0:  # No limit.
        given = given.child({name: value for name, value in given.raw.items() if name != "num_predict"}, "options")
    given.ignore(_OPTIONS_WITHOUT_EFFECT)
    body.ignore(("truncate", "shift", "template"))
    params = read_params(given, top_logprobs=_top_logprobs(body), lengths=("num_predict",))
    given.report_unknown()
    return {
        "model": body.text("model") or body.text("name") or "",
        "params": params,
        "response_format": _response_format(body),
        "stream": body.boolean("stream") is not False,
        "keep_alive_s": read_keep_alive(body),
    }


def _top_logprobs(body: Fields) -> int | None:
    top = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS) or 0
    return top if body.boolean("logprobs") else None


def _response_format(body: Fields) -> ResponseFormat | None:
    value = body.get("format")
    if value is None or value == "":
        return None
    if value == "json":
        return ResponseFormat("json_object", None, "format")
    if isinstance(value, str):
        body.refuse("format", '"json" or a JSON schema')
    return ResponseFormat("json_schema", read_schema(body, "format"), "format")


def _think(body: Fields) -> dict[str, Any]:
    """The template variables for `think`: whether the model reasons, and its effort."""
    value = body.get("think")
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"enable_thinking": value}
    if value not in _THINK_LEVELS:
        body.refuse("think", "true, false, " + ", ".join(f'"{level}"' for level in _THINK_LEVELS))
    return {"enable_thinking": True, "reasoning_effort": value}


def _messages(body: Fields) -> tuple[dict[str, Any], ...]:
    """The chat messages. Ollama's calls have no ids, so results are assigned to calls in their order."""
    messages: list[dict[str, Any]] = []
    open_ids: list[str] = []
    n_calls = 0
    for given in body.objects("messages"):
        role = given.required_choice("role", _ROLES)
        note = note_of(IMAGE) if role == "tool" and given.items("images", "images") else ""
        if role != "tool":
            _refuse_images(given)
        message: dict[str, Any] = {
            "role": role,
            "content": (given.text("content") or "") + note,
            "reasoning_content": given.text("thinking"),
        }
        calls = [_call(call) for call in given.objects("tool_calls")]
        for call in calls:
            call.setdefault("id", f"call_{n_calls}")
            n_calls += 1
            open_ids.append(call["id"])
        if calls:
            message["tool_calls"] = calls
        if role == "tool":
            id = given.text("tool_call_id") or (open_ids.pop(0) if open_ids else None)
            message.update(name=given.text("tool_name") or given.text("name"), tool_call_id=id)
        messages.append(without_nulls(message))
    return tuple(messages)


def _call(call: Fields) -> dict[str, Any]:
    function = call.required_object("function")
    arguments = function.object_or_empty("arguments").raw
    return tool_call(call.text("id"), function.required_text("name"), arguments)


def _refuse_images(holder: Fields) -> None:
    if holder.items("images", "images"):
        refuse_media(holder.at("images"), IMAGE)


def error_body(error: ApiError) -> dict[str, str]:
    if isinstance(error, ContextLengthExceeded):
        return {"error": f"the input exceeds the context length: {error.message}"}
    return {"error": error.message}


class OllamaEncoder(Encoder[Request]):
    """Encodes a stream of JSON objects, of which the last one has the counts, or one object with the whole output."""

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        if block.kind != CALL:
            self._emit(**{block.kind: text})

    def closed(self, choice: Choice, block: Block) -> None:
        # Ollama sends calls only when they are complete.
        if block.kind == CALL and (calls := _calls([block])):
            self._emit(calls=calls)

    def finish(self) -> None:
        self.emit(self._ended(self._fields()))

    def failed(self, error: ApiError) -> None:
        self.emit(error_body(error))

    def body(self) -> dict[str, Any]:
        choice = self.choices[0]
        return self._ended(self._fields(choice.text(), choice.text(REASONING), _calls(choice.calls)))

    def _emit(self, **text: Any) -> None:
        if self.request.stream:
            self.emit({**self._head(), **self._fields(**text), "done": False})

    def _head(self) -> dict[str, Any]:
        return {"model": self.head.model, "created_at": time_text(self.head.created)}

    def _ended(self, fields: dict[str, Any]) -> dict[str, Any]:
        end, loaded = self.choices[0].end, self.request.done_reason
        reason = loaded or ("length" if end is not None and end.reason == "length" else "stop")
        counted = {} if loaded else counts(self.usage())
        return {**self._head(), **fields, "done": True, "done_reason": reason, **counted}

    def _fields(self, content: str = "", reasoning: str = "", calls: Sequence[Any] = ()) -> dict[str, Any]:
        """The text of an object, with the tokens since the last one."""
        _, tokens = self.choices[0].take_tokens()
        scored = [logprob_entry(token) for token in tokens] if self.request.params.top_logprobs is not None else []
        logprobs = {"logprobs": scored} if scored else {}
        thinking = {"thinking": reasoning} if reasoning else {}
        if self.request.is_generate:
            return {"response": content, **thinking, **logprobs}
        called = {"tool_calls": calls} if calls else {}
        return {"message": {"role": "assistant", "content": content, **thinking, **called}, **logprobs}


def _calls(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Complete tool calls. Those whose arguments are cut are left out."""
    calls = []
    for block in blocks:
        with contextlib.suppress(ValueError):
            arguments = json.loads(block.text or "{}")
            if isinstance(arguments, dict):
                function = {"index": block.call.index, "name": block.call.name, "arguments": arguments}
                calls.append({"id": block.call.id, "function": function})
    return calls


def counts(usage: Usage) -> Mapping[str, int]:
    """The numbers of tokens, and durations in nanoseconds. `load_duration` is 0: the model is loaded at the start."""
    return {
        "total_duration": _nanoseconds(usage.queue_s + usage.prompt_s + usage.completion_s),
        "load_duration": 0,
        "prompt_eval_count": usage.n_prompt,
        "prompt_eval_duration": _nanoseconds(usage.prompt_s),
        "eval_count": usage.n_completion,
        "eval_duration": _nanoseconds(usage.completion_s),
    }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


CHAT: Interface[Request] = Interface("chat-", parse_chat, OllamaEncoder)
GENERATE: Interface[Request] = Interface("gen-", parse_generate, OllamaEncoder)
