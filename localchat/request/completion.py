"""A request for a completion: prompt and options become the body, sent again without what the server refuses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Union

from ..errors import BadRequestError, NotFoundError, StatusError, UnprocessableError
from ..transport.call import Call, CallOptions
from ..transport.settings import Settings, check_headers
from ..transport.timeouts import Timeout, TotalDeadline
from .models import default_model
from .options import check_options, set_options

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
    media = {name: options.pop(name, None) for name in names}
    return {name: sources for name, sources in media.items() if sources is not None and sources not in ([], ())}


def reusable(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of several requests: a generator, which the first request would use up, becomes a list."""
    return {name: list(value) if isinstance(value, Iterator) else value for name, value in set_options(options).items()}


class Arguments:
    """The options of a call of the method `what`. Raises TypeError for an unknown one, ValueError for a wrong value."""

    def __init__(self, settings: Settings, options: Mapping[str, Any], what: str) -> None:
        check_options(options, what)
        # The options that are fields of the request, or that a subclass removes.
        self.fields = fields = set_options(options)
        timeout, max_retries = Timeout.of(fields.pop("timeout", settings.timeout)), fields.pop("max_retries", None)
        headers: Mapping[str, str] = fields.pop("extra_headers", None) or {}
        check_headers(headers)
        self.call_options = CallOptions(
            timeout,
            TotalDeadline(timeout.total),
            settings.max_retries if max_retries is None else max_retries,
            headers,
        )
        # These fields replace others of the same name.
        self.extra_body: Mapping[str, Any] = fields.pop("extra_body", None) or {}
        # Whether the options name the model. None as the model in `extra_body` names none, and none is sent.
        self.names_model = fields.get("model") is not None or "model" in self.extra_body
        self._model: str | None = fields.pop("model", None)

    async def model(self, call: Call) -> str | None:
        """The model of the options, of the client, or the only one of the server."""
        return self._model if self.names_model else await default_model(call)

    def share_total(self, first: Arguments) -> None:
        """Let this request end with the total timeout of an earlier request of the same call."""
        self.call_options = self.call_options._replace(total=first.call_options.total)


class Completion(Arguments):
    """A request of `complete`, or of a method whose prompt is text or a list of messages."""

    def __init__(self, settings: Settings, prompt: Any, options: Mapping[str, Any], what: str) -> None:
        super().__init__(settings, options, what)
        self._settings, self._is_chat, fields = settings, what != "complete", self.fields
        self._media = take_media(fields)  # `images` and `audio`, which are added to the prompt.
        self.think_tags: str = fields.pop("think_tags", "auto" if self._is_chat else "off")
        self.retries_on_mismatch: int = fields.pop("retries_on_mismatch", 0)
        # Whether a reply that a limit or a filter cut is returned, and not an error.
        self.allow_truncated: bool = fields.pop("allow_truncated", not self._is_chat)
        self.prompt: Any = self._read_prompt(prompt, what)
        if self._is_chat and "messages" in self.extra_body:
            raise ValueError("messages are the first argument: in extra_body they would replace the prompt")
        fields.update(self.extra_body)
        self.n_choices = self._count_choices()
        self._tools = _definitions(fields.pop("tools", None) or ())
        functions = (tool.get("function") for tool in self._tools)
        self.tool_names = {str(function.get("name")) for function in functions if isinstance(function, Mapping)}
        # The value that the completion has to contain (response_format.ExpectedValue), None for any text.
        self.expected: Any = None
        response_format = fields.get("response_format")
        if response_format is not None and not _is_wire_format(response_format):
            from ..schema.response_format import ExpectedValue  # Few programs need it.

            del fields["response_format"]
            self.expected = ExpectedValue(response_format, settings.accepted_formats)

    def _read_prompt(self, prompt: Any, what: str) -> Any:
        """The messages of a chat, or the prompt of `complete` as it is."""
        system, messages = self.fields.pop("system", None), self.fields.pop("messages", None)
        if messages is not None and prompt is not None:
            raise TypeError(f"{what} got a prompt and messages, which are the same argument: leave one out")
        prompt = messages if prompt is None else prompt
        if self._is_chat:
            return as_messages(prompt, system)
        if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence):
            raise TypeError(f"complete takes text, a list of texts or of tokens, not {type(prompt).__name__}")
        return prompt

    def _count_choices(self) -> int:
        """The number of choices that the response has to contain: `n`, for each prompt of `complete`."""
        n, prompts = self.fields.get("n"), self.prompt
        has_prompts = not self._is_chat and isinstance(prompts, (list, tuple))
        has_prompts = has_prompts and all(isinstance(text, (str, list, tuple)) for text in prompts)
        return (n if isinstance(n, int) else 1) * (max(len(prompts), 1) if has_prompts else 1)

    def body(self, model: str | None) -> dict[str, Any]:
        """The body. A field that is None is not sent, nor an empty list of tools, which servers refuse.

        A stream requests its usage unless `stream_options` is given; {"stream": False} is for servers that cannot.
        """
        fields = {name: value for name, value in self.fields.items() if value is not None}
        if self._tools:
            fields["tools"] = self._tools
        elif fields.get("tool_choice") in ("auto", "none"):
            del fields["tool_choice"]
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

            self.prompt = await call.read_files(lambda: attach(self.prompt, **self._media))
            self._media = {}
        model = await self.model(call)
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
                if self.names_model or model is None or model != settings.found_model:
                    raise
                settings.found_model = None  # The server may have another model now.
                body["model"] = await self.model(call)
                if body["model"] in (None, model):
                    raise
        for field in refused:
            setattr(settings, field, False)
        if expected is not None:
            expected.accept()


def _is_wire_format(response_format: Any) -> bool:
    """Whether this is the field `response_format` itself: a mapping whose `type` is not one of JSON Schema."""
    name = response_format.get("type") if isinstance(response_format, Mapping) else None
    return isinstance(name, str) and name not in _JSON_TYPES


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
    definitions = [getattr(tool, "definition", tool) for tool in tools]
    if any(map(callable, definitions)):
        raise TypeError("functions as tools go to run(), which calls them; chat() and stream() take tools as JSON")
    for definition in definitions:
        if not isinstance(definition, Mapping):
            raise TypeError(f"a tool is a dict, as in OpenAI's API, or a Tool, not {definition!r:.100}")
    return definitions
