"""A request for a completion: prompt and options become the body, sent again without what the server refuses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import BadRequestError, NotFoundError, StatusError, UnprocessableError
from ..transport.call import Call
from ..transport.settings import Settings
from .arguments import RequestArguments
from .prompts import as_messages, take_media

_JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


class CompletionRequest(RequestArguments):
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
            self.expected = ExpectedValue(response_format, settings.server.accepted_formats)

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
        if body["stream"] and stream_options and self._settings.server.takes_stream_options:
            body["stream_options"] = stream_options
        return body

    async def send(self, call: Call) -> None:
        """Send the request. If the server refuses a field, repeat it without the field."""
        server, expected = self._settings.server, self.expected
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
                if self.names_model or model is None or model != server.model:
                    raise
                server.model = None  # The server may have another model now.
                body["model"] = await self.model(call)
                if body["model"] in (None, model):
                    raise
        for field in refused:
            setattr(server, field, False)
        if expected is not None:
            expected.accept()


def _is_wire_format(response_format: Any) -> bool:
    """Whether this is the field `response_format` itself: a mapping whose `type` is not one of JSON Schema."""
    name = response_format.get("type") if isinstance(response_format, Mapping) else None
    return isinstance(name, str) and name not in _JSON_TYPES


def _drop_refused(body: dict[str, Any], error: StatusError) -> str:
    """Remove a field that a strict server refuses; return the name of its ServerTraits, "" if there is none."""
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
