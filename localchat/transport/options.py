"""The options of a client (`Settings`) and of one call (`CallOptions`), from keyword arguments; masks the key."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from ..errors import LocalChatError, ProtocolError
from ..reply.payloads import find_error, is_chunk
from .addresses import is_loopback, parse_base_url, parse_proxy, tls_context
from .http1 import check_header
from .keywords import ClientKeywords, check_keywords
from .timeouts import Timeout

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_BASE_URL = "http://127.0.0.1:8080/v1"
# Larger than any response, and small enough for the memory.
DEFAULT_MAX_BYTES = 256 * 1024 * 1024
DEFAULT_MAX_RETRIES = 2

# The variables of the environment that a client reads when it is made.
_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "LOCALCHAT_MODEL")

# The types of arguments of Client and its methods that nothing else checks.
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("base_url", "api_key", "model"), (str,)),
    **dict.fromkeys(("headers", "extra_headers", "extra_body"), (Mapping,)),
    "on_retry": (Callable,),
    "proxy": (str, bool),
}

_JSON_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')

# The prompt of `complete`: a text or a list of tokens, or a list of these.
TextPrompt = Union[str, Sequence[int], Sequence[str], Sequence[Sequence[int]]]

CHAT_PATH = "chat/completions"


class Settings:
    """The options of a client, which `Client` describes. They include the variables of the environment at that time."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        **options: Unpack[ClientKeywords],
    ) -> None:
        check_keywords(options, ClientKeywords, "Client")
        _check_types({"base_url": base_url, "api_key": api_key, "model": model, **options})
        if environment is None:
            environment = {name: os.environ.get(name, "") for name in _VARIABLES}
        # For other settings that are made of these.
        self._given, self._options, self._environment = (base_url, api_key, model), options.copy(), environment
        self.base_url = base_url or environment["OPENAI_BASE_URL"] or DEFAULT_BASE_URL
        self.address = parse_base_url(self.base_url)
        self.key = _clean_key(self._environment_key() if api_key is None else api_key)
        self._masks = len(self.key) > 3  # Errors may contain shorter texts by chance.
        self.model = model or environment["LOCALCHAT_MODEL"] or None
        self.timeout = Timeout.of(options.get("timeout"))
        self.max_retries = _whole_number("max_retries", options, DEFAULT_MAX_RETRIES)
        self.on_retry = options.get("on_retry")
        self.headers = dict(options.get("headers") or {})
        self.proxy = options.get("proxy")
        if isinstance(self.proxy, str):
            parse_proxy(self.proxy)
        self.verify = True if options.get("verify") is None else options["verify"]
        if not isinstance(self.verify, bool):
            tls_context(self.verify)
        self.max_bytes = _whole_number("max_bytes", options, DEFAULT_MAX_BYTES, 1)
        # What the client has learned of the server: its only model, and whether it accepts stream_options.
        self.found_model: str | None = None
        self.takes_stream_options = True
        # Whether results of tools have the name of the tool, which templates of local servers may need.
        self.takes_tool_names = self.address.scheme != "https" or is_loopback(self.address.host)
        self.request_headers({})  # Raises ValueError for a header that is not valid.

    def _environment_key(self) -> str:
        """OPENAI_API_KEY if the server is the one of OPENAI_BASE_URL, on this machine, or uses https; else empty.

        Any other server would get the key of a different server in plain text.
        """
        address = self.address
        is_local = address.socket_path is not None or is_loopback(address.host)
        is_trusted = is_local or address.scheme == "https" or self.base_url == self._environment["OPENAI_BASE_URL"]
        return self._environment["OPENAI_API_KEY"] if is_trusted else ""

    def changed(
        self, base_url: str | None, api_key: str | None, model: str | None, options: ClientKeywords
    ) -> Settings:
        """Settings with other values for some arguments, and the same environment. None keeps a value."""
        given = [old if new is None else new for old, new in zip(self._given, (base_url, api_key, model))]
        merged: ClientKeywords = {**self._options, **options}
        settings = Settings(*given, environment=self._environment, **merged)
        if settings.base_url == self.base_url:
            settings.found_model, settings.takes_stream_options = self.found_model, self.takes_stream_options
            settings.takes_tool_names = self.takes_tool_names
        return settings

    def request_headers(self, extra: Mapping[str, str], has_body: bool = True) -> dict[str, str]:
        """The headers of a request, with `extra` headers. Raises ValueError if one is not valid."""
        headers = {
            "Host": self.address.host_header,
            **({"Content-Type": "application/json"} if has_body else {}),
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "Cache-Control": "no-store",
            "User-Agent": "localchat",
        }
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        # A later header replaces an earlier one of the same name in any case.
        pairs = [*headers.items(), *self.headers.items(), *extra.items()]
        for name, value in pairs:
            check_header(name, value)
        return dict({name.lower(): (name, value) for name, value in pairs}.values())

    def mask_error(self, error: LocalChatError) -> None:
        """Mask the key in an error: some servers repeat it in their messages."""
        error.args = tuple(self.mask(item) if isinstance(item, str) else item for item in error.args)
        if isinstance(error, ProtocolError):
            error.head = self.mask(error.head)

    def mask_payload(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Mask the key in a payload that may report an error; any other payload is returned unchanged."""
        # A server may write `detail` beside choices too, if the finish reason of a choice reports the error.
        if not self._masks or (is_chunk(payload) and find_error(payload) is None and "detail" not in payload):
            return payload
        # Only strings are masked: a number may contain a key of digits by chance.
        masked = _JSON_TEXT.sub(lambda text: json.dumps(self.mask(json.loads(text[0]))), json.dumps(payload))
        return dict(json.loads(masked))

    def mask(self, text: str) -> str:
        """The text with asterisks in place of the key, also where JSON escapes characters of the key, such as /."""
        if not self._masks:
            return text
        key = "".join(rf"(?:\\?{re.escape(char)}|\\u(?i:{ord(char):04x}))" for char in self.key)
        return re.sub(key, "***", text)


def _check_types(given: Mapping[str, Any]) -> None:
    """Raise TypeError if one of these arguments has not its type in `_TYPES`, and is not None."""
    for name, value in given.items():
        types = _TYPES.get(name, (object,))
        if value is not None and not isinstance(value, types):
            expected = " or ".join(kind.__name__ for kind in types)
            raise TypeError(f"{name} is a {expected}, not a {type(value).__name__}")


def _clean_key(key: str) -> str:
    """Strip blanks and line ends, with which keys from files end. The error does not show the key."""
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError("the key has characters that cannot be sent: is the API key right?")
    return key


def _whole_number(name: str, options: Any, default: int, least: int = 0) -> int:
    """Remove a whole number from the options and return it, or the default."""
    value = options.pop(name, None)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise ValueError(f"{name} is a whole number from {least}, not {value!r}")
    return default if value is None else value


class CallOptions:
    """The parsed options of one call.

    `given` are the arguments of the method `what`, and `keywords` is their TypedDict. Raises TypeError for an unknown
    option, and ValueError if the value of one is not valid.
    """

    def __init__(self, settings: Settings, prompt: Any, given: Mapping[str, Any], keywords: Any, what: str) -> None:
        check_keywords(given, keywords, what)
        _check_types(given)
        for name, value in given.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} is {value}, which is not a finite number")
        fields = dict(given)
        self.prompt = prompt
        self.system: str | None = fields.pop("system", None)
        # `images` and `audio`, which are added to the prompt.
        self.media = take_media(fields)
        self.model: str | None = fields.pop("model", None)
        self.think_tags: str = fields.pop("think_tags", "auto")
        timeout = fields.pop("timeout", None)
        self.timeout = settings.timeout if timeout is None else Timeout.of(timeout)
        self.max_retries = _whole_number("max_retries", fields, settings.max_retries)
        self.headers: Mapping[str, str] = fields.pop("extra_headers", None) or {}
        self.retries_on_mismatch = _whole_number("retries_on_mismatch", fields, 0)
        self.batch_size: int | None = fields.pop("batch_size", None)
        # Whether a reply that a limit or a filter cut is returned, and not an error.
        self.allow_truncated: bool = fields.pop("allow_truncated", False)
        extra_body = fields.pop("extra_body", None) or {}
        # The fields of the request, with those of `extra_body`, which replace others of the same name.
        self.fields: dict[str, Any] = {**fields, **extra_body}
        self._tools = [getattr(tool, "definition", tool) for tool in self.fields.pop("tools", None) or ()]
        if any(map(callable, self._tools)):
            raise TypeError("functions as tools go to run(), which calls them; chat() and stream() take tools as JSON")
        # The value that the completion has to contain (structured.ExpectedValue), None for any text.
        self.expected: Any = None

    @property
    def n_choices(self) -> int:
        """The number of choices that the response has to contain: `n`, for each prompt of `complete`."""
        n, prompt = self.fields.get("n"), self.prompt
        several = isinstance(prompt, (list, tuple)) and all(isinstance(text, (str, list, tuple)) for text in prompt)
        return (n if isinstance(n, int) else 1) * (max(len(prompt), 1) if several else 1)

    @property
    def tool_names(self) -> set[str]:
        """The names of the tools in the request."""
        functions = (tool.get("function") for tool in self._tools if isinstance(tool, Mapping))
        return {str(function.get("name")) for function in functions if isinstance(function, Mapping)}

    def body(self, path: str, model: str | None, takes_stream_options: bool = True) -> dict[str, Any]:
        """The body of a request for a completion; one for /completions has `prompt` in place of `messages`.

        A field that is None is not sent. An empty list of tools is left out, since servers refuse it. A stream requests
        its usage unless `stream_options` is given; {"stream": False} is for servers that cannot stream. Raises
        ValueError if `extra_body` has messages.
        """
        fields = {name: value for name, value in self.fields.items() if value is not None}
        if self._tools:
            fields["tools"] = self._tools
        elif fields.get("tool_choice") in ("auto", "none"):
            del fields["tool_choice"]
        body: dict[str, Any] = {} if model is None else {"model": model}
        if path != CHAT_PATH:
            body["prompt"] = self.prompt
        elif "messages" in fields:
            raise ValueError("messages are the first argument: in extra_body they would replace the prompt")
        else:
            body["messages"] = [{"role": "system", "content": self.system}] if self.system is not None else []
            is_text = isinstance(self.prompt, str)
            body["messages"] += [{"role": "user", "content": self.prompt}] if is_text else map(dict, self.prompt)
        body.update(fields)
        body.setdefault("stream", True)
        stream_options = body.pop("stream_options", {"include_usage": True})
        if body["stream"] and stream_options and takes_stream_options:
            body["stream_options"] = stream_options
        return body


def take_media(options: dict[str, Any]) -> dict[str, Any]:
    """Remove images and audio from the options and return them. `audio` that is a mapping is OpenAI's option."""
    names = [name for name in ("images", "audio") if not (name == "audio" and isinstance(options.get(name), Mapping))]
    found = {name: options.pop(name, None) for name in names}
    return {name: sources for name, sources in found.items() if sources is not None and sources not in ([], ())}
