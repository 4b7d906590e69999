"""Ollama's interfaces: /api/chat, /api/generate and /api/embed. http/model_endpoints.py describes the models."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypedDict

from ..core.errors import ApiError, ContextLengthExceeded, field_error, item_path
from ..core.events import Usage
from ..core.fields import Fields, without_nulls
from ..core.media import IMAGE, Attachment
from ..core.params import MAX_TOP_LOGPROBS, GenerationParams, read_params
from ..core.request import ChatRequest, CompletionRequest, EmbeddingsRequest, ResponseFormat, TextRequest, Vectors
from ..core.tool_results import results_of_calls
from .chat import ROLES, ends_in_prefill
from .content import MessageAt, Origin, messages_with_paths, origins, read_text
from .embeddings import MAX_INPUTS, read_embeddings
from .encoder import CALL, REASONING, Block, Choice, Encoder, arguments_object, logprob_entry
from .response_formats import read_schema
from .tools import ToolAt, called, chosen_tools, read_tools

VERSION = "0.13.0"  # The version of Ollama that the server reports. Editors refuse servers below a minimum version.

# The time at which /api/ps says that a model is unloaded that stays loaded, in the year 2318, as Ollama does.
NEVER = 10982044800

# The role of messages that are no part of the conversation: Granite's templates for Ollama turn on the reasoning with
# {"role": "control", "content": "thinking"}.
_CONTROL, _CONTROLS = "control", ("thinking",)
_THINK_LEVELS = ("low", "medium", "high", "max")

# Options without effect here: those that are options of the command line, and of samplers that llama.cpp has removed.
_OPTIONS_WITHOUT_EFFECT = (
    "num_ctx", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "vocab_only", "use_mmap", "use_mlock",
    "num_thread", "numa", "logits_all", "embedding_only", "num_keep", "tfs_z", "penalize_newline", "draft_num_predict",
)  # fmt: skip

# A duration as in Go.
_UNITS = {
    "ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0,
}  # fmt: skip
_DURATION = re.compile("-?(\\d+(\\.\\d*)?([nu\u00b5\u03bcm]?s|m|h))+|-?\\d+")


def parse_ollama(body: Fields) -> ChatRequest:
    tools = read_tools(body)
    listed = [(message, _role(message)) for message in body.objects("messages")]
    controls = [message.required_choice("content", _CONTROLS) for message, role in listed if role == _CONTROL]
    messages = _messages([(message, role) for message, role in listed if role != _CONTROL])
    return _chat(body, messages, tools, thinks=bool(controls))


def parse_generate(body: Fields) -> ChatRequest | CompletionRequest:
    prompt, suffix = body.text("prompt") or "", body.text("suffix")
    system, is_raw = body.text("system"), body.boolean("raw") or False
    images = _images(body)
    if body.items("context", "tokens"):
        raise field_error("context", "is not supported: send the whole conversation to /api/chat")
    if body.text("template") and not is_raw:
        problem = "is a Go template, which this server does not support: send the prompt with 'raw': true"
        raise field_error("template", problem)
    if prompt and (is_raw or suffix):
        if images:
            raise field_error("images", "is not supported with 'raw' or 'suffix': send a plain prompt")
        return CompletionRequest(
            prompt=(prompt,), suffix=suffix or None, add_special_tokens=not is_raw, **_common(body)
        )
    field = "prompt" if prompt else "images"
    texts = [("system", system, "system"), ("user", images + prompt, field)] if images + prompt else []
    messages = [({"role": role, "content": text}, path) for role, text, path in texts if text]
    return _chat(body, messages, messages_field=field)


def _chat(
    body: Fields,
    messages: list[MessageAt],
    tools: Sequence[ToolAt] = (),
    *,
    thinks: bool = False,
    messages_field: str = "messages",
) -> ChatRequest:
    """The request. `thinks` is the default of `think`: whether a message turns on the reasoning."""
    placed = messages_with_paths(messages)
    return ChatRequest(
        **placed,
        messages_field=messages_field,
        attachments=tuple(body.attachments),
        **chosen_tools(body, "tools", "auto", [], tools),
        chat_template_kwargs={**({"enable_thinking": True} if thinks else {}), **_think(body)},
        continue_final_message=bool(messages) and ends_in_prefill(placed["messages"]),
        **_common(body),
    )


class _CommonFields(TypedDict):
    """The fields of a TextRequest."""

    model: str
    params: GenerationParams
    response_format: ResponseFormat | None
    stream: bool
    keep_alive: float | None


def _common(body: Fields) -> _CommonFields:
    options = body.object_or_empty("options")
    length = options.integer("num_predict")
    lengths = ("num_predict",) if length is not None and length > 0 else ()  # Others mean no limit.
    options.accept(_OPTIONS_WITHOUT_EFFECT)
    body.accept(("truncate", "shift", "template"))
    top = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS) or 0
    params = read_params(options, top_logprobs=top if body.boolean("logprobs") else None, lengths=lengths)
    options.report_unknown()
    return {
        "model": body.text("model") or body.text("name") or "",
        "params": params,
        "response_format": _response_format(body),
        "stream": body.boolean("stream") is not False,
        "keep_alive": read_keep_alive(body),
    }


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
    if value is None or isinstance(value, bool):
        return without_nulls({"enable_thinking": value})
    if value not in _THINK_LEVELS:
        body.refuse("think", "true, false, " + ", ".join(f'"{level}"' for level in _THINK_LEVELS))
    return {"enable_thinking": True, "reasoning_effort": value}


def _role(message: Fields) -> str:
    """The role of a message. As in Ollama, capital letters make no difference."""
    role = message.get("role")
    lower = role.lower() if isinstance(role, str) else ""
    return lower if lower in (*ROLES, _CONTROL) else message.required_choice("role", ROLES)


def _messages(listed: Sequence[tuple[Fields, str]]) -> list[MessageAt]:
    """The chat messages of objects with their roles."""
    messages: list[MessageAt] = []
    for (message, listed_role), origin in zip(listed, origins(role for _, role in listed)):
        role = "tool" if listed_role == "function" else listed_role
        images, text = _images(message, origin), _content(message, origin)
        calls = [
            called(call.text("id") or "", call.required_object("function")) for call in message.objects("tool_calls")
        ]
        converted: dict[str, Any] = {
            "role": role,
            "content": text + images if role == "tool" else images + text,  # Models are trained with images first.
            "reasoning_content": message.text("thinking"),
            "tool_calls": calls or None,
        }
        if role == "tool":
            name = message.text("tool_name") or message.text("name")
            converted.update(name=name, tool_call_id=message.text("tool_call_id") or None)
        messages.append((without_nulls(converted), message.path))
    _add_ids([message for message, _ in messages])
    return messages


def _add_ids(messages: Sequence[dict[str, Any]]) -> None:
    """Give ids to calls, since those of most clients have none, and to results the ids of the calls before them."""
    all_calls = [call for message in messages for call in message.get("tool_calls", ())]
    known_ids = {call["id"] for call in all_calls}
    new_ids = (id for id in map("call_{}".format, itertools.count()) if id not in known_ids)
    for call in all_calls:
        call["id"] = call["id"] or next(new_ids)
    calls: list[dict[str, Any]] = []
    with_calls_or_results = (message for message in messages if "tool_calls" in message or message["role"] == "tool")
    for are_results, group in itertools.groupby(with_calls_or_results, lambda message: message["role"] == "tool"):
        if not are_results:
            calls = [call for message in group for call in message["tool_calls"]]
            continue
        results = list(group)
        for call, index in zip(calls, results_of_calls(calls, results)):
            if index is not None:
                results[index].setdefault("tool_call_id", call["id"])


def _content(message: Fields, origin: Origin) -> str:
    """The text of a message. Ollama itself refuses parts, which programs of the other interfaces send."""
    return "" if message.get("content") is None else read_text(message, "content", origin)


def _images(holder: Fields, origin: Origin = Origin.NEW) -> str:
    """The markers of the images of a message."""
    sources = holder.items("images", "images")
    if not all(isinstance(source, str) for source in sources):
        holder.refuse("images", "a list of images in base64")
    paths = (item_path(holder.at("images"), sources, i) for i in range(len(sources)))
    attachments = [Attachment(IMAGE, path, source, origin.is_replayed) for path, source in zip(paths, sources)]
    return "".join(map(holder.attach, attachments))


def error_body(error: ApiError) -> dict[str, str]:
    if isinstance(error, ContextLengthExceeded):
        return {"error": f"the input exceeds the context length: {error.message}"}
    return {"error": error.message}


class OllamaEncoder(Encoder[TextRequest]):
    """Encodes a stream of JSON objects, of which the last one has the counts, or one object with the whole output."""

    id_prefix = "chat-"

    @classmethod
    def ping_chunk(cls, request: TextRequest) -> Any:
        """An object without text. Ollama itself sends nothing while a model loads, and lines have no comments."""
        return {
            "model": request.model,
            "created_at": time_text(time.time()),
            **cls.message({"content": ""}),
            "done": False,
        }

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        if block.kind != CALL:
            self._emit({"thinking" if block.kind == REASONING else "content": text})

    def closed(self, choice: Choice, block: Block) -> None:
        # Ollama sends calls only when they are complete.
        if calls := self._calls([block]):
            self._emit({"tool_calls": calls})

    def finish(self) -> None:
        self.emit(self._ended({}))

    def body(self) -> dict[str, Any]:
        choice = self.choices[0]
        others = {"thinking": choice.text(REASONING), "tool_calls": self._calls(choice.blocks)}
        return self._ended({"content": choice.text(), **{name: value for name, value in others.items() if value}})

    @staticmethod
    def message(fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of a message as a field of an object."""
        return {"message": {"role": "assistant", **fields}}

    def _calls(self, blocks: Sequence[Block]) -> list[dict[str, Any]]:
        """The tool calls among these blocks, without the last one if the limit of tokens cuts it."""
        choice = self.choices[0]
        is_cut = choice.end is not None and choice.end.reason == "length"
        return [
            {"id": block.call.id, "function": {
                "index": block.call.index, "name": block.call.name, "arguments": arguments_object(block.text),
            }}
            for block in blocks
            if block.kind == CALL and not (is_cut and block is choice.blocks[-1])
        ]  # fmt: skip

    def _emit(self, fields: dict[str, Any]) -> None:
        if self.request.stream:
            self.emit({**self._object(fields), "done": False})

    def _ended(self, fields: dict[str, Any]) -> dict[str, Any]:
        end, request = self.choices[0].end, self.request
        if not request.asks_for_text:
            loaded = "unload" if request.keep_alive == 0 else "load"
            return {**self._object(fields), "done": True, "done_reason": loaded}
        reason = "length" if end is not None and end.reason == "length" else "stop"
        return {**self._object(fields), "done": True, "done_reason": reason, **counts(self.usage())}

    def _object(self, fields: dict[str, Any]) -> dict[str, Any]:
        """An object with fields of the message, and the tokens since the last object."""
        tokens = self.choices[0].take_tokens()
        scored = [logprob_entry(token) for token in tokens] if self.request.params.top_logprobs is not None else []
        head = {"model": self.head.model, "created_at": time_text(self.head.created)}
        return {**head, **self.message({"content": "", **fields}), **({"logprobs": scored} if scored else {})}


