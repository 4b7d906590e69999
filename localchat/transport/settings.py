"""The settings of a client: the server with its key, the headers, the limits. Masks the key in what a server sends."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import LocalChatError, ProtocolError, cut
from .addresses import is_loopback, parse_base_url, parse_proxy, tls_context
from .http1 import check_header
from .timeouts import DEFAULT_TIMEOUT, Timeout

DEFAULT_BASE_URL = "http://127.0.0.1:8080/v1"
# Larger than any response, and small enough for the memory.
DEFAULT_MAX_BYTES = 256 * 1024 * 1024
DEFAULT_MAX_RETRIES = 2

_JSON_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')


class Settings:
    """The arguments of a client (ClientOptions), already checked by type, and the environment at that time."""

    def __init__(self, environment: Mapping[str, str] | None = None, **given: Any) -> None:
        names = "OPENAI_BASE_URL", "OPENAI_API_KEY", "LOCALCHAT_MODEL"
        self.environment = environment or {name: os.environ.get(name, "") for name in names}
        self.base_url = given.get("base_url") or self.environment["OPENAI_BASE_URL"] or DEFAULT_BASE_URL
        self.address = parse_base_url(self.base_url)
        key = given.get("api_key")
        if key is None:  # OPENAI_API_KEY, but not in plain text to another machine than that of OPENAI_BASE_URL.
            is_local = self.address.socket_path is not None or is_loopback(self.address.host)
            is_trusted = self.address.scheme == "https" or self.base_url == self.environment["OPENAI_BASE_URL"]
            key = self.environment["OPENAI_API_KEY"] if is_local or is_trusted else ""
        self.key: str = key.strip()  # Keys from files end with a line end. The error does not show the key.
        if not self.key.isascii() or not self.key.isprintable():
            raise ValueError("the key has characters that cannot be sent: is the API key right?")
        self._masks = len(self.key) > 3  # Errors may contain shorter texts by chance.
        self.model = given.get("model") or self.environment["LOCALCHAT_MODEL"] or None
        self.timeout = Timeout.of(given.get("timeout", DEFAULT_TIMEOUT))
        max_retries, verify, max_bytes = (given.get(name) for name in ("max_retries", "verify", "max_bytes"))
        self.max_retries: int = DEFAULT_MAX_RETRIES if max_retries is None else max_retries
        self.on_retry: Callable[[int, float, LocalChatError], object] | None = given.get("on_retry")
        self.headers: dict[str, str] = dict(given.get("headers") or {})
        self.proxy: str | bool | None = given.get("proxy")
        if isinstance(self.proxy, str):
            parse_proxy(self.proxy)
        self.verify = True if verify is None else verify
        if type(self.verify).__hash__ is None:  # Contexts are cached by their values.
            raise ValueError(f"verify must name a file of certificates, not {verify!r}")
        if not isinstance(self.verify, bool):
            tls_context(self.verify)
        self.max_bytes: int = DEFAULT_MAX_BYTES if max_bytes is None else max_bytes
        # What the client has learned of the server: its only model, and whether it accepts stream_options.
        self.found_model: str | None = None
        self.takes_stream_options = True
        # Whether results of tools have the name of the tool, which templates of local servers may need.
        self.takes_tool_names = self.address.scheme != "https" or is_loopback(self.address.host)
        self.request_headers({})  # Raises ValueError for a header that is not valid.

    def learn(self, other: Settings) -> None:
        """Take over what another client has learned of the same server."""
        if other.base_url == self.base_url:
            self.found_model, self.takes_stream_options = other.found_model, other.takes_stream_options
            self.takes_tool_names = other.takes_tool_names

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
        """Mask the key in a payload that may report an error."""
        if not self._masks:
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

    def shown(self, text: str) -> str:
        """The beginning of a text for a message, with the key masked."""
        return cut(self.mask(text))
