"""The settings of a client: server, key, timeouts, headers; and the masking of the key in messages."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import LocalChatError, ProtocolError
from ..reply.payloads import find_error
from .addresses import is_loopback, parse_base_url
from .http1 import check_header
from .keywords import AllClientKeywords
from .timeouts import Timeout

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_BASE_URL = "http://127.0.0.1:8080/v1"
# Larger than any response, and small enough for the memory.
DEFAULT_MAX_BYTES = 256 * 1024 * 1024

_JSON_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')


class Settings:
    """The settings of a client. `Client` describes the arguments."""

    def __init__(self, **arguments: Unpack[AllClientKeywords]) -> None:
        self.base_url = arguments.get("base_url") or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
        self.address = parse_base_url(self.base_url)
        api_key = arguments.get("api_key")
        self.key = _clean_key(self._environment_key() if api_key is None else api_key)
        self.model = arguments.get("model") or os.environ.get("LOCALCHAT_MODEL") or None
        self.timeout = Timeout.of(arguments.get("timeout"))
        self.max_retries = arguments.get("max_retries", 2)
        self.on_retry = arguments.get("on_retry")
        self.headers = dict(arguments.get("headers") or {})
        self.proxy = arguments.get("proxy")
        self.verify = arguments.get("verify", True)
        self.follow_redirects = arguments.get("follow_redirects", False)
        self.log_bodies = arguments.get("log_bodies", False)
        self.max_bytes = arguments.get("max_bytes", DEFAULT_MAX_BYTES)
        record = arguments.get("record")
        self.transport: Any = arguments.get("transport")
        if record is not None:
            if self.transport is not None:
                raise ValueError("record and transport exclude each other: leave one of them out")
            self.transport = companion("extras.record").Recorder(record, self.key)
        # What the client has learned of the server: its only model, and whether it accepts stream_options.
        self.found_model: str | None = None
        self.found_embedding_model: str | None = None
        self.takes_stream_options = True

    def _environment_key(self) -> str:
        """OPENAI_API_KEY if the server is the one of OPENAI_BASE_URL, on this machine, or uses https; else empty.

        Any other server would get the key of a different server in plain text.
        """
        address = self.address
        is_local = address.socket_path is not None or is_loopback(address.host)
        is_trusted = is_local or address.scheme == "https" or self.base_url == os.environ.get("OPENAI_BASE_URL")
        return os.environ.get("OPENAI_API_KEY", "") if is_trusted else ""

    def can_share_connections(self, other: Settings) -> bool:
        """Whether a connection that was made with these settings can be used with the others."""
        return all(getattr(self, name) == getattr(other, name) for name in ("address", "proxy", "verify", "transport"))

    def request_headers(self, extra: Mapping[str, str]) -> dict[str, str]:
        """The headers of a request, with `extra` headers.

        Raises:
            ValueError: A header is not valid.
        """
        headers = {
            "Host": self.address.host_header,
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "Cache-Control": "no-store",
            "User-Agent": "localchat",
        }
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        # A later header replaces an earlier one of the same name in any case.
        pairs = [*headers.items(), *self.headers.items(), *extra.items()]
        by_name = {name.lower(): (name, value) for name, value in pairs}
        for name, value in by_name.values():
            check_header(name, value)
        return dict(by_name.values())

    # Some servers repeat the key in their error messages, so it is masked in every text that may be shown.

    def mask_error(self, error: LocalChatError) -> None:
        """Mask the key in an error."""
        error.args = tuple(self.mask(item) if isinstance(item, str) else item for item in error.args)
        if isinstance(error, ProtocolError):
            error.head = self.mask(error.head)

    def mask_payload(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Mask the key in a payload that may report an error; any other payload is returned unchanged."""
        # A server may write `detail` beside choices too, if the finish reason of a choice reports the error.
        if payload.get("choices") and find_error(payload) is None and "detail" not in payload:
            return payload
        # Only strings are masked: a number may contain a key of digits by chance.
        masked = _JSON_TEXT.sub(lambda text: json.dumps(self.mask(json.loads(text[0]))), json.dumps(payload))
        return dict(json.loads(masked))

    def mask(self, text: str) -> str:
        """The text with asterisks in place of the key, also where JSON escapes characters of the key, such as /."""
        key = "".join(rf"(?:\\?{re.escape(char)}|\\u(?i:{ord(char):04x}))" for char in self.key)
        return re.sub(key, "***", text) if len(self.key) > 3 else text


def companion(name: str) -> Any:
    """Import an optional module, such as "agent.tools", which may be missing if the files of the client were copied."""
    try:
        return importlib.import_module(f"..{name}", __package__)
    except (ImportError, TypeError) as error:  # TypeError: the single file of `localchat.extras.vendor` has no package.
        raise ImportError(
            f"this needs localchat's {name.replace('.', '/')}.py, which is not beside the client"
        ) from error


def _clean_key(key: str) -> str:
    """Strip blanks and line ends, with which keys from files end. The error does not show the key."""
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError("the key has characters that cannot be sent: is the API key right?")
    return key