class GenerateEncoder(OllamaEncoder):
    """Encodes the same with the fields of /api/generate."""

    id_prefix = "gen-"

    @staticmethod
    def message(fields: dict[str, Any]) -> dict[str, Any]:
        return {"response": fields.pop("content"), **fields}


def counts(usage: Usage) -> Mapping[str, int]:
    """The numbers of tokens, and durations in nanoseconds. `load_duration` is 0: the time of a load is not measured."""
    total, prompt, completion = (round(s * 1e9) for s in (usage.total_s, usage.prompt_s, usage.completion_s))
    return {
        "total_duration": total, "load_duration": 0, "prompt_eval_count": usage.n_prompt,
        "prompt_eval_duration": prompt, "eval_count": usage.n_completion, "eval_duration": completion,
    }  # fmt: skip


def time_text(seconds: float) -> str:
    """A time in seconds since 1970 as in Ollama's responses. The time of a file may be no date."""
    return datetime.fromtimestamp(min(max(seconds, 0), NEVER), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_embed(body: Fields, field: str = "input", most: int = MAX_INPUTS) -> EmbeddingsRequest:
    """The request in a body of /api/embed, or of the older /api/embeddings with one text in `prompt`."""
    body.accept(("options",))
    truncate = body.boolean("truncate") is not False
    return read_embeddings(body, field, most, truncate=truncate, keep_alive=read_keep_alive(body))


parse_old_embed = partial(parse_embed, field="prompt", most=1)


def read_keep_alive(body: Fields) -> float | None:
    """How long the model stays loaded after the request, in seconds. A negative value means for ever."""
    value = body.get("keep_alive")
    if value is None:
        return None
    if isinstance(value, str):
        if not _DURATION.fullmatch(value):
            body.refuse("keep_alive", 'a number of seconds or a duration such as "5m"')
        seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)(\D*)", value))
        return math.inf if value.startswith("-") else seconds
    seconds = body.number("keep_alive") or 0.0
    return seconds if seconds >= 0 else math.inf


def embed_body(model: str, request: EmbeddingsRequest, vectors: Vectors, n_tokens: int) -> dict[str, Any]:
    return {"model": model, "embeddings": [vector.tolist() for vector in vectors], "prompt_eval_count": n_tokens}


def old_embed_body(model: str, request: EmbeddingsRequest, vectors: Vectors, n_tokens: int) -> dict[str, Any]:
    return {"embedding": vectors[0].tolist()}
