"""A request for a completion: prompt and options become the body, which is sent again without what the server refuses.

The server may refuse a field (`_REFUSABLE`), the response format (`ExpectedValue`), or a model that it has replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import BadRequestError, NotFoundError, StatusError, UnprocessableError
from ..reply.payloads import Json
from ..transport.call import Call
from ..transport.settings import Settings
from .arguments import BaseRequest
from .prompts import as_messages, take_media

if TYPE_CHECKING:
    from ..schema.response_format import ExpectedValue

_JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


class CompletionRequest(BaseRequest):
    """The request of a method that generates text. The prompt of `complete` is text, that of any other a chat.

    chat("Hi", model="m", seed=1, timeout=5, think_tags="off", extra_body={"top_k": 2}) has the `fields`

        {"seed": 1, "top_k": 2}

    and, since `timeout` and `think_tags` are no fields of a request, the `body`

        {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "seed": 1, "top_k": 2,
         "stream": True, "stream_options": {"include_usage": True}}
    """

    def __init__(self, settings: Settings, prompt: Any, options: Mapping[str, Any], method: str) -> None:
        super().__init__(settings, options, method)
        self._settings = settings
        self._is_chat = method != "complete"
        # First the options that are no fields of the request. They are removed, and `extra_body` cannot have them.
        fields = self.fields
        self._media = take_media(fields)  # `images` and `audio`, which are added to the prompt.
        self.think_tags: str = fields.pop("think_tags", "auto" if self._is_chat else "off")
        self.retries_on_mismatch: int = fields.pop("retries_on_mismatch", 0)
        # Whether a reply that a limit or a filter cut is returned, and not an error.
        self.allow_truncated: bool = fields.pop("allow_truncated", not self._is_chat)
        self.prompt: Any = self._read_prompt(prompt, method)
        self.check_extra_body("messages" if self._is_chat else "prompt")
        # Then those that `extra_body` may have too: n, tools, functions, response_format.
        fields.update(self.extra_body)
        self.n_choices = self._count_choices()
        self._tools = _definitions(fields.pop("tools", None) or ())
        legacy = fields.get("functions")
        functions = [*(tool.get("function") for tool in self._tools), *(legacy if isinstance(legacy, list) else ())]
        self.tool_names = {str(function.get("name")) for function in functions if isinstance(function, Mapping)}
        # The value that the completion has to contain, None for any text.
        self.expected: ExpectedValue | None = None
        response_format = fields.get("response_format")
        if response_format is not None and not _is_wire_format(response_format):
            from ..schema.response_format import ExpectedValue  # Few programs need it.

            del fields["response_format"]
            self.expected = ExpectedValue(response_format, settings.learned.accepted_formats)

    def _read_prompt(self, prompt: Any, method: str) -> Any:
        """The messages of a chat, or the prompt of `complete` as it is."""
        system, messages = self.fields.pop("system", None), self.fields.pop("messages", None)
        if messages is not None and prompt is not None:
            raise TypeError(f"{method} got a prompt and messages, which are the same argument: leave one out")
        prompt = messages if prompt is None else prompt
        if self._is_chat:
            return as_messages(prompt, system)
        if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence):
            raise TypeError(f"complete takes text, a list of texts or of tokens, not {type(prompt).__name__}")
        return prompt

    def _count_choices(self) -> int:
        """The number of choices that the response has to contain: `n`, for each prompt of `complete`."""
        n = self.fields.get("n")
        n_prompts = 1
        if not self._is_chat and isinstance(self.prompt, (list, tuple)):
            are_texts = all(isinstance(text, (str, list, tuple)) for text in self.prompt)
            n_prompts = max(len(self.prompt), 1) if are_texts else 1  # Otherwise it is one text, as tokens.
        return (n if isinstance(n, int) else 1) * n_prompts

    def body(self, model: str | None) -> Json:
        """The body. A field that is None is not sent, nor one that the server has refused before.

        An empty list of tools is not sent either, since servers refuse it. A stream requests its usage unless
        `stream_options` is given; {"stream": False} is for servers that cannot stream.
        """
        fields = {name: value for name, value in self.fields.items() if value is not None}
        if self._tools:
            fields["tools"] = self._tools
        elif fields.get("tool_choice") in ("auto", "none"):
            del fields["tool_choice"]
        prompt = {"messages": list(map(dict, self.prompt))} if self._is_chat else {"prompt": self.prompt}
        body = {**({} if model is None else {"model": model}), **prompt, **fields}
        body.setdefault("stream", True)
        default = None if "stream_options" in self.extra_body else {"include_usage": True}
        stream_options = body.pop("stream_options", default)
        if body["stream"] and stream_options:
            body["stream_options"] = stream_options
        for name in self._settings.learned.refused_fields:
            _REFUSABLE[name](body)
        return body

    async def send(self, call: Call) -> None:
        """Send the request, and repeat it without what the server refuses.

        Each repetition has less than the one before, or another model, which is replaced once: so they come to an end.
        """
        learned, expected = self._settings.learned, self.expected
        if self._media:  # Their files are read in a thread.
            from .media import attach

            self.prompt = await call.read_files(lambda: attach(self.prompt, **self._media))
            self._media = {}
        path = "chat/completions" if self._is_chat else "completions"
        body = self.body(await self.model(call))
        refused: set[str] = set()
        has_first_model = True
        while True:
            try:
                await call.send("POST", path, body if expected is None else expected.apply(body))
                break
            except (BadRequestError, UnprocessableError) as error:
                name = _drop_refused(body, error)
                if name is not None:
                    refused.add(name)
                elif expected is None or not expected.weaken(error):
                    raise
            except NotFoundError:
                if not (has_first_model and await self._replace_model(call, body)):
                    raise
                has_first_model = False
        # Only after success: an error that quotes the whole request names fields that the server takes.
        learned.refused_fields |= refused
        if expected is not None:
            expected.accept()

    async def _replace_model(self, call: Call, body: Json) -> bool:
        """Put the model of the server into the body after a 404; return whether it is another one than before.

        If the client found the model in the list, the server may have been restarted with another one.
        """
        learned, refused = self._settings.learned, body.get("model")
        if self.names_model or self._settings.model is not None or refused is None:
            return False
        if learned.model == refused:  # Otherwise another call has already replaced it.
            learned.model = None
        body["model"] = await self.model(call)
        return body["model"] not in (None, refused)


def _remove_stream_options(body: Json) -> bool:
    return body.pop("stream_options", None) is not None


def _remove_tool_names(body: Json) -> bool:
    messages = [item for item in body.get("messages", ()) if item.get("role") == "tool" and "name" in item]
    for message in messages:
        del message["name"]
    return bool(messages)


# Fields that strict servers refuse, by the word that their errors have. Each function removes its field from a body,
# and returns whether the body had it. An error with this word for another reason costs one more request, which fails.
_REFUSABLE: dict[str, Callable[[Json], bool]] = {
    "stream_options": _remove_stream_options,
    # `name` of messages with the result of a tool, and of no others: a run adds it for the templates of local servers.
    # OpenAI's messages have none.
    "name": _remove_tool_names,
}


def _drop_refused(body: Json, error: StatusError) -> str | None:
    """Remove what an error names from the body, and return its key in `_REFUSABLE`. None: there is nothing."""
    for name, remove in _REFUSABLE.items():
        if re.search(rf"\b{name}\b", error.body) and remove(body):
            return name
    return None


def _is_wire_format(response_format: Any) -> bool:
    """Whether this is the field `response_format` itself: a mapping whose `type` is not one of JSON Schema."""
    name = response_format.get("type") if isinstance(response_format, Mapping) else None
    return isinstance(name, str) and name not in _JSON_TYPES


def _definitions(tools: Any) -> list[Any]:
    """The tools as JSON. Raises TypeError for anything but JSON and objects with a `definition`, such as a Tool."""
    if not isinstance(tools, Iterable) or isinstance(tools, (str, bytes, Mapping)):
        raise TypeError(f"tools is a list of tools, not {tools!r:.100}")
    definitions = [getattr(tool, "definition", tool) for tool in tools]
    if any(map(callable, definitions)):
        raise TypeError("functions as tools go to run(), which calls them; chat() and stream() take tools as JSON")
    for definition in definitions:
        if not isinstance(definition, Mapping):
            raise TypeError(f"a tool is a dict, as in OpenAI's API, or a Tool, not {definition!r:.100}")
    return definitions
