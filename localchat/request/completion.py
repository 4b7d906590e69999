"""A request for a completion: prompt and options become the body, sent again without what the server refuses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Union

from ..errors import BadRequestError, NotFoundError, StatusError, UnprocessableError
from ..reply.text import ThinkSplitter
from ..transport.call import Call, CallOptions
from ..transport.settings import Settings, check_headers
from ..transport.timeouts import Timeout, TotalDeadline
from .models import default_model
from .options import check_count, check_options

_JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")

Prompt = Union[str, Sequence[Mapping[str, Any]]]
# Several texts, also as lists of tokens; and the prompt of `complete`, which may be one or several.
Texts = Union[Sequence[str], Sequence[Sequence[int]]]
TextPrompt = Union[str, Sequence[int], Texts]


def as_messages(prompt: Prompt, system: str | None = None) -> list[dict[str, Any]]:
    """The messages of a prompt, text or a list, after a system message. Raises ValueError if there would be two."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
        raise TypeError(f"a prompt is text or a list of messages, not {type(prompt).__name__}")
    messages = []
    for message in [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt:
        if not isinstance(message, Mapping):
            hint = ": client.map(texts) gives a reply to each" if isinstance(message, str) else ""
            raise TypeError(f"a message is a dict with role and content, not {type(message).__name__}{hint}")
        messages.append(dict(message))
    if system is not None and any(message.get("role") == "system" for message in messages):
        raise ValueError("the prompt has a system message, so system= would add a second one: leave one out")
    return [*([] if system is None else [{"role": "system", "content": system}]), *messages]


def n_system(messages: Sequence[Mapping[str, Any]]) -> int:
    """The number of system messages with which a conversation begins, 0 or 1."""
    return int(bool(messages) and messages[0].get("role") == "system")


def take_media(options: dict[str, Any]) -> dict[str, Any]:
    """Remove images and audio from the options and return them. `audio` that is a mapping is OpenAI's option."""
    names = [name for name in ("images", "audio") if not (name == "audio" and isinstance(options.get(name), Mapping))]
    found = {name: options.pop(name, None) for name in names}
    return {name: sources for name, sources in found.items() if sources is not None and sources not in ([], ())}


def reusable(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of several requests: a generator, which the first request would use up, becomes a list."""
    return {name: list(value) if isinstance(value, Iterator) else value for name, value in options.items()}


class Arguments:
    """The options of a call of the method `what`. Raises TypeError for an unknown one, ValueError for a wrong value."""

    def __init__(self, settings: Settings, given: Mapping[str, Any], what: str) -> None:
        check_options(given, what)
        for name, value in given.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} is {value}, which is not a finite number")
        # The other options, which are fields of the request or are removed by a subclass.
        self.fields = fields = dict(given)
        timeout, max_retries = Timeout.of(fields.pop("timeout", settings.timeout)), fields.pop("max_retries", None)
        headers: Mapping[str, str] = fields.pop("extra_headers", None) or {}
        check_headers(headers)
        self.call_options = CallOptions(
            timeout,
            TotalDeadline(timeout.total),
            settings.max_retries if max_retries is None else max_retries,
            headers,
        )
        self.model: str | None = fields.pop("model", None)
        # These fields replace others of the same name.
        self.extra_body: Mapping[str, Any] = fields.pop("extra_body", None) or {}

    def share_total(self, first: Arguments) -> None:
        """Let this request end with the total timeout of an earlier request of the same call."""
        self.call_options = self.call_options._replace(total=first.call_options.total)


class Completion(Arguments):
    """A request of `complete`, or of a method whose prompt is text or a list of messages."""

    def __init__(self, settings: Settings, prompt: Any, given: Mapping[str, Any], what: str) -> None:
        super().__init__(settings, given, what)
        self._settings, self._is_chat, fields = settings, what != "complete", self.fields
        self._media = take_media(fields)  # `images` and `audio`, which are added to the prompt.
        self.think_tags: str = fields.pop("think_tags", "auto" if self._is_chat else "off")
        self.retries_on_mismatch: int = fields.pop("retries_on_mismatch", 0)
        check_count("retries_on_mismatch", self.retries_on_mismatch, 0)
        # Whether a reply that a limit or a filter cut is returned, and not an error.
        self.allow_truncated: bool = fields.pop("allow_truncated", not self._is_chat)
        system, messages = fields.pop("system", None), fields.pop("messages", None)
        if messages is not None and prompt is not None:
            raise TypeError(f"{what} got a prompt and messages, which are the same argument: leave one out")
        prompt = messages if prompt is None else prompt
        if not self._is_chat and (isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence)):
            raise TypeError(f"complete takes text, a list of texts or of tokens, not {type(prompt).__name__}")
        self.prompt: Any = as_messages(prompt, system) if self._is_chat else prompt
        fields.update(self.extra_body)
        # The number of choices that the response has to contain: `n`, for each prompt of `complete`.
        n, is_list = fields.get("n"), isinstance(prompt, (list, tuple))
        several = is_list and all(isinstance(text, (str, list, tuple)) for text in prompt)
        self.n_choices = (n if isinstance(n, int) else 1) * (max(len(prompt), 1) if several else 1)
        self._tools = _definitions(fields.pop("tools", None) or ())
        functions = (tool.get("function") for tool in self._tools)
        self.tool_names = {str(function.get("name")) for function in functions if isinstance(function, Mapping)}
        # The value that the completion has to contain (schema.ExpectedValue), None for any text.
        self.expected: Any = None
        target = fields.get("response_format")
        kind = target.get("type") if isinstance(target, Mapping) else None
        self.body(None)  # Like the next line, this raises for wrong values.
        ThinkSplitter(self.think_tags)
        # A mapping whose `type` is not one of JSON Schema is a `response_format` itself, which is sent as it is.
        if target is not None and (not isinstance(kind, str) or kind in _JSON_TYPES):
            del fields["response_format"]
            from ..schema.schema import ExpectedValue  # Few programs need it.

            self.expected = ExpectedValue(target)

    def body(self, model: str | None) -> dict[str, Any]:
        """The body. A field that is None is not sent, nor an empty list of tools, which servers refuse.

        A stream requests its usage unless `stream_options` is given; {"stream": False} is for servers that cannot.
        """
        fields = {name: value for name, value in self.fields.items() if value is not None}
        if self._tools:
            fields["tools"] = self._tools
        elif fields.get("tool_choice") in ("auto", "none"):
            del fields["tool_choice"]
        if self._is_chat and "messages" in fields:
            raise ValueError("messages are the first argument: in extra_body they would replace the prompt")
        prompt = {"messages": list(map(dict, self.prompt))} if self._is_chat else {"prompt": self.prompt}
        body = {**({} if model is None else {"model": model}), **prompt, **fields}
        body.setdefault("stream", True)
        stream_options = body.pop("stream_options", {"include_usage": True})
        if body["stream"] and stream_options and self._settings.takes_stream_options:
            body["stream_options"] = stream_options
        return body

    async def send(self, call: Call) -> None:
        """Send the request. If the server refuses a field, repeat it without the field."""
        settings, expected = self._settings, self.expected
        if self._media:  # Their files are read in a thread.
            from .media import attach

            self.prompt = await call.wait(call.driver.read_files, None, lambda: attach(self.prompt, **self._media))
            self._media = {}
        model = self.model or await default_model(call)
        body = self.body(model)
        refused: list[str] = []
        while True:
            try:
                sent = body if expected is None else expected.apply(body)
                await call.send("POST", "chat/completions" if self._is_chat else "completions", sent)
                break
            except (BadRequestError, UnprocessableError) as error:
                field = _drop_refused(body, error)
                if field:
                    refused.append(field)
                elif expected is None or not expected.weaken(error):
                    raise
            except NotFoundError:
                if self.model or model is None or model != settings.found_model:
                    raise
                settings.found_model = None  # The server may have another model now.
                body["model"] = await default_model(call)
                if body["model"] in (None, model):
                    raise
        for field in refused:
            setattr(settings, field, False)


def _drop_refused(body: dict[str, Any], error: StatusError) -> str:
    """Remove a field that a strict server refuses; return the name of the setting for it, "" if there is none."""
    named = [message for message in body.get("messages", ()) if message.get("role") == "tool" and "name" in message]
    if "stream_options" in body and "stream_options" in error.body:
        del body["stream_options"]
        return "takes_stream_options"
    if named and re.search(r"\bname\b", error.body):  # OpenAI's messages have no name.
        for message in named:
            del message["name"]
        return "takes_tool_names"
    return ""


def _definitions(tools: Any) -> list[Any]:
    if not isinstance(tools, Iterable) or isinstance(tools, (str, bytes, Mapping)):
        raise TypeError(f"tools is a list of tools, not {tools!r:.100}")
    found = [getattr(tool, "definition", tool) for tool in tools]
    if any(map(callable, found)):
        raise TypeError("functions as tools go to run(), which calls them; chat() and stream() take tools as JSON")
    for tool in found:
        if not isinstance(tool, Mapping):
            raise TypeError(f"a tool is a dict, as in OpenAI's API, or a Tool, not {tool!r:.100}")
    return found
